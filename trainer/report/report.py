"""Pages in one HTML file each: the diagnosis of a data set, and the report of a run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common import errors
from lipt.common.imports import import_extra
from lipt.common.subsets import overlap
from lipt.common.text import escaped, format_bytes
from lipt.data.dataset import Dataset
from lipt.data.images.formats import data_url
from lipt.data.inputs.specs import ImageSpec
from lipt.data.objects import chosen_objects
from lipt.data.registry import table_address
from lipt.data.targets.kinds import TargetKind
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.outcomes import outcomes
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.comparison.verdict import alternatives, answers, cells
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.sentences import facts, fit_text, noise_text, proxy_text
from lipt.trainer.formatting import share_bar
from lipt.trainer.main_training.steps import require_fingerprint
from lipt.trainer.mixture import Mixture
from lipt.trainer.report.charts import loss_chart, soup_chart
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView


def open_templates(needed_for: str) -> Any:
    """The templates of this package; the error where jinja2 is missing names `needed_for`."""
    jinja2 = import_extra("jinja2", package="jinja2", extra="report", needed_for=needed_for)
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader("lipt.trainer.report", "."),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "thousands": "{:,}".format}
    environment.filters |= {
        "size": format_bytes,
        "utc": lambda moment: f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
    }
    return environment


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _finalize(value: Any) -> Any:
    return escaped(value, keep="\n\t") if type(value) is str else value


NUM_SUSPECTS_OF_RUN, NUM_GROUPS, NUM_PER_GROUP, NUM_OUTLIERS = 24, 12, 8, 24
# Completions, and characters of each.
NUM_COMPLETIONS, _MOST_SHOWN = 200, 400
_PICTURE_PIXELS, _THUMBNAIL_PIXELS = 112, 64
# Images in memory at a time.
_AT_ONCE = 256
# Images up to this many pixels a side are scaled up with sharp edges.
_SMALL_PIXELS = 64


def are_small(dataset: Dataset) -> bool:
    shape = dataset.inputs
    return isinstance(shape, ImageSpec) and max(shape.height, shape.width) <= _SMALL_PIXELS


@dataclass(frozen=True)
class ExampleView:
    row: int
    given: str
    suggested: str
    quality: float
    file: str
    picture: str


def example_views(
    diagnosis: Diagnosis, rows: Sequence[int], dataset: Dataset | None
) -> dict[int, ExampleView]:
    """Some examples by their rows, in the given order, with pictures where the data is given."""
    pictures, files = [""] * len(rows), None
    if dataset is not None and rows:
        files, pictures = file_paths(dataset), _pictures(dataset, rows, _PICTURE_PIXELS)
    names = diagnosis.class_names
    return {
        row: ExampleView(
            row=row,
            given=names[diagnosis.given_label[row]],
            suggested=names[diagnosis.suggested_label[row]],
            quality=float(diagnosis.label_quality[row]),
            file=Path(files[row]).name if files else "",
            picture=picture,
        )
        for row, picture in zip(rows, pictures, strict=True)
    }


def _pictures(dataset: Dataset, rows: Sequence[int], max_pixels: int) -> list[str]:
    if not rows or not isinstance(dataset.inputs, ImageSpec):
        return [""] * len(rows)
    return [
        data_url(image_CHW, max_pixels)
        for start in range(0, len(rows), _AT_ONCE)
        for image_CHW in dataset.images(torch.tensor(rows[start : start + _AT_ONCE]))
    ]


def file_paths(dataset: Dataset) -> list[str] | None:
    """The absolute paths of a data set's images, in order; None where they are no files."""
    # The rows may lie in memory by now, without the names of their files.
    files = dataset.source_rows.files
    return None if files is None else [str(Path(file).absolute()) for file in files]


