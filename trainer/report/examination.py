"""Page of a diagnosis: what it shows of single examples, and one HTML file of it.

Shapes: C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.data.sources.image_files import imagefolder_rows
from lipt.common.errors import DiagnosisError
from lipt.common.images.formats import data_url
from lipt.common.inputs.specs import ImageSpec
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.findings import ClassNoise, Learnability, facts, fit_text, proxy_text
from lipt.trainer.report.plot import LEFT, RIGHT, TOP, Plot, Scale, nice_ticks, open_templates

# Images up to this many pixels a side are scaled up with sharp edges.
_SMALL_PIXELS = 64
_COARSE_PIXELS = 16


def pictures_of(dataset: Dataset, rows: Sequence[int], max_pixels: int) -> list[str]:
    """The data URLs of some examples; empty ones where examples are no images."""
    if not rows or not has_pictures(dataset):
        return [""] * len(rows)
    images_BCHW = dataset.images(torch.tensor(rows))
    return [data_url(image_CHW, max_pixels) for image_CHW in images_BCHW]


def has_pictures(dataset: Dataset) -> bool:
    """Whether its examples are images."""
    return isinstance(dataset.inputs, ImageSpec)


def are_small(dataset: Dataset) -> bool:
    """Whether its pictures are scaled up where they are shown."""
    shape = dataset.inputs
    return isinstance(shape, ImageSpec) and max(shape.height, shape.width) <= _SMALL_PIXELS


def coarse_values(dataset: Dataset, ids_N: Tensor) -> Tensor:
    """What examples are by themselves; float32, N x D."""
    shape = dataset.inputs
    if not isinstance(shape, ImageSpec):
        stored = dataset.examples(ids_N)
        columns = [stored] if isinstance(stored, Tensor) else list(stored.values())
        values_ND = torch.cat([column.float().reshape(len(ids_N), -1) for column in columns], dim=1)
        return values_ND.nan_to_num()
    sides = (min(shape.height, _COARSE_PIXELS), min(shape.width, _COARSE_PIXELS))
    parts = [
        functional.adaptive_avg_pool2d(dataset.images(ids_B).float(), sides).flatten(start_dim=1)
        for ids_B in torch.split(ids_N, 256)
    ]
    return torch.cat(parts)


NUM_SUSPECTS = 48
NUM_GROUPS = 12
NUM_PER_GROUP = 8
NUM_OUTLIERS = 24
_PICTURE_PIXELS = 112


@dataclass(frozen=True)
class ExampleView:
    """An example, as the page shows it."""

    row: int
    given: str
    suggested: str
    quality: float
    file: str
    picture: str


@dataclass(frozen=True)
class GroupView:
    """Duplicates of each other, the first of them; `count` is of all."""

    count: int
    examples: tuple[ExampleView, ...]
    conflicting: bool


@dataclass(frozen=True)
class ClassView:
    """A class: its examples, its noise where it was estimated, and how few stand for it."""

    name: str
    count: int
    noise: ClassNoise | None
    examples_for_90: int | None


@dataclass(frozen=True)
class Examination:
    """What the page is made of."""

    diagnosis: Diagnosis
    source: str
    has_pictures: bool
    small: bool
    suspects: tuple[ExampleView, ...]
    groups: tuple[GroupView, ...]
    outliers: tuple[ExampleView, ...]
    classes: tuple[ClassView, ...]
    matrix: tuple[tuple[int, ...], ...]


def examine(diagnosis: Diagnosis, dataset: Dataset | None = None) -> Examination:
    """Choose what is shown, and make its pictures.

    Args:
        diagnosis: what was found.
        dataset: the data that it is about, for pictures.
    """
    if dataset is not None:
        require_same(diagnosis, dataset)
    suspects = [issue.id for issue in diagnosis.label_issues()[:NUM_SUSPECTS]]
    groups = _interesting_groups(diagnosis)
    outliers = diagnosis.outliers()[:NUM_OUTLIERS].tolist()
    shown = {*suspects, *outliers, *(row for _, rows, _ in groups for row in rows)}
    views = example_views(diagnosis, sorted(shown), dataset)
    source = diagnosis.manifest.get("data")
    named = str(source.get("source", "")) if isinstance(source, dict) else ""
    return Examination(
        diagnosis=diagnosis,
        source=named if dataset is None else dataset.source,
        has_pictures=dataset is not None and has_pictures(dataset),
        small=dataset is not None and are_small(dataset),
        suspects=tuple(views[row] for row in suspects),
        groups=tuple(
            GroupView(count, tuple(views[row] for row in rows), conflicting)
            for count, rows, conflicting in groups
        ),
        outliers=tuple(views[row] for row in outliers),
        classes=_classes(diagnosis),
        matrix=_matrix(diagnosis),
    )


def file_paths(dataset: Dataset) -> list[str] | None:
    """The absolute paths of a data set's images, in order; None where they are no files."""
    # The rows may lie in memory by now, without the names of their files.
    name, _, path = dataset.source.partition(":")
    if name != "imagefolder":
        return None
    rows = imagefolder_rows(dataset.source, Path(path).expanduser())
    return [str(Path(rows.where(row)).absolute()) for row in range(len(rows))]


