"""Comparison run: a pipeline per seed, its subsets, and a training of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lipt.common.config.validation import merge
from lipt.common.data import Dataset
from lipt.common.errors import BudgetError, ConfigError, SubsetError
from lipt.common.process.devices import resolve_device
from lipt.common.states import RunState
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.trial import BASELINES, LATE, Trial, TrialFile, levelled_off
from lipt.trainer.main_training import Recipe, Schedule, fit
from lipt.trainer.main_training.examples import require_comparable
from lipt.trainer.main_training.records import OnStep
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView

# What a trial tells of: both accuracies at the end, and what `levelled_off` looks at.
_SCHEDULE = Schedule(test_at=(), subset_at=(LATE,))


@dataclass(frozen=True)
class Plan:
    """What is compared.

    recipe: of every training; its steps are the same for every subset, its seed is the
        pipeline's. Without `steps`, they are its epochs on the largest subset.
    proxy: what judges the examples, as in `client.subset`; each strategy's default where None.
    run_overrides: settings of the runs, nested as in `RunConfig`.
    """

    strategies: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    model: str
    recipe: Recipe
    run_overrides: Mapping[str, Any] = field(default_factory=dict)
    proxy: str | None = None

    def overrides(self, seed: int) -> dict[str, Any]:
        """The settings of a seed's run."""
        return merge(self.run_overrides, {"model": self.model, "seed": seed})

    def asked(self) -> dict[str, Any]:
        """What every subset is asked for besides its strategy and size."""
        return {} if self.proxy is None else {"proxy": self.proxy}

    def all_strategies(self) -> tuple[str, ...]:
        """Both kinds of random first, then what was asked for, each once."""
        return tuple(dict.fromkeys((*BASELINES, *self.strategies)))


def compare(
    client: Client,
    plan: Plan,
    train: Dataset,
    test: Dataset,
    *,
    out: Path,
    device: str = "auto",
    allowed_modules: Collection[str] = (),
    say: Callable[[str], None],
    on_step: OnStep | None = None,
    pretrain: Callable[[int], RunView] | None = None,
) -> list[Trial]:
    """Train every strategy's subset of every fraction and seed, at equal optimizer steps.

    Args:
        client: connected to a coordinator that has `train` as its data.
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
    _check(client, plan, train, test)
    resolve_device(device)
    steps = plan.recipe.num_steps(round(max(plan.fractions) * len(train)))
    recipe = plan.recipe.model_copy(update={"steps": steps})
    trials = TrialFile(out, _identity(plan, recipe, train, test))
    cells = [(fraction, name) for fraction in plan.fractions for name in plan.all_strategies()]
    for seed in plan.seeds:
        missing = [cell for cell in cells if trials.find(seed, cell[1], cell[0]) is None]
        if not missing:
            continue
        say(f"seed {seed}: the run")
        run = _run(client, plan, seed) if pretrain is None else pretrain(seed)
        for fraction, strategy in missing:
            subset = client.subset(run.run_id, strategy, fraction=fraction, **plan.asked())
            trained = fit(
                plan.model,
                train,
                subset=subset,
                test=test,
                recipe=recipe.model_copy(update={"seed": seed}),
                schedule=_SCHEDULE,
                device=device,
                allowed_modules=allowed_modules,
                on_step=on_step,
            )
            accuracies = trained.subset_accuracies
            trial = Trial(
                seed=seed,
                strategy=strategy,
                fraction=fraction,
                num_examples=len(subset),
                num_steps=trained.num_steps,
                weighted=recipe.weighted and bool((subset.weights != 1).any()),
                test_accuracy=trained.test_accuracy or 0.0,
                subset_accuracy=accuracies[-1][1],
                levelled_off=levelled_off(accuracies, trained.num_steps),
                training_seconds=trained.seconds,
                digest=subset.digest,
                **_costs(run, subset),
            )
            trials.add(trial)
            say(
                f"seed {seed}, {fraction:.0%}, {strategy}: {trial.test_accuracy:.1%} on the test "
                f"set, {trial.subset_accuracy:.1%} on the subset, {trial.training_seconds:.0f} s"
            )
    return trials.trials


def _check(client: Client, plan: Plan, train: Dataset, test: Dataset) -> None:
    """Refuse now what would otherwise be refused after a run, or after hours of training."""
    known = {strategy.name: strategy for strategy in client.strategies()}
    for name in plan.strategies:
        if name not in known:
            choices = ", ".join(known)
            raise ConfigError(f"there is no strategy {name!r}. Choose from: {choices}.")
        if "paired features" in known[name].needs:
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
            f"{min(decided, default='seed')} is given for every run and training by the "
            "comparison: its model, and its seeds 0, 1, ... Drop that setting."
        )
    require_comparable(test, train)
    dataset = client.info().dataset
    if dataset is None or dataset.fingerprint != train.fingerprint:
        served = "no data" if dataset is None else f"{dataset.source} ({dataset.fingerprint})"
        raise SubsetError(
            f"the coordinator serves {served}, but --data {train.source} has the fingerprint "
            f"{train.fingerprint}. Give the coordinator's own data."
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


def _costs(run: RunView, subset: Subset) -> dict[str, Any]:
    if subset.strategy in BASELINES or run.costs is None:
        return {"pretraining_seconds": 0.0, "selection_seconds": 0.0, "bytes_sent": 0}
    costs = run.costs
    return {
        "pretraining_seconds": costs.initialization_seconds
        + costs.sharding_seconds
        + costs.training_seconds
        + costs.merging_seconds,
        "selection_seconds": float(subset.manifest["costs"]["selection_seconds"]),
        "bytes_sent": costs.bytes_to_workers + costs.bytes_from_workers,
    }