def render_diagnosis(diagnosis: Diagnosis, dataset: Dataset | None = None) -> str:
    environment = open_templates("the page of lipt diagnose")
    if dataset is not None:
        require_fingerprint("the diagnosis", diagnosis.fingerprint, dataset)
    if diagnosis.findings.target_kind is TargetKind.TOKENS:
        return _render_completions(environment, diagnosis, dataset)
    suspects = [issue.id for issue in diagnosis.label_issues()]
    outliers = diagnosis.outliers()[:NUM_OUTLIERS].tolist()
    by_conflict = [
        (len(set(diagnosis.given_label[group])) > 1, len(group), group[:NUM_PER_GROUP].tolist())
        for group in diagnosis.duplicate_groups()
    ]
    # Groups with conflicting labels first.
    groups = sorted(by_conflict, key=lambda group: not group[0])[:NUM_GROUPS]
    shown = {*suspects, *outliers, *(row for *_, rows in groups for row in rows)}
    views = example_views(diagnosis, sorted(shown), dataset)
    findings, script = diagnosis.findings, Path(__file__).with_name("marks.js").read_text()
    digest = hashlib.sha256(script.encode()).digest()
    page: str = environment.get_template("diagnosis.html").render(
        diagnosis=diagnosis,
        script=script,
        # The only script that a browser may run here, whatever a class is called.
        script_hash=base64.b64encode(digest).decode(),
        source=diagnosis.source if dataset is None else dataset.source,
        has_pictures=dataset is not None and isinstance(dataset.inputs, ImageSpec),
        small=dataset is not None and are_small(dataset),
        suspects=[views[row] for row in suspects],
        groups=[
            {"conflicting": conflicting, "count": count, "examples": [views[row] for row in rows]}
            for conflicting, count, rows in groups
        ],
        outliers=[views[row] for row in outliers],
        findings=findings,
        facts=facts(findings),
        fit=fit_text,
        proxy=proxy_text(findings),
        curve=findings.learnability,
        noise={item.label: item for item in findings.label_errors.per_class},
        needed={item.label: item.examples_for_90 for item in findings.redundancy.per_class},
    )
    return page


def _render_completions(environment: Any, diagnosis: Diagnosis, dataset: Dataset | None) -> str:
    rows = list(diagnosis.findings.worst_fitting[:NUM_COMPLETIONS])
    texts = dict.fromkeys(rows, "")
    # Rows of a file are at hand; those of a table in memory are not.
    if dataset is not None and table_address(dataset.source) is not None:
        ordered = sorted(rows)
        objects = chosen_objects(dataset, ordered, num_rows=dataset.num_ids)
        texts |= {
            row: row_object.text[:_MOST_SHOWN]
            for row, row_object in zip(ordered, objects, strict=True)
        }
    page: str = environment.get_template("completions.html").render(
        diagnosis=diagnosis,
        source=diagnosis.source if dataset is None else dataset.source,
        small=False,
        facts=facts(diagnosis.findings),
        worst=[(row, fit_text(float(diagnosis.label_quality[row])), texts[row]) for row in rows],
    )
    return page


NUM_WANTED = 24


