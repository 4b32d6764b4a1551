"""Comparison: chooses subsets, trains what each cell of a plan asks for, and notes the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from lipt.common.data import Dataset
from lipt.common.errors import BudgetError, ConfigError, SubsetError
from lipt.common.process.devices import resolve_device
from lipt.common.states import RunState
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.baselines import EVERYTHING, FIXED, REDRAWN, label, require_baselines
from lipt.trainer.comparison.trial import (
    LATE,
    Cell,
    Plan,
    Trial,
    TrialFile,
    levelled_off,
    training_seed,
)
from lipt.trainer.main_training import Recipe, Schedule, fit
from lipt.trainer.main_training.examples import MakeSubsetSource, SubsetSource, require_comparable
from lipt.trainer.main_training.records import OnStep
from lipt.trainer.resampling.sources import RedrawnRandom
from lipt.trainer.reselection.reselection import Reselection, SelectionOptions, require_reselectable
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView, RunView, StrategyView


class Data(Protocol):
    """What subsets are chosen from."""

    @property
    def source(self) -> str: ...  # noqa: D102 - its name
    @property
    def fingerprint(self) -> str: ...  # noqa: D102 - what tells it from other data


class Info(Protocol):
    """Who chooses."""

    @property
    def dataset(self) -> Data | None: ...  # noqa: D102 - as above


class Run(Protocol):
    """A seed's pre-training."""

    @property
    def run_id(self) -> str: ...  # noqa: D102 - its name
    @property
    def fitted(self) -> str: ...  # noqa: D102 - what was lowered for the data
    @property
    def costs(self) -> CostsView | None: ...  # noqa: D102 - what it has taken


class Chooser(Protocol):
    """Chooses subsets: `lipt.Client` is one."""

    def info(self) -> Info: ...  # noqa: D102 - what it chooses from
    def strategies(self) -> list[StrategyView]: ...  # noqa: D102 - what it chooses by
    def subset(  # noqa: D102 - as `Client.subset`
        self, run: str, strategy: str, *, fraction: float, proxy: str | None = None
    ) -> Subset: ...


# Patches of the images, the operator's backbone and features of the user's own are had without a
# run, and so is a random subset: what was pre-trained beside them is no cost of choosing. An
# ordinary warm-up stands in for it, at a cost of its own.

# What strategies need, as `StrategyView.needs` has it, that the data alone have.
_OF_THE_DATA = {"labels", "near copies", "paired features"}
# What is of the run in any case; the rest is of the proxy.
_OF_THE_RUN = {"gradient norms", "learners"}
# Features that a proxy has of the run; theta*, the proxies' `initial`, is there without a learner.
_PRETRAINED = {"soup", "learners"}


def warm_up_seconds(manifest: Mapping[str, Any]) -> float | None:
    """What the ordinary warm-up took that a subset was chosen by; None where there was none."""
    seconds = manifest.get("costs", {}).get("warm_up_seconds")
    return None if seconds is None else float(seconds)


def rests_on_pretraining(needs: Collection[str], manifest: Mapping[str, Any]) -> bool:
    """Whether a subset could not have been chosen without the run's pre-training.

    Args:
        needs: what its strategy needs; empty of an older coordinator.
        manifest: the subset's. What a choice of proxies has tried counts as well, whichever
            won: it had to be there.
    """
    if warm_up_seconds(manifest) is not None:
        return False
    if needs and _OF_THE_DATA.issuperset(needs):
        return False
    proxy = manifest.get("proxy", {})
    if "features" not in proxy or not _OF_THE_RUN.isdisjoint(needs):
        return True
    looked_at = [proxy["features"], *(tried["features"] for tried in proxy["tried"])]
    return any(not _PRETRAINED.isdisjoint(features.split("+")) for features in looked_at)


# Accuracy over the course of training, later more often: there the learning rate has fallen
# and accuracy rises most. And what `levelled_off` looks at.
LOOK_AT = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9)
_SCHEDULE = Schedule(test_at=LOOK_AT, subset_at=(LATE,), within_epochs=True)

# For all of the data that would cost more than it tells, and for examples that change nothing.
_WITHOUT_SUBSET = replace(_SCHEDULE, subset_at=None)


