"""Contents of a report: gathered into one frozen value before a page is made of it.

Shapes: N examples that are drawn, B of a batch, D features.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.determinism import derive_seed
from lipt.common.errors import (
    ConfigError,
    InputError,
    LifecycleError,
    RequestError,
    SignalsError,
    SubsetError,
)
from lipt.common.models import find_head
from lipt.common.models.modes import evaluation_mode
from lipt.common.process.devices import resolve_device
from lipt.common.subsets import Overlap, overlap
from lipt.common.weights.files import read_weights
from lipt.common.weights.specs import specs_of
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.baselines import BASELINES
from lipt.trainer.comparison.outcomes import Outcome, outcomes
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.comparison.verdict import Answers, answers, verdict
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.steps import place_model
from lipt.trainer.report.examination import (
    ExampleView,
    are_small,
    coarse_values,
    example_views,
    pictures_of,
    require_same,
)
from lipt.trainer.report.plot import ExampleMap, draw, rows_to_draw
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import InfoView, RunView


@dataclass(frozen=True, kw_only=True)
class NamedOverlap(Overlap):
    """What two subsets have in common, which are told apart by their strategies."""

    first: str
    second: str


def overlaps(subsets: Sequence[Subset], labels_N: NDArray[np.int64]) -> tuple[NamedOverlap, ...]:
    """The overlap of every two of some subsets, in their order."""
    return tuple(
        NamedOverlap(
            first=first.strategy,
            second=second.strategy,
            **vars(overlap(first.indices, second.indices, labels_N)),
        )
        for first, second in combinations(subsets, 2)
    )


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


_BATCH_SIZE = 256


def features_of(
    client: Client,
    run: RunView,
    dataset: Dataset,
    ids_N: Tensor,
    allowed_modules: Collection[str] = (),
) -> tuple[Tensor, str]:
    """The features of some examples, and whose they are, in words.

    Args:
        client: connected to the run's coordinator, which has the merged weights.
        run: the run.
        dataset: the coordinator's data.
        ids_N: row numbers, int64.
        allowed_modules: modules whose factories may be imported for the run's model.

    Returns:
        Finite float32, N x D, on the CPU: what enters the head of theta_p, or their values
        where the model cannot be had here, and then why.

    Raises:
        UnavailableError: the coordinator is away.
    """
    try:
        return _by_merged_model(client, run, dataset, ids_N, allowed_modules), "theta_p"
    except (RequestError, InputError, LifecycleError) as error:
        return coarse_values(dataset, ids_N), f"their own values, not by theta_p: {error}"


def _by_merged_model(
    client: Client,
    run: RunView,
    dataset: Dataset,
    ids_N: Tensor,
    allowed_modules: Collection[str],
) -> Tensor:
    recipe = Recipe(seed=run.config.seed)
    device = resolve_device("auto")
    model, forward_pass = place_model(run.config.model, dataset, recipe, device, allowed_modules)
    content = client.weights(run.run_id)
    specs = specs_of(model.state_dict())
    model.load_state_dict(read_weights(content, like=specs, max_bytes=len(content)))
    _, head = find_head(model)
    parts: list[Tensor] = []
    keeping = head.register_forward_pre_hook(lambda _, args: parts.append(args[0].float().cpu()))
    with keeping, evaluation_mode(model), torch.inference_mode():
        for ids_B in torch.split(ids_N, _BATCH_SIZE):
            forward_pass(model, dataset.examples(ids_B))
    features_ND = torch.cat(parts)
    if not features_ND.isfinite().all():
        raise SignalsError("theta_p's features of some examples are not finite.")
    return features_ND


NUM_SUSPECTS = 24


@dataclass(frozen=True)
class Report:
    """What the page is made of.

    class_names: of the data; empty where nothing was chosen.
    random_choice: examples that were drawn at random, to compare chosen ones with.
    small: whether its pictures are scaled up.
    example_map: where examples lie; None where nothing was chosen.
    overlaps: of the stories' subsets, and of those that were compared at their fractions.
    diagnosis, suspects: what looks wrong in the data, and the worst of it; None where it was
        not asked for.
    made_at: when it was gathered.
    """

    run: RunView
    info: InfoView
    stories: tuple[SubsetStory, ...]
    outcomes: tuple[Outcome, ...]
    answers: tuple[Answers, ...]
    verdict: str
    comparison: dict[str, Any] | None
    class_names: tuple[str, ...] = ()
    random_choice: tuple[Thumbnail, ...] = ()
    small: bool = False
    example_map: ExampleMap | None = None
    overlaps: tuple[NamedOverlap, ...] = ()
    diagnosis: Diagnosis | None = None
    suspects: tuple[ExampleView, ...] = ()
    made_at: datetime | None = None


def gather(
    client: Client,
    run: RunView,
    dataset: Dataset,
    requests: Sequence[tuple[str, float]],
    comparison: tuple[dict[str, Any], Sequence[Trial]] | None = None,
    *,
    diagnosis: Diagnosis | None = None,
    allowed_modules: Collection[str] = (),
    now: datetime | None = None,
) -> Report:
    """Ask the coordinator for what is missing.

    Args:
        client: connected to the run's coordinator.
        run: ready.
        dataset: the coordinator's data, for the pictures and the map.
        requests: strategies and fractions to tell of.
        comparison: what `lipt compare` has found.
        diagnosis: of the same data, for its suspects.
        allowed_modules: modules whose factories may be imported for the run's model.
        now: the date of the page.

    Raises:
        SubsetError: `dataset` is not the run's, or not the comparison's.
        DiagnosisError: the diagnosis is of other data.
        ConfigError: the comparison has no trial.
    """
    own = dataset.fingerprint_like(run.fingerprint)
    if own != run.fingerprint:
        raise SubsetError(
            f"run {run.label} was made on data with fingerprint {run.fingerprint}, but "
            f"{dataset.source} has {own}. Give the coordinator's own data."
        )
    if diagnosis is not None:
        require_same(diagnosis, dataset)
    if comparison is not None:
        _require_trials_on(dataset, *comparison)
    rows = outcomes(comparison[1]) if comparison else []
    stories = tuple(
        tell_story(client, run, dataset, strategy, fraction, diagnosis)
        for strategy, fraction in requests
    )
    suspects = [issue.id for issue in diagnosis.label_issues()] if diagnosis else []
    worst = suspects[:NUM_SUSPECTS]
    subsets = [story.subset for story in stories]
    others = _compared(client, run, requests, comparison)
    return Report(
        run=run,
        info=client.info(),
        stories=stories,
        outcomes=tuple(rows),
        answers=tuple(answers(rows)),
        verdict=verdict(rows),
        comparison=comparison[0] if comparison else None,
        class_names=dataset.class_names,
        random_choice=thumbnails_at_random(dataset, run.config.seed) if stories else (),
        small=are_small(dataset),
        example_map=_map(client, run, dataset, subsets, suspects, allowed_modules),
        overlaps=overlaps([*subsets, *others], dataset.labels_N.numpy()),
        diagnosis=diagnosis,
        suspects=tuple(example_views(diagnosis, worst, dataset).values()) if diagnosis else (),
        made_at=now,
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


def _compared(
    client: Client,
    run: RunView,
    requests: Sequence[tuple[str, float]],
    comparison: tuple[dict[str, Any], Sequence[Trial]] | None,
) -> list[Subset]:
    """The subsets of strategies that were compared at a story's fraction, and are no story."""
    if comparison is None:
        return []
    identity, trials = comparison
    asked = {"proxy": identity["proxy"]} if identity.get("proxy") else {}
    fractions = {fraction for _, fraction in requests}
    compared = dict.fromkeys(
        (trial.strategy, trial.fraction)
        for trial in trials
        if trial.strategy not in BASELINES and trial.fraction in fractions and not trial.every
    )
    return [
        client.subset(run.run_id, strategy, fraction=fraction, **asked)
        for strategy, fraction in compared
        if (strategy, fraction) not in requests
    ]


def _map(
    client: Client,
    run: RunView,
    dataset: Dataset,
    subsets: Sequence[Subset],
    suspects: Sequence[int],
    allowed_modules: Collection[str],
) -> ExampleMap | None:
    if not subsets:
        return None
    chosen = [subset.indices for subset in subsets]
    ids_M = rows_to_draw(len(dataset), chosen, suspects, run.config.seed)
    features_MD, seen_by = features_of(client, run, dataset, ids_M, allowed_modules)
    return draw(ids_M, dataset.labels_N.numpy(), features_MD, seen_by)
