"""Report: a run's contents are gathered into one frozen value, from which a page is made."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.errors import (
    ConfigError,
    InputError,
    LifecycleError,
    RequestError,
    SignalsError,
    SubsetError,
)
from lipt.common.maps import MOST_SUSPECTS, rows_to_draw
from lipt.common.models import find_head
from lipt.common.models.head import evaluation_mode
from lipt.common.process.devices import resolve_device
from lipt.common.subsets import overlap
from lipt.common.weights.files import read_weights
from lipt.common.weights.specs import specs_of
from lipt.trainer.client.client import Client
from lipt.trainer.comparison import table
from lipt.trainer.comparison.outcomes import Outcome, outcomes
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.findings import fit_text
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.steps import place_model
from lipt.trainer.report.examination import (
    HEIGHT,
    WIDTH,
    ExampleView,
    Point,
    are_small,
    coarse_values,
    draw,
    example_views,
    open_templates,
    plot,
    require_same,
)
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import InfoView, RunView

NUM_SUSPECTS = 24
_BATCH_SIZE = 256


def count_classes(dataset: Dataset, rows: NDArray[np.int64]) -> tuple[int, ...]:
    """How many of some rows are of each of a data set's classes."""
    labels = dataset.labels_N.numpy()[rows]
    return tuple(np.bincount(labels, minlength=len(dataset.class_names)).tolist())


def features_of(
    client: Client,
    run: RunView,
    dataset: Dataset,
    ids_N: Tensor,
    allowed_modules: Collection[str] = (),
) -> tuple[Tensor, str]:
    """Finite features of some examples (float32, N x D), and their origin in words.

    They are theta_p's, or the examples' own values where its model is unavailable here.

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


@dataclass(frozen=True)
class Report:
    """The content of a page."""

    run: RunView
    info: InfoView
    dataset: Dataset
    subsets: Sequence[Subset]
    points: Sequence[Point]
    # The origin of the features that place the points.
    seen_by: str
    comparison: dict[str, Any] | None
    outcomes: Sequence[Outcome]
    diagnosis: Diagnosis | None
    suspects: Sequence[ExampleView]
    made_at: datetime | None


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
    """Collect a ready run's report; the coordinator is asked for missing subsets.

    Args:
        client: connected to the run's coordinator.
        run: ready.
        dataset: the coordinator's data, for the pictures and the map.
        requests: strategies and fractions of the subsets.
        comparison: identity and trials of `lipt compare`.
        diagnosis: of the same data, for its suspects.
        allowed_modules: modules that the run's model may be imported from.
        now: the date of the page.
    """
    own = dataset.fingerprint_like(run.fingerprint)
    if own != run.fingerprint:
        raise SubsetError(
            f"run {run.label} was made on data with fingerprint {run.fingerprint}, but "
            f"{dataset.source} has {own}. Give the coordinator's own data."
        )
    if diagnosis is not None:
        require_same(diagnosis, dataset)
    identity, trials = comparison or (None, [])
    if identity is not None:
        _require_trials_on(dataset, identity, trials)
    subsets = [
        client.subset(run.run_id, strategy, fraction=fraction) for strategy, fraction in requests
    ]
    suspects = [issue.id for issue in diagnosis.label_issues()] if diagnosis else []
    points: list[Point] = []
    seen_by = ""
    if subsets:
        chosen = [subset.indices for subset in subsets]
        ids_M = rows_to_draw(len(dataset), chosen, suspects, run.config.seed)
        features_MD, seen_by = features_of(client, run, dataset, ids_M, allowed_modules)
        points = draw(ids_M, dataset.labels_N.numpy(), features_MD)
    views = example_views(diagnosis, suspects[:NUM_SUSPECTS], dataset) if diagnosis else {}
    return Report(
        run=run,
        info=client.info(),
        dataset=dataset,
        subsets=subsets,
        points=points,
        seen_by=seen_by,
        comparison=identity,
        outcomes=outcomes(trials),
        diagnosis=diagnosis,
        suspects=list(views.values()),
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
            "the comparison has no trial yet. Let 'lipt compare' go on, or leave --comparison out."
        )


def render(report: Report) -> str:
    """The page: one HTML file, no network, everything escaped."""
    environment = open_templates("lipt report")
    run, rows, dataset, diagnosis = report.run, report.outcomes, report.dataset, report.diagnosis
    # As the soup tried them; those that it never saw come last.
    learners = sorted(
        run.learners,
        key=lambda one: (one.ingredient is None, one.ingredient and one.ingredient.position),
    )
    tried = [learner.ingredient for learner in learners if learner.ingredient is not None]
    heights = [0.0, *(max(part.accuracy, part.soup_accuracy) for part in tried)]
    worst = diagnosis.label_issues()[:MOST_SUSPECTS] if diagnosis else ()
    names, labels_N = dataset.class_names, dataset.labels_N.numpy()
    page: str = environment.get_template("page.html").render(
        report=report,
        run=run,
        small=are_small(dataset),
        soup=run.soup,
        soup_plot=plot(240, len(tried), heights) if tried else None,
        costs=run.costs,
        learners=learners,
        tried=learners[: len(tried)],
        cells=table.cells,
        rows=rows,
        answers=table.answers(rows),
        instead=table.instead(rows),
        dates=", ".join(_dates(run, report.made_at)),
        stories=[_story(subset, dataset, diagnosis) for subset in report.subsets],
        overlaps=[
            (first.strategy, second.strategy, overlap(first.indices, second.indices, labels_N))
            for first, second in combinations(report.subsets, 2)
        ],
        class_names=names,
        suspected={issue.id: names[issue.suggested] for issue in worst},
        fit=fit_text,
        size=(WIDTH, HEIGHT),
        config=json.dumps(run.config.model_dump(mode="json"), indent=2),
        recipe=json.dumps(report.comparison["recipe"], indent=2) if report.comparison else "",
    )
    return page


def _story(subset: Subset, dataset: Dataset, diagnosis: Diagnosis | None) -> dict[str, Any]:
    everything = np.arange(len(dataset))
    available_C, kept_C = (count_classes(dataset, rows) for rows in (everything, subset.indices))
    return {
        "subset": subset,
        "rows": set(subset.indices.tolist()),
        "classes": list(zip(dataset.class_names, available_C, kept_C, strict=True)),
        "num_suspects": int(diagnosis.suspect[subset.indices].sum()) if diagnosis else 0,
    }


def _dates(run: RunView, made_at: datetime | None) -> list[str]:
    began, ended = run.created_at, run.ended_at
    after = ""
    if began is not None and ended is not None:
        after = f" after {timedelta(seconds=round((ended - began).total_seconds()))}"
    found = (("started", began, ""), (run.state, ended, after), ("page made", made_at, ""))
    return [
        f"{what} {when.astimezone(UTC):%Y-%m-%d %H:%M} UTC{then}"
        for what, when, then in found
        if when is not None
    ]
