"""Comparison: chooses subsets, trains on what each cell of a plan names, and keeps the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lipt.common.data import Dataset
from lipt.common.errors import BudgetError, ConfigError, SubsetError
from lipt.common.process.devices import resolve_device
from lipt.common.states import RunState
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.baselines import (
    EVERYTHING,
    FIXED,
    REDRAWN,
    SOFT,
    label,
    require_baselines,
)
from lipt.trainer.comparison.trial import LATE, Cell, Plan, Trial, TrialFile, levelled_off
from lipt.trainer.main_training import Recipe, Schedule, fit
from lipt.trainer.main_training.examples import SubsetSource, require_comparable
from lipt.trainer.main_training.records import OnStep
from lipt.trainer.resampling.redrawing import RedrawnRandom
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView, RunView, StrategyView

# Accuracy is measured more often late, where the learning rate is low and accuracy rises most.
LOOK_AT = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9)
_SCHEDULE = Schedule(test_at=LOOK_AT, subset_at=(LATE,))

# Values of `StrategyView.needs` that the data alone provide, and those that need a run.
_OF_THE_DATA = {"labels", "near copies", "paired features"}
_OF_THE_RUN = {"gradient norms", "learners"}
# A proxy's features that need learners; theta* ("initial") is there without one.
_PRETRAINED = {"soup", "learners"}


class Run(Protocol):
    """A seed's pre-training."""

    @property
    def run_id(self) -> str: ...  # noqa: D102 - its name
    @property
    def fitted(self) -> str: ...  # noqa: D102 - as `RunView.fitted`
    @property
    def costs(self) -> CostsView | None: ...  # noqa: D102 - so far


class Chooser(Protocol):
    """Chooses subsets: `lipt.Client`, or `lipt.compare` in its own process."""

    def strategies(self) -> list[StrategyView]: ...  # noqa: D102 - as `Client.strategies`
    def subset(  # noqa: D102 - as `Client.subset`
        self,
        run: str,
        strategy: str,
        *,
        fraction: float,
        proxy: str | None = None,
        soft_labels: bool = False,
    ) -> Subset: ...


def warm_up_seconds(manifest: Mapping[str, Any]) -> float | None:
    """Cost of the ordinary warm-up that a subset was chosen by; None without one."""
    seconds = manifest.get("costs", {}).get("warm_up_seconds")
    return None if seconds is None else float(seconds)


def rests_on_pretraining(needs: Collection[str], manifest: Mapping[str, Any]) -> bool:
    """Whether choosing a subset needed the run's pre-training.

    Args:
        needs: of its strategy.
        manifest: of the subset. Proxies that an automatic choice tried count, whichever won.
    """
    if warm_up_seconds(manifest) is not None:
        return False
    if (teacher := manifest.get("soft_labels")) and _uses_learners(teacher):
        return True
    if _OF_THE_DATA.issuperset(needs):
        return False
    proxy = manifest.get("proxy", {})
    return "features" not in proxy or not _OF_THE_RUN.isdisjoint(needs) or _uses_learners(proxy)


def _uses_learners(head: Mapping[str, Any]) -> bool:
    looked_at = [head["features"], *(tried["features"] for tried in head["tried"])]
    return any(not _PRETRAINED.isdisjoint(features.split("+")) for features in looked_at)


def run_of(client: Client, plan: Plan, seed: int) -> RunView:
    """A seed's run, ready: the one that a stopped comparison has left, or a new one."""
    overrides = plan.overrides(seed)
    settings = json.dumps(overrides, sort_keys=True, default=str).encode()
    name = f"compare-{hashlib.sha256(settings).hexdigest()[:10]}-{seed}"
    ended = (RunState.FAILED, RunState.CANCELLED)
    same = [run for run in client.runs() if run.name == name and run.state not in ended]
    run = same[0] if same else client.start_run(overrides, name=name)
    return client.wait(run.run_id)


# Trains on a cell's subset, or on all examples without one; a source changes it between epochs.
_Train = Callable[[Cell, Subset | None, SubsetSource | None], Trial]


def compare(
    chooser: Chooser,
    plan: Plan,
    train: Dataset,
    test: Dataset,
    *,
    pretrain: Callable[[int], Run],
    out: Path,
    device: str = "auto",
    allowed_modules: Collection[str] = (),
    say: Callable[[str], None],
    on_step: OnStep = lambda *_: None,
) -> list[Trial]:
    """Train every strategy's subsets and the baselines, all for equally many optimizer steps.

    Args:
        chooser: a client of the coordinator that serves `train`, or a chooser of this process.
        plan: what to compare.
        train: what the subsets are of.
        test: what accuracy is measured on.
        pretrain: gives a seed's run, ready.
        out: a file of trials; those that it has are not done again.
        device: of main training.
        allowed_modules: modules that the model may be imported from.
        say: prints a line.
        on_step: called after every optimizer step.
    """
    known = {strategy.name: strategy for strategy in chooser.strategies()}
    _check(chooser, known, plan, train, test)
    resolve_device(device)
    steps = plan.recipe.num_steps(round(max(plan.fractions) * len(train)))
    recipe = plan.recipe.model_copy(update={"steps": steps})
    trials = TrialFile(out, _identity(plan, recipe, train, test))
    if trials.trials:
        say(f"{out}: {len(trials.trials)} trainings are in it; the comparison goes on after them")
    training = partial(
        _trial,
        model=plan.model,
        train=train,
        test=test,
        recipe=recipe,
        device=device,
        allowed_modules=allowed_modules,
        on_step=on_step,
    )
    for seed in plan.seeds:
        run: Run | None = None
        for cell in plan.cells(seed):
            if trials.find(cell) is not None:
                continue
            if cell.strategy == EVERYTHING:
                trial = training(cell, None, None)
            elif cell.strategy == REDRAWN:
                drawn = RedrawnRandom(train, round(cell.fraction * len(train)), seed)
                trial = training(cell, drawn.subset, drawn)
            else:
                if run is None:
                    say(f"seed {seed}: the run")
                    run = pretrain(seed)
                    if run.fitted:
                        say(f"seed {seed}: fitted to the data: {run.fitted}")
                needs = known[_asked(cell)].needs
                trial = _chosen(chooser, run, cell, plan.proxy, needs, training)
            trials.add(trial)
            say(_line(trial))
    return trials.trials