def count_classes(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[int, ...]:
    labels = dataset.labels_N.numpy()[rows]
    return tuple(np.bincount(labels, minlength=len(dataset.class_names)).tolist())


def _story(
    client: Client, run: RunView, dataset: Dataset, subset: Subset, diagnosis: Diagnosis | None
) -> dict[str, Any]:
    """A subset by its classes, and the examples that its strategy ranks highest and lowest."""
    everything = np.arange(len(dataset))
    count = min(NUM_WANTED, len(dataset) - 1)
    most = client.subset(run.run_id, subset.strategy, budget=count).indices
    nearly_all = client.subset(run.run_id, subset.strategy, budget=len(dataset) - count).indices
    least = np.setdiff1d(everything, nearly_all)[:count]
    available_C, kept_C = (count_classes(dataset, rows) for rows in (everything, subset.indices))
    return {
        "subset": subset,
        "rows": set(subset.indices.tolist()),
        "classes": list(zip(dataset.class_names, available_C, kept_C, strict=True)),
        "most_wanted": _thumbnails(dataset, most.tolist()),
        "least_wanted": _thumbnails(dataset, least.tolist()),
        "num_suspects": int(diagnosis.suspect[subset.indices].sum()) if diagnosis else 0,
    }


def _thumbnails(dataset: Dataset, rows: list[int]) -> list[tuple[int, str, str]]:
    names = [dataset.class_names[label] for label in dataset.labels_N[rows].tolist()]
    return list(zip(rows, names, _pictures(dataset, rows, _THUMBNAIL_PIXELS), strict=True))


def render(
    client: Client,
    run: RunView,
    dataset: Dataset,
    strategies: Sequence[str],
    fraction: float,
    comparison: tuple[dict[str, Any], Sequence[Trial]] | None = None,
    *,
    diagnosis: Diagnosis | None = None,
    mixture: Mixture | None = None,
    now: datetime | None = None,
) -> str:
    """Return a ready run's page: one HTML file, no network, everything escaped.

    `strategies` and `fraction` are those of the subsets, `comparison` is the content of a file of
    trials.
    """
    identity, trials = comparison or (None, ())
    require_fingerprint(f"run {run.label}", run.fingerprint, dataset)
    if diagnosis is not None:
        require_fingerprint("the diagnosis", diagnosis.fingerprint, dataset)
    if mixture is not None:
        require_fingerprint("the mixture", mixture.fingerprint, dataset)
    if identity is not None:
        require_fingerprint("the comparison", identity.get("data"), dataset)
        _require_trials(trials)
    labels_N = dataset.labels_N.numpy()
    parts = {
        learner.index: learner.ingredient
        for learner in run.learners
        if learner.ingredient is not None
    }
    tried = sorted(
        (learner for learner in run.learners if learner.index in parts),
        key=lambda learner: parts[learner.index].position,
    )
    subsets = [client.subset(run.run_id, name, fraction=fraction) for name in strategies]
    suspects = [issue.id for issue in diagnosis.label_issues()] if diagnosis else []
    views = example_views(diagnosis, suspects[:NUM_SUSPECTS_OF_RUN], dataset) if diagnosis else {}
    page: str = (
        open_templates("lipt report")
        .get_template("page.html")
        .render(
            run=run,
            info=client.info(),
            diagnosis=diagnosis,
            mixture=mixture,
            share_bar=share_bar,
            suspects=list(views.values()),
            small=are_small(dataset),
            losses=loss_chart(run.learners),
            growth=soup_chart(run.learners),
            learners=[
                *tried,
                *(unmerged for unmerged in run.learners if unmerged.ingredient is None),
            ],
            **_trainings(trials),
            now=now or datetime.now(UTC),
            stories=[_story(client, run, dataset, subset, diagnosis) for subset in subsets],
            overlaps=[
                (
                    f"{first.strategy} and {second.strategy}",
                    overlap(first.indices, second.indices, labels_N),
                )
                for first, second in combinations(subsets, 2)
            ],
            fit=fit_text,
            noise=noise_text(diagnosis.findings) if diagnosis else "",
            config=json.dumps(run.config.model_dump(mode="json"), indent=2),
            recipe=json.dumps(identity["recipe"], indent=2) if identity else "",
        )
    )
    return page


def render_comparison(comparison: tuple[dict[str, Any], Sequence[Trial]]) -> str:
    """Return the page of a comparison alone, of the content of a file of trials."""
    identity, trials = comparison
    _require_trials(trials)
    page: str = (
        open_templates("lipt report")
        .get_template("comparison.html")
        .render(
            identity={"data_source": "", **identity},
            settings=json.dumps(identity, indent=2),
            small=False,
            **_trainings(trials),
            now=datetime.now(UTC),
        )
    )
    return page


def _require_trials(trials: Sequence[Trial]) -> None:
    if not trials:
        raise errors.ConfigError(
            "the comparison has no trial yet. Let 'lipt compare' go on, or leave --comparison out."
        )


def _trainings(trials: Sequence[Trial]) -> dict[str, Any]:
    rows = outcomes(trials)
    tables = {"answers": answers(rows), "alternatives": alternatives(rows)}
    return {"cells": cells, "rows": rows, **tables}
