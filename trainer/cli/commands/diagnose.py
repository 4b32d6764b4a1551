"""`lipt diagnose` and `lipt check`: what is wrong with data, before anything is run on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from typer import BadParameter, Exit, Option

from lipt.trainer.cli import options as shared
from lipt.trainer.cli.display.output import (
    Say,
    left_out_by,
    open_telling,
    print_result,
    run_talking,
)
from lipt.trainer.writing.formatting import table_lines

if TYPE_CHECKING:
    from lipt.common.data import Dataset
    from lipt.trainer.diagnosis.diagnosis import Diagnosis


def check(
    *,
    data: str = Option(..., help="Image files: imagefolder:PATH, webdataset:PATH, parquet:PATH."),
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Decode every image of a data set, and list all that cannot be used.

    The status is 1 where there are some. A coordinator is not needed.
    """
    from lipt.common.data.loading import decode_all

    decoded = run_talking(
        lambda tell: decode_all(
            data,
            allowed_modules=shared.modules_of(allow_module, data),
            progress=lambda done, total: tell(f"decoding {data}: {done} of {total}"),
        ),
        activity=f"reading {data}",
    )
    unusable = decoded.unusable
    lines = [str(image) for image in unusable]
    lines.append(
        f"{len(unusable)} of {decoded.num_images} images of {decoded.source} cannot be used"
    )
    print_result(decoded, lines, as_json=json)
    if unusable:
        raise Exit(1)


@shared.grouped
def diagnose(
    *,
    run: str | None = Option(
        None, "--run", "-r", help="A run whose learners join in; else the data alone is looked at."
    ),
    proxy: str | None = Option(None, help="Proxy model, e.g. ridge:patches; else one that suits."),
    features: Path | None = Option(
        None, help="Your own features: a safetensors file with the tensor features (N x d)."
    ),
    data: str | None = Option(None, help="The coordinator's data, opened here for pictures."),
    image_size: shared.ImageSize = None,
    allow_module: shared.AllowModule = None,
    out: Path | None = Option(
        None,
        "--out",
        "-o",
        help="The .html page to write (diagnosis.html), or a directory for it and issues.csv.",
    ),
    export: Path | None = Option(
        None, help="A .csv file for a row per example, in cleanlab's columns."
    ),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Diagnose the coordinator's data: wrong labels, duplicates, outliers, what is learnable.

    Needs neither a run nor a worker. With --json a page is written only where --out says so.
    """
    if export is not None and export.suffix.lower() != ".csv":
        raise BadParameter(f"{export} is not a .csv file.", param_hint="--export")
    page, export = _files(None if json else Path("diagnosis.html"), out, export)
    shared.require_replaceable(page, export)
    from lipt.trainer.diagnosis.diagnosis import export_issues
    from lipt.trainer.report.report import file_paths, open_templates, render_diagnosis
    from lipt.trainer.writing.files import write_atomically

    if page is not None:
        open_templates("the page of lipt diagnose")  # before anything is computed

    with coordinator.connect() as client:

        def work(tell: Say) -> tuple[Diagnosis, Dataset | None]:
            dataset = None
            if data is not None:
                modules = shared.modules_of(allow_module, data)
                dataset = open_telling(data, image_size, modules, tell, left_out_by(client))
            diagnosis = client.diagnose(
                run, proxy, features=features, on_progress=lambda progress: tell(str(progress))
            )
            return diagnosis, dataset

        diagnosis, dataset = run_talking(work)
    if page is not None:
        write_atomically(page, render_diagnosis(diagnosis, dataset).encode())
    if export is not None:
        paths = None if dataset is None else file_paths(dataset)
        write_atomically(export, export_issues(diagnosis, paths))
    found = {
        "page": page,
        "export": export,
        "fingerprint": diagnosis.fingerprint,
        "run_id": diagnosis.run_id,
        "findings": diagnosis.findings,
        "manifest": diagnosis.manifest,
    }
    lines = [*_lines(diagnosis), ""]
    if page is not None:
        how = "" if dataset is not None else ", without pictures: --data opens the data for them"
        lines.append(f"page: {page}{how}")
    if export is not None:
        lines.append(f"issues: {export}, a row for each of {len(diagnosis):,} examples")
    print_result(found, lines, as_json=json)


def _files(
    default: Path | None, out: Path | None, export: Path | None
) -> tuple[Path | None, Path | None]:
    """The page and the table to write."""
    if out is None or out.suffix.lower() in {".html", ".htm"}:
        return out or default, export
    if not out.is_dir():
        if out.exists() or not out.parent.is_dir():
            message = f"{out} is neither a .html file nor a directory that could be made."
            raise BadParameter(message, param_hint="--out")
        out.mkdir()
    return out / "diagnosis.html", export or out / "issues.csv"


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    from lipt.common.targets.kinds import TargetKind
    from lipt.trainer.diagnosis.findings import facts, fit_text, proxy_text

    findings, name = diagnosis.findings, diagnosis.class_names
    source = f"{diagnosis.source}: " if diagnosis.source else ""
    seen = proxy_text(findings)
    groups = "classes" if findings.target_kind is TargetKind.CLASS else "groups"
    yield (
        f"{source}{findings.num_examples:,} examples, {len(name)} {groups}"
        f"{f'; seen by {seen}' if seen else ''}"
    )
    first, *others = [(fact.name, fact.text) for fact in facts(findings)]
    yield from table_lines(first, others)
    rows = [
        (str(issue.id), name[issue.given], name[issue.suggested], fit_text(issue.quality))
        for issue in diagnosis.label_issues()[:10]
    ]
    if rows:
        yield from ("", f"the {len(rows)} worst labels:")
        yield from table_lines(("row", "labelled", "looks like", "fits"), rows)
