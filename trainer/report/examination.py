"""Pages: templates and drawings of all, and the page of a diagnosis in one HTML file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.data.sources.image_files import imagefolder_rows
from lipt.common.errors import DiagnosisError
from lipt.common.images.formats import data_url
from lipt.common.imports import import_extra
from lipt.common.inputs.specs import ImageSpec
from lipt.common.maps import placed, principal_components
from lipt.common.text import escaped, format_bytes
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.findings import facts, fit_text, proxy_text
from lipt.trainer.writing.formatting import format_percent

WIDTH, HEIGHT = 480, 400
_LEFT, _RIGHT, _TOP, _BELOW = 56, WIDTH - 12, 12, 44
_MAP_MARGIN = 14
# Values closer together than this are drawn as one.
_FLAT = 1e-9


@dataclass(frozen=True)
class Scale:
    """Places of values on a line: `low` lies at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        share = (value - self.low) / max(self.high - self.low, _FLAT)
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class Plot:
    """Axes of a plot, in pixels from its upper left corner, and the values marked on y."""

    height: int
    x: Scale
    y: Scale
    y_ticks: Sequence[float]
    width: int = WIDTH


def plot(height: int, num_places: float, ys: Sequence[float]) -> Plot:
    """A plot whose x runs from 0 to `num_places`, and whose y spans some values."""
    y_ticks = nice_ticks(min(ys), max(ys))
    y = Scale(y_ticks[0], y_ticks[-1], height - _BELOW, _TOP)
    return Plot(height, Scale(0, num_places, _LEFT, _RIGHT), y, y_ticks)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers, the first at or below `low`, the last at or above `high`."""
    span = next(span for span in (high - low, abs(high), 1.0) if span > _FLAT)
    raw = span / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True)
class Point:
    """An example on the map; x and y in pixels from its upper left corner."""

    row: int
    label: int
    x: float
    y: float


def draw(ids_M: Tensor, labels_N: NDArray[np.int64], features_MD: Tensor) -> list[Point]:
    """The map of M of N examples, by the first two principal components of their features."""
    places_M2 = principal_components(features_MD)
    pixels_M2 = placed(places_M2, width=WIDTH, height=HEIGHT, margin=_MAP_MARGIN)
    return [
        Point(row, int(labels_N[row]), x, y)
        for row, (x, y) in zip(ids_M.tolist(), pixels_M2.tolist(), strict=True)
    ]


def open_templates(needed_for: str) -> Any:
    """jinja2's environment with the templates of this package.

    Args:
        needed_for: the command that makes the page, for the message where jinja2 is missing.
    """
    jinja2 = import_extra("jinja2", package="jinja2", extra="report", needed_for=needed_for)
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = format_percent
    environment.filters["size"] = format_bytes
    environment.filters["thousands"] = "{:,}".format
    return environment


def _finalize(value: Any) -> Any:
    return escaped(value, keep="\n\t") if type(value) is str else value


def _source(name: str) -> str:
    return resources.files("lipt.trainer.report").joinpath(name).read_text("utf-8")


NUM_SUSPECTS = 48
NUM_GROUPS = 12
NUM_PER_GROUP = 8
NUM_OUTLIERS = 24
_PICTURE_PIXELS = 112
# Images up to this many pixels a side are scaled up with sharp edges.
_SMALL_PIXELS = 64
_COARSE_PIXELS = 16


def pictures_of(dataset: Dataset, rows: Sequence[int], max_pixels: int) -> list[str]:
    """The data URLs of some examples; empty ones where examples are no images."""
    if not rows or not isinstance(dataset.inputs, ImageSpec):
        return [""] * len(rows)
    images_BCHW = dataset.images(torch.tensor(rows))
    return [data_url(image_CHW, max_pixels) for image_CHW in images_BCHW]


def are_small(dataset: Dataset) -> bool:
    """Whether its pictures are scaled up where they are shown."""
    shape = dataset.inputs
    return isinstance(shape, ImageSpec) and max(shape.height, shape.width) <= _SMALL_PIXELS


def coarse_values(dataset: Dataset, ids_N: Tensor) -> Tensor:
    """Examples as vectors of their own values, images scaled down; float32, N x D."""
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


@dataclass(frozen=True)
class ExampleView:
    """An example, as a page shows it."""

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
class Examination:
    """What the page shows of single examples."""

    diagnosis: Diagnosis
    source: str
    has_pictures: bool
    small: bool
    suspects: tuple[ExampleView, ...]
    groups: tuple[GroupView, ...]
    outliers: tuple[ExampleView, ...]


def examine(diagnosis: Diagnosis, dataset: Dataset | None = None) -> Examination:
    """Choose what is shown; with pictures where the data is given."""
    if dataset is not None:
        require_same(diagnosis, dataset)
    suspects = [issue.id for issue in diagnosis.label_issues()[:NUM_SUSPECTS]]
    outliers = diagnosis.outliers()[:NUM_OUTLIERS].tolist()
    found = [
        (len(group), group[:NUM_PER_GROUP].tolist(), len(set(diagnosis.given_label[group])) > 1)
        for group in diagnosis.duplicate_groups()
    ]
    # Labels that disagree are two faults at once.
    groups = sorted(found, key=lambda group: not group[2])[:NUM_GROUPS]
    shown = {*suspects, *outliers, *(row for _, rows, _ in groups for row in rows)}
    views = example_views(diagnosis, sorted(shown), dataset)
    source = diagnosis.manifest.get("data")
    named = str(source.get("source", "")) if isinstance(source, dict) else ""
    return Examination(
        diagnosis=diagnosis,
        source=named if dataset is None else dataset.source,
        has_pictures=dataset is not None and isinstance(dataset.inputs, ImageSpec),
        small=dataset is not None and are_small(dataset),
        suspects=tuple(views[row] for row in suspects),
        groups=tuple(
            GroupView(count, tuple(views[row] for row in rows), conflicting)
            for count, rows, conflicting in groups
        ),
        outliers=tuple(views[row] for row in outliers),
    )


def file_paths(dataset: Dataset) -> list[str] | None:
    """The absolute paths of a data set's images, in order; None where they are no files."""
    # The rows may lie in memory by now, without the names of their files.
    name, _, path = dataset.source.partition(":")
    if name != "imagefolder":
        return None
    rows = imagefolder_rows(dataset.source, str(Path(path).expanduser()))
    return [str(Path(rows.where(row)).absolute()) for row in range(len(rows))]


