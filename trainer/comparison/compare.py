"""Comparison: selects the subsets of a plan, trains on each, and stores the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lipt.common.errors import BudgetError, ConfigError
from lipt.common.process.devices import resolve_device
from lipt.common.states import RunState
from lipt.common.tensor_files import Weights
from lipt.core.catalogue import StrategyView
from lipt.data.dataset import Dataset
from lipt.data.held_out import comparable
from lipt.data.targets.kinds import TargetKind
from lipt.models.registry import ModelSource, OwnModel
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.texts import TextScores, TextTarget, texts_scored
from lipt.trainer.comparison.trial import (
    BASELINES,
    BASELINES_OF_TEXTS,
    EVERYTHING,
    FIXED,
    LATE,
    RESAMPLED,
    UNTRAINED,
    Cell,
    ComparisonPlan,
    Trial,
    TrialFile,
    converged,
    label,
)
from lipt.trainer.main_training import Recipe, Schedule, Trained, fit
from lipt.trainer.main_training.records import OnStep
from lipt.trainer.resampling.samplers import RepeatedRandom
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView, RunView

# Accuracy is measured more often late, where the learning rate is low and accuracy rises most.
_SCHEDULE = Schedule(test_at=(0.2, 0.4, 0.6, 0.7, 0.8, 0.9), subset_at=(LATE,))


def run_of(client: Client, plan: ComparisonPlan, seed: int) -> RunView:
    """Return a seed's ready run: that of an interrupted comparison, or a new one."""
    overrides = plan.overrides(seed)
    settings = json.dumps(overrides, sort_keys=True, default=str).encode()
    name = f"compare-{hashlib.sha256(settings).hexdigest()[:10]}-{seed}"
    ended = (RunState.FAILED, RunState.CANCELLED)
    same = [run for run in client.runs() if run.name == name and run.state not in ended]
    run = same[0] if same else client.start_run(overrides, name=name)
    return client.wait(run.run_id)


def compare(
    strategies: Sequence[StrategyView] | None,
    plan: ComparisonPlan,
    train: Dataset,
    test: Dataset,
    *,
    model: ModelSource | None = None,
    texts: TextTarget | None = None,
    pretrain: Callable[[int], Any],
    choose: Callable[..., Subset],
    out: Path,
    device: str = "auto",
    allowed_modules: Collection[str] = (),
    print_line: Callable[[str], None],
    on_step: OnStep = lambda *_: None,
) -> list[Trial]:
    """Train every strategy's subsets and the baselines, all for equally many optimizer steps.

    `strategies` is None where their names are checked already. With `texts`, trainings start from
    its theta*, and have its scores. `model` is a live one, in place of the plan's by name.
    `pretrain` returns a seed's run, with `lowered_defaults` and `costs`. `choose` takes this run, a
    strategy, and the fraction, proxy and soft_labels by name. Trials in `out` are not repeated.
    """
    _check(strategies, plan, train)
    test = comparable(test, train)
    resolve_device(device)
    steps = plan.recipe.num_steps(round(max(plan.fractions) * len(train)))
    recipe = plan.recipe.model_copy(update={"steps": steps})
    recipe = recipe.fitted_to(train.inputs, train.target.kind)
    identity = {
        "model": plan.model,
        "recipe": recipe.model_dump(mode="json"),
        "run": json.loads(json.dumps(dict(plan.run_overrides))),
        "data": train.fingerprint,
        "data_source": train.source,
        "test": test.fingerprint,
        **({} if plan.proxy is None else {"proxy": plan.proxy}),
        **({} if texts is None else {"target": texts.fingerprint}),
    }
    trials = TrialFile(out, identity)
    if trials.trials:
        print_line(
            f"{out}: {len(trials.trials)} trainings are in it; the comparison goes on after them"
        )
    print_line(f"main training: {steps} steps of {recipe.batch_size}; {recipe.augmentation_text}")
    where: dict[str, Any] = {"device": device, "allowed_modules": allowed_modules}
    trained_model = model.make if isinstance(model, OwnModel) else plan.model
    training = partial(fit, trained_model, train, test=test, on_step=on_step, **where)
    scored = partial(texts_scored, plan.model, train, test, recipe, **where)
    shared = {"num_examples": len(train), "chance": test.target.chance(test.targets_N)}
    for seed in plan.seeds:
        run = None
        for cell in plan.cells(seed):
            if any(trial.cell == cell for trial in trials.trials):
                continue
            subset, source, measures = None, None, shared
            if cell.strategy == RESAMPLED:
                source = RepeatedRandom(train, round(cell.fraction * len(train)), seed)
                subset = source.subset
            elif cell.strategy not in (EVERYTHING, UNTRAINED):
                # All examples with soft labels are a subset as well.
                name = FIXED[0] if cell.name == EVERYTHING else cell.name
                if run is None:
                    print_line(f"seed {seed}: the run")
                    run = pretrain(seed)
                    if run.lowered_defaults:
                        print_line(f"seed {seed}: fitted to the data: {run.lowered_defaults}")
                asked = {"proxy": plan.proxy, "soft_labels": cell.is_soft}
                subset = choose(run, name, fraction=cell.fraction, **asked)
                measures = shared | selection_costs(name, run.costs, subset.manifest)
            if subset is not None:
                measures = {**measures, "num_examples": len(subset)}
            begins_with = None if texts is None else texts.starts(seed)
            trial = _trial(cell, subset, source, recipe, training, measures, begins_with, scored)
            trials.add(trial)
            print_line(
                f"seed {seed}, {cell.fraction:.0%}, {label(cell.strategy)}: "
                f"{trial.test_accuracy:.1%} on the test set, {trial.training_seconds:.0f} s"
            )
    return trials.trials