class Held:
    """A source of subsets that are each kept for several epochs.

    Args:
        source: asked for its epochs 0, 1, ...
        every: how many epochs each of its subsets is kept for.
    """

    def __init__(self, source: SubsetSource, every: int) -> None:
        self._source, self._every = source, every
        self.subset = source.subset
        self.num_epochs: int | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the subsets."""
        return {**self._source.identity, "every": self._every}

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0."""
        self.subset = self._source.before_epoch(epoch // self._every)
        return self.subset


@dataclass(frozen=True)
class Bench:
    """What all trials of a comparison share.

    recipe: with the steps of every training.
    needs: what each strategy needs, by its name.
    asked: what every subset is asked for besides its strategy and size.
    on_step: called after every optimizer step.
    """

    chooser: Chooser
    model: str
    train: Dataset
    test: Dataset
    recipe: Recipe
    needs: Mapping[str, Collection[str]]
    asked: Mapping[str, Any]
    device: str
    allowed_modules: Collection[str]
    on_step: OnStep

    def everything(self, cell: Cell) -> Trial:
        """A training on all examples."""
        return self._trial(cell, None, None)

    def redrawn(self, cell: Cell) -> Trial:
        """A training on a random subset that is drawn again and again."""
        budget = round(cell.fraction * len(self.train))
        drawn = RedrawnRandom(self.train, budget, training_seed(cell.seed, cell.repeat))
        return self._trial(cell, drawn.subset, Held(drawn, cell.every))

    def chosen(self, cell: Cell, run: Run) -> Trial:
        """A training on a subset of a run, which is chosen again where the cell says so."""
        subset = self.chooser.subset(
            run.run_id, cell.strategy, fraction=cell.fraction, **self.asked
        )
        made: list[Reselection] = []

        def reselect(model: nn.Module, first: Subset | None) -> Reselection:
            asked: SelectionOptions = {"run": run.run_id, "fraction": cell.fraction}
            asked |= {"every": cell.every, "first": first, "proxy": self.asked.get("proxy")}
            if not isinstance(self.chooser, Client):
                raise TypeError("subsets are chosen again by a coordinator")
            made.append(Reselection(self.chooser, model, cell.strategy, **asked))
            return made[0]

        trial = self._trial(cell, subset, reselect if cell.every else None)
        if cell.strategy in FIXED or run.costs is None:
            return trial
        waited = sum(source.waited_seconds for source in made)
        trial = replace(
            trial,
            selection_seconds=float(subset.manifest["costs"]["selection_seconds"]),
            waited_seconds=waited,
            training_seconds=trial.training_seconds - waited,
        )
        if (warmed := warm_up_seconds(subset.manifest)) is not None:
            return replace(trial, pretraining_seconds=warmed)
        if not rests_on_pretraining(self.needs[cell.strategy], subset.manifest):
            return trial
        return replace(
            trial,
            pretraining_seconds=run.costs.initialization_seconds
            + run.costs.sharding_seconds
            + run.costs.training_seconds
            + run.costs.merging_seconds,
            bytes_sent=run.costs.bytes_to_workers + run.costs.bytes_from_workers,
        )

    def _trial(
        self, cell: Cell, subset: Subset | None, source: SubsetSource | MakeSubsetSource | None
    ) -> Trial:
        seed = training_seed(cell.seed, cell.repeat)
        stays = subset is not None and source is None
        trained = fit(
            self.model,
            self.train,
            subset=subset,
            test=self.test,
            recipe=self.recipe.model_copy(update={"seed": seed}),
            schedule=_SCHEDULE if stays else _WITHOUT_SUBSET,
            device=self.device,
            reselect=source,
            allowed_modules=self.allowed_modules,
            on_step=self.on_step,
        )
        weighted = subset is not None and self.recipe.weighted and bool((subset.weights != 1).any())
        return Trial(
            seed=cell.seed,
            strategy=cell.strategy,
            fraction=cell.fraction,
            num_examples=len(self.train if subset is None else subset),
            num_steps=trained.num_steps,
            weighted=weighted,
            test_accuracy=trained.looks[-1].accuracy,
            subset_accuracy=trained.subset_accuracies[-1][1] if stays else None,
            levelled_off=stays and levelled_off(trained.subset_accuracies, trained.num_steps),
            pretraining_seconds=0.0,
            selection_seconds=0.0,
            training_seconds=trained.seconds - trained.evaluation_seconds,
            bytes_sent=0,
            digest="" if subset is None else subset.digest,
            every=cell.every,
            repeat=cell.repeat,
            looks=trained.looks,
            score_name=trained.kind.score_name,
        )


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
    on_step: OnStep = lambda *_: None,
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