def require_same(diagnosis: Diagnosis, dataset: Dataset) -> None:
    """Refuse a diagnosis of other data."""
    own = dataset.fingerprint_like(diagnosis.fingerprint)
    if own != diagnosis.fingerprint or len(dataset) != len(diagnosis):
        raise DiagnosisError(
            f"the diagnosis is of data with fingerprint {diagnosis.fingerprint} "
            f"({len(diagnosis)} examples), but {dataset.source} has {own} "
            f"({len(dataset)}). Give the coordinator's own data, or leave --data out."
        )


def example_views(
    diagnosis: Diagnosis, rows: Sequence[int], dataset: Dataset | None
) -> dict[int, ExampleView]:
    """Some examples by their rows, in the given order, with pictures where the data is given."""
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


def render_diagnosis(examination: Examination) -> str:
    """The page."""
    environment = open_templates("the page of lipt diagnose")
    findings = examination.diagnosis.findings
    curve = findings.learnability
    page: str = environment.get_template("diagnosis.html").render(
        examination=examination,
        diagnosis=examination.diagnosis,
        findings=findings,
        facts=facts(findings),
        fit=fit_text,
        proxy=proxy_text(findings),
        curve=curve,
        plot=plot(280, len(curve.sizes), curve.accuracies) if curve.sizes else None,
        noise={item.label: item for item in findings.label_errors.per_class},
        needed={item.label: item.examples_for_90 for item in findings.redundancy.per_class},
        seconds=sum(findings.seconds.values()),
    )
    return page