def _trial(
    cell: Cell,
    subset: Subset | None,
    source: SubsetSource | None,
    *,
    model: str,
    train: Dataset,
    test: Dataset,
    recipe: Recipe,
    device: str,
    allowed_modules: Collection[str],
    on_step: OnStep,
) -> Trial:
    stays = subset is not None and source is None
    trained = fit(
        model,
        train,
        subset=subset,
        test=test,
        recipe=recipe.model_copy(update={"seed": cell.seed, **_softened(cell, subset)}),
        # Accuracy on the examples costs too much on all of the data, and says little of others.
        schedule=_SCHEDULE if stays else replace(_SCHEDULE, subset_at=None),
        device=device,
        reselect=source,
        allowed_modules=allowed_modules,
        on_step=on_step,
    )
    return Trial(
        seed=cell.seed,
        strategy=cell.strategy,
        fraction=cell.fraction,
        num_examples=len(train if subset is None else subset),
        num_steps=trained.num_steps,
        weighted=subset is not None and recipe.weighted and bool((subset.weights != 1).any()),
        test_accuracy=trained.looks[-1].accuracy,
        subset_accuracy=trained.subset_accuracies[-1][1] if stays else None,
        levelled_off=stays and levelled_off(trained.subset_accuracies, trained.num_steps),
        pretraining_seconds=0.0,
        selection_seconds=0.0,
        training_seconds=trained.seconds - trained.evaluation_seconds,
        bytes_sent=0,
        digest="" if subset is None else subset.digest,
        looks=trained.looks,
        score_name=trained.kind.score_name,
    )


def _chosen(
    chooser: Chooser,
    run: Run,
    cell: Cell,
    proxy: str | None,
    needs: Collection[str],
    training: _Train,
) -> Trial:
    asked = {"soft_labels": True} if cell.strategy.endswith(SOFT) else {}
    subset = chooser.subset(run.run_id, _asked(cell), fraction=cell.fraction, proxy=proxy, **asked)
    trial = training(cell, subset, None)
    costs = run.costs
    if cell.strategy in FIXED or costs is None:
        return trial
    trial = replace(
        trial,
        pretraining_seconds=warm_up_seconds(subset.manifest) or 0.0,
        selection_seconds=float(subset.manifest["costs"]["selection_seconds"]),
    )
    if not rests_on_pretraining(needs, subset.manifest):
        return trial
    return replace(
        trial,
        pretraining_seconds=costs.initialization_seconds
        + costs.sharding_seconds
        + costs.training_seconds
        + costs.merging_seconds,
        bytes_sent=costs.bytes_to_workers + costs.bytes_from_workers,
    )


def _asked(cell: Cell) -> str:
    """The strategy of a cell's subset: of all examples at random, as they are all there."""
    name = cell.strategy.removesuffix(SOFT)
    return FIXED[0] if name == EVERYTHING else name


def _softened(cell: Cell, subset: Subset | None) -> dict[str, float]:
    if subset is None or not cell.strategy.endswith(SOFT):
        return {}
    return {"soft_labels": subset.recommended_alpha}


def _line(trial: Trial) -> str:
    on_subset = ""
    if trial.subset_accuracy is not None:
        on_subset = f"{trial.subset_accuracy:.1%} on the subset, "
    return (
        f"seed {trial.seed}, {trial.fraction:.0%}, {label(trial.strategy)}: "
        f"{trial.test_accuracy:.1%} on the test set, {on_subset}{trial.training_seconds:.0f} s"
    )


def _check(
    chooser: Chooser, known: Mapping[str, StrategyView], plan: Plan, train: Dataset, test: Dataset
) -> None:
    require_baselines(plan.baselines)
    for name in plan.strategies:
        if name not in known:
            raise ConfigError(f"there is no strategy {name!r}. Choose from: {', '.join(known)}.")
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
    if isinstance(chooser, Client):
        dataset = chooser.info().dataset
        ours = train.fingerprint_like("" if dataset is None else dataset.fingerprint)
        if dataset is None or dataset.fingerprint != ours:
            served = "no data" if dataset is None else f"{dataset.source} ({dataset.fingerprint})"
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
        **({} if plan.proxy is None else {"proxy": plan.proxy}),
    }
