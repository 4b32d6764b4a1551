"""Stories of subsets: what each keeps of every class, and which examples it wants most or least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lipt.common.data import Dataset
from lipt.common.determinism import derive_seed
from lipt.trainer.client.client import Client
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.report.pictures import pictures_of
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView

NUM_THUMBNAILS = 48
# Of these as many are seen at once; the others are folded.
NUM_UNFOLDED = 12
_THUMBNAIL_PIXELS = 64


@dataclass(frozen=True)
class ClassShare:
    """How many examples of a class there are, and how many were kept."""

    name: str
    available: int
    kept: int


@dataclass(frozen=True)
class Thumbnail:
    """An example as a picture."""

    row: int
    label: str
    data_url: str


@dataclass(frozen=True)
class SubsetStory:
    """One subset: its classes, and the examples that its strategy wants most and least.

    most_wanted: the strategy's choice where it may keep only these.
    least_wanted: what it leaves out where it may keep all but these.
    num_suspects: how many suspects of the diagnosis it keeps.
    """

    subset: Subset
    classes: tuple[ClassShare, ...]
    most_wanted: tuple[Thumbnail, ...]
    least_wanted: tuple[Thumbnail, ...]
    num_suspects: int = 0


def tell_story(
    client: Client,
    run: RunView,
    dataset: Dataset,
    strategy: str,
    fraction: float,
    diagnosis: Diagnosis | None,
) -> SubsetStory:
    """Ask the coordinator for a subset, and for what its strategy wants most and least."""
    subset = client.subset(run.run_id, strategy, fraction=fraction)
    everything = np.arange(len(dataset))
    available_C, kept_C = (count_classes(dataset, rows) for rows in (everything, subset.indices))
    count = min(NUM_THUMBNAILS, len(dataset) - 1)
    most = client.subset(run.run_id, strategy, budget=count)
    nearly_all = client.subset(run.run_id, strategy, budget=len(dataset) - count)
    left_out = np.setdiff1d(everything, nearly_all.indices)[:count]
    return SubsetStory(
        subset=subset,
        classes=tuple(map(ClassShare, dataset.class_names, available_C, kept_C)),
        most_wanted=thumbnails(dataset, most.indices),
        least_wanted=thumbnails(dataset, left_out),
        num_suspects=int(diagnosis.suspect[subset.indices].sum()) if diagnosis else 0,
    )


def thumbnails_at_random(dataset: Dataset, seed: int) -> tuple[Thumbnail, ...]:
    """As many examples as are shown of a subset, drawn from all of them."""
    generator = np.random.default_rng(derive_seed(seed, "random pictures"))
    count = min(NUM_THUMBNAILS, len(dataset))
    return thumbnails(dataset, np.sort(generator.choice(len(dataset), count, replace=False)))


def count_classes(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[int, ...]:
    """How many of some rows are of each of a data set's classes."""
    labels = dataset.labels_N.numpy()[rows]
    return tuple(np.bincount(labels, minlength=len(dataset.class_names)).tolist())


def thumbnails(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[Thumbnail, ...]:
    """Some examples as pictures."""
    pictures = pictures_of(dataset, rows.tolist(), _THUMBNAIL_PIXELS)
    return tuple(
        Thumbnail(row, dataset.class_names[int(dataset.labels_N[row])], picture)
        for row, picture in zip(rows.tolist(), pictures, strict=True)
    )
