"""Comparison run: a pipeline per seed, and the trainings of its cells that are missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from lipt.common.data import Dataset
from lipt.common.errors import BudgetError, ConfigError, SubsetError
from lipt.common.process.devices import resolve_device
from lipt.common.states import RunState
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.baselines import EVERYTHING, REDRAWN, label, require_baselines
from lipt.trainer.comparison.bench import Bench
from lipt.trainer.comparison.choosing import Chooser, Run
from lipt.trainer.comparison.plan import Plan
from lipt.trainer.comparison.trial import Trial, TrialFile
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.examples import require_comparable
from lipt.trainer.main_training.records import OnStep
from lipt.trainer.reselection.reselection import require_reselectable
from lipt.trainer.views import RunView, StrategyView


def compare(
    chooser: Chooser,
    plan: Plan,
    train: Dataset,
    test: Dataset,
    *,
    out: Path,
    device: str = "auto",
    allowed_modules: Collection[str] = (),
    say: Callable[[str], None],
    on_step: OnStep | None = None,
    pretrain: Callable[[int], Run] | None = None,
) -> list[Trial]:
    """Train every strategy's subsets and the baselines, all for equally many optimizer steps.

    Args:
        chooser: connected to a coordinator that has `train` as its data, or one of this process.
        plan: what to compare.
        train: what the subsets are of.
        test: what accuracy is measured on.
        out: a file of trials; those that it has are not done again.
        device: of main training.
        allowed_modules: modules that the model may be imported from.
        say: prints a line.
        on_step: called after every optimizer step.
        pretrain: gives a seed's run, ready; where None, it is the one that a stopped
            comparison has left at the coordinator, or a new one.

    Raises:
        ConfigError: `out` is another comparison's, the plan makes no sense, or the device
            does not exist.
        BudgetError: a fraction keeps no example.
        DataError: `test` has other images or classes than `train`.
        SubsetError: the coordinator has other data.
        RunFailedError: a run failed.
    """
    known = {strategy.name: strategy for strategy in chooser.strategies()}
    _check(chooser, known, plan, train, test)
    resolve_device(device)
    steps = plan.recipe.num_steps(round(max(plan.fractions) * len(train)))
    recipe = plan.recipe.model_copy(update={"steps": steps})
    trials = TrialFile(out, _identity(plan, recipe, train, test))
    if trials.trials:
        say(f"{out}: {len(trials.trials)} trainings are in it; the comparison goes on after them")
    needs = {name: strategy.needs for name, strategy in known.items()}
    bench = Bench(
        chooser,
        plan.model,
        train,
        test,
        recipe,
        needs,
        plan.asked(),
        device,
        allowed_modules,
        on_step,
    )
    for seed in plan.seeds:
        missing = [cell for cell in plan.cells(seed) if trials.find(cell) is None]
        run: Run | None = None
        for cell in missing:
            if cell.strategy == EVERYTHING:
                trial = bench.everything(cell)
            elif cell.strategy == REDRAWN:
                trial = bench.redrawn(cell)
            else:
                if run is None:
                    say(f"seed {seed}: the run")
                    run = (
                        _run(_require_client(chooser), plan, seed)
                        if pretrain is None
                        else pretrain(seed)
                    )
                    if run.fitted:
                        say(f"seed {seed}: fitted to the data: {run.fitted}")
                trial = bench.chosen(cell, run)
            trials.add(trial)
            say(_line(trial, plan.training_seeds))
    return trials.trials


def _line(trial: Trial, training_seeds: int) -> str:
    """What a trial came to, in words."""
    which = f", training {trial.repeat + 1}" if training_seeds > 1 else ""
    on_subset = ""
    if trial.subset_accuracy is not None:
        on_subset = f"{trial.subset_accuracy:.1%} on the subset, "
    return (
        f"seed {trial.seed}{which}, {trial.fraction:.0%}, {label(trial.strategy, trial.every)}: "
        f"{trial.test_accuracy:.1%} on the test set, {on_subset}{trial.training_seconds:.0f} s"
    )


def _check(
    chooser: Chooser,
    known: Mapping[str, StrategyView],
    plan: Plan,
    train: Dataset,
    test: Dataset,
) -> None:
    """Refuse now what would otherwise be refused after a run, or after hours of training."""
    require_baselines(plan.baselines)
    for name in plan.strategies:
        if name not in known:
            choices = ", ".join(known)
            raise ConfigError(f"there is no strategy {name!r}. Choose from: {choices}.")
        if "paired features" in known[name].needs:
            raise ConfigError(
                f"{name} needs features of pairs, which a comparison does not have. Leave it "
                "out; 'lipt subset get --features' gives its subset."
            )
        if plan.every:
            require_reselectable(_require_client(chooser), name)
    if not round(min(plan.fractions) * len(train)):
        raise BudgetError(
            f"fraction {min(plan.fractions)} of {len(train)} examples keeps none. Choose at "
            f"least {1 / len(train):.3g}."
        )
    decided = {"seed", "model"} & plan.run_overrides.keys()
    if decided or "seed" in plan.recipe.model_fields_set:
        raise ConfigError(
            f"{min(decided, default='seed')} is given for every run and training by the "
            "comparison: its model, and its seeds 0, 1, ... Drop that setting."
        )
    require_comparable(test, train)
    dataset = chooser.info().dataset
    theirs = "" if dataset is None else dataset.fingerprint
    ours = train.fingerprint_like(theirs)
    if theirs != ours:
        served = "no data" if dataset is None else f"{dataset.source} ({theirs})"
        raise SubsetError(
            f"the coordinator serves {served}, but --data {train.source} has the fingerprint "
            f"{ours}. Give the coordinator's own data."
        )


def _identity(plan: Plan, recipe: Recipe, train: Dataset, test: Dataset) -> dict[str, Any]:
    return {
        "model": plan.model,
        "recipe": recipe.model_dump(mode="json"),
        "run": json.loads(json.dumps(dict(plan.run_overrides))),
        "data": train.fingerprint,
        "data_source": train.source,
        "test": test.fingerprint,
        **plan.asked(),
    }


def _run(client: Client, plan: Plan, seed: int) -> RunView:
    """The seed's run: the one that a stopped comparison has left, or a new one."""
    overrides = plan.overrides(seed)
    settings = json.dumps(overrides, sort_keys=True, default=str).encode()
    name = f"compare-{hashlib.sha256(settings).hexdigest()[:10]}-{seed}"
    ended = (RunState.FAILED, RunState.CANCELLED)
    same = [run for run in client.runs() if run.name == name and run.state not in ended]
    run = same[0] if same else client.start_run(overrides, name=name)
    return client.wait(run.run_id)


def _require_client(chooser: Chooser) -> Client:
    if not isinstance(chooser, Client):
        raise TypeError("runs are started, and subsets chosen again, by a coordinator alone")
    return chooser