def require_same(diagnosis: Diagnosis, dataset: Dataset) -> None:
    """Refuse data that a diagnosis is not about."""
    own = dataset.fingerprint_like(diagnosis.fingerprint)
    if own != diagnosis.fingerprint or len(dataset) != len(diagnosis):
        raise DiagnosisError(
            f"the diagnosis is of data with fingerprint {diagnosis.fingerprint} "
            f"({len(diagnosis)} examples), but {dataset.source} has {own} "
            f"({len(dataset)}). Give the coordinator's own data, or leave --data out."
        )


def _interesting_groups(diagnosis: Diagnosis) -> list[tuple[int, list[int], bool]]:
    found = [
        (len(group), group[:NUM_PER_GROUP].tolist(), len(set(diagnosis.given_label[group])) > 1)
        for group in diagnosis.duplicate_groups()
    ]
    # Labels that disagree are two faults at once.
    return sorted(found, key=lambda group: not group[2])[:NUM_GROUPS]


def example_views(
    diagnosis: Diagnosis, rows: Sequence[int], dataset: Dataset | None
) -> dict[int, ExampleView]:
    """Some examples by their rows, in the given order, with pictures where the data is there."""
    pictures = [""] * len(rows)
    files: list[str] | None = None
    if dataset is not None and rows:
        pictures = pictures_of(dataset, rows, _PICTURE_PIXELS)
        files = file_paths(dataset)
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


def _classes(diagnosis: Diagnosis) -> tuple[ClassView, ...]:
    findings = diagnosis.findings
    noise = {item.label: item for item in findings.label_errors.per_class}
    needed = {item.label: item.examples_for_90 for item in findings.redundancy.per_class}
    return tuple(
        ClassView(name, count, noise.get(label), needed.get(label))
        for label, (name, count) in enumerate(
            zip(findings.class_names, findings.class_counts, strict=True)
        )
    )


# A table of more columns would not fit a page.
_MOST_COLUMNS = 16


def _matrix(diagnosis: Diagnosis) -> tuple[tuple[int, ...], ...]:
    num_classes = len(diagnosis.class_names)
    if num_classes > _MOST_COLUMNS or not diagnosis.suspect.any():
        return ()
    counts_CC = np.zeros((num_classes, num_classes), np.int64)
    suspects = np.flatnonzero(diagnosis.suspect)
    np.add.at(counts_CC, (diagnosis.given_label[suspects], diagnosis.suggested_label[suspects]), 1)
    return tuple(map(tuple, counts_CC.tolist()))


@dataclass(frozen=True)
class Tick:
    """A number of examples, and where it lies."""

    x: float
    size: int
    accuracy: float


def render_diagnosis(examination: Examination) -> str:
    """The page."""
    environment = open_templates("the page of lipt diagnose")
    findings = examination.diagnosis.findings
    noise = [item.noise for item in examination.classes if item.noise]
    curve = findings.learnability
    page: str = environment.get_template("diagnosis.html").render(
        examination=examination,
        diagnosis=examination.diagnosis,
        findings=findings,
        facts=facts(findings),
        fit=fit_text,
        proxy=proxy_text(findings),
        plot=learning_curve(curve) if len(curve.sizes) > 1 else None,
        ticks=curve_ticks(curve),
        noise=Scale(0.0, max([0.01, *(item.high for item in noise)]), 0, 100),
        has_needed=any(item.examples_for_90 is not None for item in examination.classes),
        heaviest=max([1, *(count for row in examination.matrix for count in row)]),
        seconds=sum(findings.seconds.values()),
    )
    return page


def learning_curve(curve: Learnability) -> Plot:
    """The plot of accuracy by number of examples, at least two; x is a logarithm."""
    y_ticks = nice_ticks(min(curve.accuracies), max(curve.accuracies))
    x = _size_scale(curve.sizes)
    return Plot(280, x, Scale(y_ticks[0], y_ticks[-1], 236, TOP), (), y_ticks)


def curve_ticks(curve: Learnability) -> list[Tick]:
    """Where each number of examples lies."""
    if len(curve.sizes) < 2:
        return []
    x = _size_scale(curve.sizes)
    return [
        Tick(x(math.log(max(size, 1))), size, accuracy)
        for size, accuracy in zip(curve.sizes, curve.accuracies, strict=True)
    ]


def _size_scale(sizes: Sequence[int]) -> Scale:
    # Room at both ends, where labels are centred on their points.
    low, high = (math.log(max(size, 1)) for size in (min(sizes), max(sizes)))
    return Scale(low, high, LEFT + 16, RIGHT - 16)
