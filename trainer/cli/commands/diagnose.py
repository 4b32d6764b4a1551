"""`lipt diagnose`: what is wrong with the coordinator's data, before anything is trained on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.common.text import say
from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import AllowModule, Coordinator, ImageSize, Json, modules_of
from lipt.trainer.cli.arguments.paths import require_apart, require_replaceable
from lipt.trainer.cli.display.output import print_json
from lipt.trainer.cli.display.waiting import run_talking

if TYPE_CHECKING:
    from lipt.common.data import Dataset
    from lipt.trainer.diagnosis.diagnosis import Diagnosis

_PAGE, _TABLE = "diagnosis.html", "issues.csv"


@grouped
def diagnose(
    *,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            "-r",
            help="A run whose learners help to see: its id, its name, or latest. The data alone "
            "is looked at where this is not given.",
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            help="What looks at the data, as HEAD:FEATURES, e.g. ridge:patches; the coordinator "
            "chooses where this is not given."
        ),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Your own features: a safetensors file with the tensor features (N x d)."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The coordinator's data, opened here for pictures.")
    ] = None,
    image_size: ImageSize = None,
    allow_module: AllowModule = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The page to write, a .html file (diagnosis.html), or a directory for it and "
            "issues.csv.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="A .csv, .json or .parquet file for a row per example, in cleanlab's columns."
        ),
    ] = None,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Diagnose the coordinator's data: wrong labels, duplicates, outliers, what is learnable.

    Needs neither a run nor a worker. With --json a page is written only where --out says so.
    """
    page, table = _places(out, export, as_json=json)
    require_replaceable(page, table)
    require_apart({"--out": page, "--export": table})
    from lipt.trainer.cli.arguments.overrides import refusing_as_usage
    from lipt.trainer.cli.display.opening import left_out_by, open_telling
    from lipt.trainer.diagnosis.export import export_issues, writer_of
    from lipt.trainer.report.diagnosis_page import render_diagnosis
    from lipt.trainer.report.examining import examine, file_paths
    from lipt.trainer.report.templates import open_templates
    from lipt.trainer.writing.files import write_atomically

    with refusing_as_usage():
        if table is not None:
            writer_of(table)
    if page is not None:
        open_templates("the page of lipt diagnose")  # before anything is computed

    with coordinator.connect() as client:

        def work(tell: Callable[[str], None]) -> tuple[Diagnosis, Dataset | None]:
            modules = modules_of(allow_module, data)
            dataset = None
            if data is not None:
                left_out = left_out_by(client)
                dataset = open_telling(data, image_size, modules, tell, left_out)
            diagnosis = client.diagnose(
                run, proxy, features=features, on_progress=lambda progress: tell(str(progress))
            )
            return diagnosis, dataset

        diagnosis, dataset = run_talking(work)
    if page is not None:
        write_atomically(page, render_diagnosis(examine(diagnosis, dataset)).encode())
    if table is not None:
        paths = None if dataset is None else file_paths(dataset)
        write_atomically(table, export_issues(diagnosis, table, paths))
    if json:
        print_json(_document(diagnosis, page, table))
        return
    _print(diagnosis, page, table, pictures=dataset is not None)


def _places(
    out: Path | None, export: Path | None, *, as_json: bool
) -> tuple[Path | None, Path | None]:
    """Where the page and the table go; None where there is to be none."""
    if out is None:
        return (None if as_json else Path(_PAGE)), export
    if out.suffix.lower() in {".html", ".htm"}:
        return out, export
    if not out.is_dir():
        if out.exists() or not out.parent.is_dir():
            raise typer.BadParameter(
                f"{out} is neither a .html file nor a directory that could be made.",
                param_hint="--out",
            )
        out.mkdir()
    return out / _PAGE, export or out / _TABLE


def _document(diagnosis: Diagnosis, page: Path | None, table: Path | None) -> dict[str, object]:
    return {
        "page": page,
        "export": table,
        "fingerprint": diagnosis.fingerprint,
        "run_id": diagnosis.run_id,
        "findings": diagnosis.findings,
        "manifest": diagnosis.manifest,
    }


def _print(diagnosis: Diagnosis, page: Path | None, table: Path | None, *, pictures: bool) -> None:
    from lipt.trainer.cli.display.diagnosis import (
        diagnosis_lines,
        next_lines,
        print_diagnosis,
    )

    if sys.stdout.isatty():
        print_diagnosis(diagnosis)
        lines = []
    else:
        lines = diagnosis_lines(diagnosis)
    if page is not None:
        how = "" if pictures else ", without pictures: the data was not given"
        lines += ["", f"page: {page}{how}"]
    if table is not None:
        lines.append(f"issues: {table}, a row for each of {len(diagnosis):,} examples")
    for line in (*lines, *next_lines(diagnosis, pictures=pictures, exported=table is not None)):
        say(line)
