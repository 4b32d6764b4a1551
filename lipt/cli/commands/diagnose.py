"""`lipt diagnose` and `lipt check`: wrong labels, duplicates and broken images of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from typer import BadParameter, Exit, Option

from lipt.cli import options as shared
from lipt.cli.output import (
    open_with_progress,
    print_result,
    quarantined_by,
    run_with_progress,
)
from lipt.trainer.formatting import table_lines

if TYPE_CHECKING:
    from lipt.trainer.diagnosis.diagnosis import Diagnosis


@shared.grouped
def check(
    *,
    data: str = Option(..., help="Image files or a table: imagefolder:PATH, csv:PATH?label=NAME."),
    csv: shared.CsvFile,
    allow_module: shared.AllowModule = None,
    json: shared.Json = False,
) -> None:
    """Decode every image of a data set, and list the unusable ones.

    Of a table it tells how each column is read. The status is 1 where images cannot be used. A
    coordinator is not needed.
    """
    from lipt.data.loading import decode_all

    data = csv.name(data)
    decoded = run_with_progress(
        lambda report: decode_all(
            data,
            allowed_modules=shared.modules_of(allow_module, data),
            progress=lambda done, total: report(f"decoding {data}: {done} of {total}"),
        ),
        activity=f"reading {data}",
    )
    unusable, empty = decoded.unusable, decoded.empty_folders
    lines = [*decoded.columns, *(f"no image in {folder}" for folder in empty), *map(str, unusable)]
    lines += [f"{decoded.source}: {decoded.note}"] if decoded.note else []
    if empty:
        lines.append(f"{len(empty)} directories of classes are empty: fill or remove them")
    what = "examples" if decoded.columns else "images"
    lines.append(
        f"{len(unusable)} of {decoded.num_examples} {what} of {decoded.source} cannot be used"
    )
    print_result(decoded, lines, as_json=json)
    if unusable or empty:
        raise Exit(1)


@shared.grouped
def diagnose(
    *,
    run: str | None = Option(
        None, "--run", "-r", help="A run whose learners improve the diagnosis; else the data alone."
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
    """Find wrong labels, near-duplicates and outliers of served data.

    The data is the coordinator's. Needs neither a run nor a worker. With --json a page is written
    only with --out.
    """
    if export is not None and export.suffix.lower() != ".csv":
        raise BadParameter(f"{export} is not a .csv file.", param_hint="--export")
    page = out if out or json else Path("diagnosis.html")
    if out is not None and out.suffix.lower() not in {".html", ".htm"}:
        if not out.is_dir():
            shared.require_place(out, folder=True)
            out.mkdir()
        page, export = out / "diagnosis.html", export or out / "issues.csv"
    shared.require_replaceable(page, export)
    from lipt.trainer.diagnosis.diagnosis import export_issues
    from lipt.trainer.files import write_atomically
    from lipt.trainer.report.report import file_paths, open_templates, render_diagnosis

    if page is not None:
        open_templates("the page of lipt diagnose")  # before anything is computed

    dataset = None
    with coordinator.connect() as client:
        if data is not None:
            modules, bad = shared.modules_of(allow_module, data), quarantined_by(client)
            dataset = open_with_progress(
                data, image_size=image_size, modules=modules, quarantined=bad
            )
        diagnosis = client.diagnose(run, proxy, features=features)
    if page is not None:
        write_atomically(page, render_diagnosis(diagnosis, dataset).encode())
    if export is not None:
        paths = None if dataset is None else file_paths(dataset)
        write_atomically(export, export_issues(diagnosis, paths))
    result = {
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
    print_result(result, lines, as_json=json)


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    from lipt.data.targets.kinds import TargetKind
    from lipt.trainer.diagnosis.sentences import facts, fit_text, proxy_text

    findings, name = diagnosis.findings, diagnosis.class_names
    source = f"{diagnosis.source}: " if diagnosis.source else ""
    seen = f"; proxy: {proxy}" if (proxy := proxy_text(findings)) else ""
    groups = "classes" if findings.target_kind is TargetKind.CLASS else "groups"
    yield f"{source}{findings.num_examples:,} examples, {len(name)} {groups}{seen}"
    first, *further = [(fact.name, fact.text) for fact in facts(findings)]
    yield from table_lines(first, further)
    rows = [
        (str(issue.id), name[issue.given], name[issue.suggested], fit_text(issue.quality))
        for issue in diagnosis.label_issues()[:10]
    ]
    if rows:
        yield from ("", f"the {len(rows)} worst labels:")
        yield from table_lines(("row", "labelled", "looks like", "fits"), rows)