def _trial(
    cell: Cell,
    subset: Subset | None,
    source: RepeatedRandom | None,
    recipe: Recipe,
    training: Callable[..., Trained],
    measures: Mapping[str, Any],
    begins_with: Weights | None,
    scored: Callable[[Weights], TextScores],
) -> Trial:
    """Train, from `begins_with` where texts are compared, and then score the trained weights."""
    if begins_with is not None and cell.strategy == UNTRAINED:
        return _untrained(cell, scored(begins_with), measures)
    stays = cell.name not in (EVERYTHING, RESAMPLED)
    changes: dict[str, float] = {"seed": cell.seed}
    if subset is not None and cell.is_soft:
        changes["soft_labels"] = subset.recommended_alpha
    trained = training(
        subset=subset,
        reselect=source,
        initial=begins_with,
        recipe=recipe.model_copy(update=changes),
        # Accuracy on the training examples is costly for all of the data.
        schedule=_SCHEDULE if stays else replace(_SCHEDULE, subset_at=None),
    )
    at_start = {} if begins_with is None else _measures_of(scored(trained.weights))
    return Trial(
        **vars(cell),
        num_steps=trained.num_steps,
        weighted=subset is not None and recipe.weighted and bool((subset.weights != 1).any()),
        test_accuracy=trained.evaluations[-1].accuracy,
        subset_accuracy=trained.subset_accuracies[-1][1] if stays else None,
        converged=stays and converged(trained.subset_accuracies, trained.num_steps),
        training_seconds=trained.seconds - trained.evaluation_seconds,
        digest="" if subset is None else subset.digest,
        evaluations=trained.evaluations,
        score_name=trained.kind.score_name,
        **measures,
        **at_start,
    )


def _untrained(cell: Cell, scores: TextScores, measures: Mapping[str, Any]) -> Trial:
    """theta* itself."""
    return Trial(
        **vars(cell),
        num_steps=0,
        weighted=False,
        test_accuracy=scores.token_accuracy,
        subset_accuracy=None,
        converged=False,
        training_seconds=0.0,
        digest="",
        score_name=TargetKind.TOKENS.score_name,
        **measures,
        **_measures_of(scores),
    )


def _measures_of(scores: TextScores) -> dict[str, Any]:
    return {
        "test_loss": scores.loss,
        "test_loss_error": scores.loss_error,
        "exact_match": scores.exact_match,
    }


def selection_costs(
    strategy: str, run: CostsView | None, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    if run is None or (strategy in FIXED and not manifest.get("soft_labels")):
        return {}
    costs = {"selection_seconds": float(manifest["costs"]["selection_seconds"])}
    if (warm_up := manifest["costs"].get("warm_up_seconds")) is not None:
        return costs | {"pretraining_seconds": float(warm_up)}
    if not manifest["uses_pretraining"]:
        return costs
    seconds = run.initialization_seconds + run.sharding_seconds
    seconds += run.training_seconds + run.merging_seconds
    sent = run.bytes_to_workers + run.bytes_from_workers
    return costs | {"pretraining_seconds": seconds, "bytes_sent": sent}


def _check(strategies: Sequence[StrategyView] | None, plan: ComparisonPlan, train: Dataset) -> None:
    baselines = BASELINES if strategies is not None else BASELINES_OF_TEXTS
    known = {strategy.name: strategy for strategy in strategies or ()}
    for what, names, there in (
        ("baseline", plan.baselines, baselines),
        ("strategy", plan.strategies if known else (), known),
    ):
        for name in names:
            if name not in there:
                choice = ", ".join(there)
                raise ConfigError(f"there is no {what} {name!r}. Choose from: {choice}.")
    for name in plan.strategies:
        if name in known and "paired features" in known[name].needs:
            raise ConfigError(
                f"{name} needs features of pairs, which a comparison does not have. Leave it "
                "out; 'lipt subset get --features' gives its subset."
            )
    if not round(min(plan.fractions) * len(train)):
        raise BudgetError(
            f"fraction {min(plan.fractions)} of {len(train)} examples keeps none. Choose at "
            f"least {1 / len(train):.3g}."
        )
    decided = {"seed", "model"} & plan.run_overrides.keys()
    if decided or "seed" in plan.recipe.model_fields_set:
        raise ConfigError(
            f"{min(decided, default='seed')} is set by the comparison for every run and training. "
            "Drop that setting."
        )
