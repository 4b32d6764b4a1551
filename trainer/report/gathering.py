"""Contents of a report: gathered into one frozen value before a page is made of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from lipt.common.data import Dataset
from lipt.common.errors import ConfigError, SubsetError
from lipt.common.maps import rows_to_draw
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.baselines import BASELINES
from lipt.trainer.comparison.outcomes import Outcome, outcomes
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.comparison.verdict import Answers, answers, verdict
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.report.examining import ExampleView, example_views, require_same
from lipt.trainer.report.features import features_of
from lipt.trainer.report.map import ExampleMap, draw
from lipt.trainer.report.overlap import NamedOverlap, overlaps
from lipt.trainer.report.pictures import are_small
from lipt.trainer.report.stories import (
    SubsetStory,
    Thumbnail,
    tell_story,
    thumbnails_at_random,
)
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import InfoView, RunView

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
    see = partial(features_of, client, run, dataset, allowed_modules=allowed_modules)
    return draw(ids_M, dataset.labels_N.numpy(), see)
