"""Contents of a report: gathered into one frozen value before a page is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError, SubsetError
from lipt.common.inputs.specs import ImageSpec
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.outcomes import Outcome, outcomes
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.comparison.verdict import Answers, answers, verdict
from lipt.trainer.report.pictures import data_url
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import InfoView, RunView

NUM_THUMBNAILS = 12
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
    """

    subset: Subset
    classes: tuple[ClassShare, ...]
    most_wanted: tuple[Thumbnail, ...]
    least_wanted: tuple[Thumbnail, ...]


@dataclass(frozen=True)
class Report:
    """What the page is made of."""

    run: RunView
    info: InfoView
    stories: tuple[SubsetStory, ...]
    outcomes: tuple[Outcome, ...]
    answers: tuple[Answers, ...]
    verdict: str
    comparison: dict[str, Any] | None


def gather(
    client: Client,
    run: RunView,
    dataset: Dataset,
    requests: Sequence[tuple[str, float]],
    comparison: tuple[dict[str, Any], Sequence[Trial]] | None = None,
) -> Report:
    """Ask the coordinator for what is missing.

    Args:
        client: connected to the run's coordinator.
        run: ready.
        dataset: the coordinator's data, for the pictures.
        requests: strategies and fractions to tell of.
        comparison: what `lipt compare` has found.

    Raises:
        SubsetError: `dataset` is not the run's, or not the comparison's.
        ConfigError: the comparison has no trial.
    """
    own = dataset.fingerprint_like(run.fingerprint)
    if own != run.fingerprint:
        raise SubsetError(
            f"run {run.label} was made on data with fingerprint {run.fingerprint}, but "
            f"{dataset.source} has {own}. Give the coordinator's own data."
        )
    if comparison is not None:
        _require_trials_on(dataset, *comparison)
    rows = outcomes(comparison[1]) if comparison else []
    return Report(
        run=run,
        info=client.info(),
        stories=tuple(
            _story(client, run, dataset, strategy, fraction) for strategy, fraction in requests
        ),
        outcomes=tuple(rows),
        answers=tuple(answers(rows)),
        verdict=verdict(rows),
        comparison=comparison[0] if comparison else None,
    )


def _require_trials_on(dataset: Dataset, identity: dict[str, Any], trials: Sequence[Trial]) -> None:
    if identity.get("data") != dataset.fingerprint:
        raise SubsetError(
            f"the comparison was made on {identity.get('data_source')} with fingerprint "
            f"{identity.get('data')}, but {dataset.source} has {dataset.fingerprint}. Give the "
            "comparison of this data, or none."
        )
    if not trials:
        raise ConfigError(
            "the comparison has no trial yet, so it says nothing of any strategy. Let 'lipt "
            "compare' go on, or leave --comparison out."
        )


def _story(
    client: Client, run: RunView, dataset: Dataset, strategy: str, fraction: float
) -> SubsetStory:
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
        most_wanted=_thumbnails(dataset, most.indices),
        least_wanted=_thumbnails(dataset, left_out),
    )


def count_classes(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[int, ...]:
    """How many of some rows are of each of a data set's classes."""
    labels = dataset.labels_N.numpy()[rows]
    return tuple(np.bincount(labels, minlength=len(dataset.class_names)).tolist())


def _thumbnails(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[Thumbnail, ...]:
    if not isinstance(dataset.inputs, ImageSpec):
        return ()
    images_BCHW = dataset.images(torch.tensor(rows))
    return tuple(
        Thumbnail(
            row=row,
            label=dataset.class_names[int(dataset.labels_N[row])],
            data_url=data_url(image_CHW, _THUMBNAIL_PIXELS),
        )
        for row, image_CHW in zip(rows.tolist(), images_BCHW, strict=True)
    )
