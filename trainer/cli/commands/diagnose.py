"""`lipt diagnose` and `lipt check`: what is wrong with data, before anything is run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.trainer.cli.display.output import print_result, run_talking
from lipt.trainer.cli.options import (
    AllowModule,
    Coordinator,
    ImageSize,
    Json,
    grouped,
    modules_of,
    require_replaceable,
)
from lipt.trainer.writing.formatting import table_lines

if TYPE_CHECKING:
    from lipt.common.data import Dataset
    from lipt.common.data.loading import Decoded
    from lipt.trainer.diagnosis.diagnosis import Diagnosis


@grouped
def check(
    *,
    data: Annotated[
        str, typer.Option(help="Image files, e.g. imagefolder:PATH, webdataset:PATH, parquet:PATH.")
    ],
    allow_module: AllowModule = None,
    json: Json = False,
) -> None:
    """Decode every image of a data set, and list all that cannot be used.

    The status is 1 where there are some. A coordinator is not needed.
    """
    from lipt.common.data.loading import decode_all

    def work(tell: Callable[[str], None]) -> Decoded:
        tell(f"reading {data}")
        return decode_all(
            data,
            allowed_modules=modules_of(allow_module, data),
            progress=lambda done, total: tell(f"decoding {data}: {done} of {total}"),
        )

    decoded = run_talking(work)
    unusable = decoded.unusable
    lines = [f"image {image.id} ({image.place}): {image.problem}" for image in unusable]
    lines.append(
        f"{len(unusable)} of {decoded.num_images} images of {decoded.source} cannot be used"
    )
    print_result(decoded, lines, as_json=json)
    if unusable:
        raise typer.Exit(1)


_PAGE, _TABLE = "diagnosis.html", "issues.csv"

_Run = Annotated[
    str | None,
    typer.Option(
        "--run",
        "-r",
        help="A run whose learners help to see: its id, its name, or latest. The data alone is "
        "looked at where this is not given.",
    ),
]
_Proxy = Annotated[
    str | None,
    typer.Option(
        help="What looks at the data, as HEAD:FEATURES, e.g. ridge:patches; the coordinator "
        "chooses where this is not given."
    ),
]
_Features = Annotated[
    Path | None,
    typer.Option(help="Your own features: a safetensors file with the tensor features (N x d)."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="The page to write, a .html file (diagnosis.html), or a directory for it and "
        "issues.csv.",
    ),
]
_Export = Annotated[
    Path | None,
    typer.Option(help="A .csv file for a row per example, in cleanlab's columns."),
]


@grouped
def diagnose(
    *,
    run: _Run = None,
    proxy: _Proxy = None,
    features: _Features = None,
    data: Annotated[
        str | None, typer.Option(help="The coordinator's data, opened here for pictures.")
    ] = None,
    image_size: ImageSize = None,
    allow_module: AllowModule = None,
    out: _Out = None,
    export: _Export = None,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Diagnose the coordinator's data: wrong labels, duplicates, outliers, what is learnable.

    Needs neither a run nor a worker. With --json a page is written only where --out says so.
    """
    page, table = _places(out, export, as_json=json)
    require_replaceable(page, table)
    from lipt.trainer.cli.display.output import left_out_by, open_telling
    from lipt.trainer.diagnosis.diagnosis import export_issues
    from lipt.trainer.report.examination import (
        examine,
        file_paths,
        open_templates,
        render_diagnosis,
    )
    from lipt.trainer.writing.files import write_atomically

    if page is not None:
        open_templates("the page of lipt diagnose")  # before anything is computed

    with coordinator.connect() as client:

        def work(tell: Callable[[str], None]) -> tuple[Diagnosis, Dataset | None]:
            dataset = None
            if data is not None:
                modules = modules_of(allow_module, data)
                dataset = open_telling(data, image_size, modules, tell, left_out_by(client))
            diagnosis = client.diagnose(
                run, proxy, features=features, on_progress=lambda progress: tell(str(progress))
            )
            return diagnosis, dataset

        diagnosis, dataset = run_talking(work)
    if page is not None:
        write_atomically(page, render_diagnosis(examine(diagnosis, dataset)).encode())
    if table is not None:
        paths = None if dataset is None else file_paths(dataset)
        write_atomically(table, export_issues(diagnosis, paths))
    found = {
        "page": page,
        "export": table,
        "fingerprint": diagnosis.fingerprint,
        "run_id": diagnosis.run_id,
        "findings": diagnosis.findings,
        "manifest": diagnosis.manifest,
    }
    lines = _lines(diagnosis, page, table, pictures=dataset is not None)
    print_result(found, lines, as_json=json)


def _places(
    out: Path | None, export: Path | None, *, as_json: bool
) -> tuple[Path | None, Path | None]:
    if export is not None and export.suffix.lower() != ".csv":
        raise typer.BadParameter(f"{export} is not a .csv file.", param_hint="--export")
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


def _lines(
    diagnosis: Diagnosis, page: Path | None, table: Path | None, *, pictures: bool
) -> Iterator[str]:
    from lipt.common.targets.kinds import TargetKind
    from lipt.trainer.diagnosis.findings import facts, fit_text, proxy_text

    findings = diagnosis.findings
    data = diagnosis.manifest.get("data")
    source = f"{data.get('source')}: " if isinstance(data, dict) else ""
    seen = proxy_text(findings)
    groups = "classes" if findings.target_kind is TargetKind.CLASS else "groups"
    yield (
        f"{source}{findings.num_examples:,} examples, {len(findings.class_names)} {groups}"
        f"{f'; seen by {seen}' if seen else ''}"
    )
    first, *others = [(fact.name, fact.text) for fact in facts(findings)]
    yield from table_lines(first, others)
    rows = [
        (
            str(issue.id),
            findings.name(issue.given),
            findings.name(issue.suggested),
            fit_text(issue.quality),
        )
        for issue in diagnosis.label_issues()[:10]
    ]
    if rows:
        yield from ("", f"the {len(rows)} worst labels:")
        yield from table_lines(("row", "labelled", "looks like", "fits"), rows)
    yield ""
    if page is not None:
        how = "" if pictures else ", without pictures: --data opens the data for them"
        yield f"page: {page}{how}"
    if table is not None:
        yield f"issues: {table}, a row for each of {len(diagnosis):,} examples"
