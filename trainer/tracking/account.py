"""Account: all that a tracker is told of a run; pure, and the same for every tracker."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lipt.trainer.comparison.trial import Trial
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView
from lipt.trainer.writing.jsonable import to_jsonable

# Tag under which a tracker's search finds every subset of a run.
DIGESTS = "lipt.subset_digests"


@dataclass(frozen=True)
class Point:
    """A measure at a step: of the soup, after so many learners were offered."""

    name: str
    value: float
    step: int


@dataclass(frozen=True)
class TrackedSubset:
    """A subset as a tracker keeps it.

    name: of its folder or artifact: the strategy and the beginning of the digest.
    """

    name: str
    tags: Mapping[str, str]
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Account:
    """What a tracker is told.

    params: the configuration, flat, by names with dots.
    measures: accuracies, seconds and bytes at the run's end.
    curve: the soup's accuracy as it grew.
    files: by path; the report, tables, and the run itself as JSON.
    """

    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    measures: Mapping[str, float]
    curve: Sequence[Point]
    files: Mapping[str, bytes]
    subsets: Sequence[TrackedSubset]


def account_of(
    run: RunView,
    subsets: Iterable[Subset],
    *,
    files: Mapping[str, bytes],
    trials: Iterable[Trial] = (),
) -> Account:
    """All that is known of a run that is ready.

    Args:
        run: with its learners.
        subsets: that were chosen on it.
        files: by name, such as its report.
        trials: of a comparison, whose mean accuracies become measures.
    """
    tracked = [_tracked(subset) for subset in subsets]
    tags = {"lipt.run_id": run.run_id, "lipt.fingerprint": run.fingerprint}
    if run.pretrained_weights is not None:
        tags["lipt.theta_p_sha256"] = run.pretrained_weights.sha256
    if tracked:
        tags[DIGESTS] = ",".join(one.tags["lipt.subset_digest"] for one in tracked)
    record = json.dumps(to_jsonable(run), indent=2).encode()
    return Account(
        name=run.label,
        params=dict(_flat(to_jsonable(run.config))),
        tags=tags,
        measures=_measures(run) | _accuracies(trials),
        curve=_curve(run),
        files={"run.json": record, **files},
        subsets=tracked,
    )


def _tracked(subset: Subset) -> TrackedSubset:
    return TrackedSubset(
        name=f"{subset.strategy}-{subset.digest[:12]}",
        tags=subset.tags,
        files={
            "subset.json": subset.to_json().encode(),
            "manifest.json": json.dumps(to_jsonable(subset.manifest), indent=2).encode(),
        },
    )


def _flat(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _measures(run: RunView) -> dict[str, float]:
    measures: dict[str, float] = {}
    for group, view in (("soup", run.soup), ("costs", run.costs)):
        if view is not None:
            measures |= {f"{group}.{name}": float(item) for name, item in vars(view).items()}
    return measures


def _accuracies(trials: Iterable[Trial]) -> dict[str, float]:
    of_cells: defaultdict[str, list[float]] = defaultdict(list)
    for trial in trials:
        of_cells[f"accuracy.{trial.strategy}.{trial.fraction:g}"].append(trial.test_accuracy)
    return {name: fmean(values) for name, values in of_cells.items()}


def _curve(run: RunView) -> list[Point]:
    parts = [one.ingredient for one in run.learners if one.ingredient is not None]
    return [
        Point(name, value, part.position)
        for part in sorted(parts, key=lambda part: part.position)
        for name, value in (
            ("soup.accuracy_after", part.soup_accuracy),
            ("soup.learner_accuracy", part.accuracy),
            ("soup.alpha", part.alpha),
        )
    ]
