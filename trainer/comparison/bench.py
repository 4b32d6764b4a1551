"""Bench of a comparison: trains what a cell asks for, and notes what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lipt.common.data import Dataset
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.baselines import FIXED
from lipt.trainer.comparison.choosing import Chooser, Run
from lipt.trainer.comparison.plan import training_seed
from lipt.trainer.comparison.pretraining import rests_on_pretraining, warm_up_seconds
from lipt.trainer.comparison.trial import LATE, Cell, Trial, levelled_off
from lipt.trainer.main_training import Recipe, Schedule, fit
from lipt.trainer.main_training.examples import MakeSubsetSource, SubsetSource
from lipt.trainer.main_training.records import OnStep
from lipt.trainer.main_training.redrawn import RedrawnRandom
from lipt.trainer.reselection.reselection import Reselection, SelectionOptions
from lipt.trainer.subsets.subset import Subset

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
    on_step: OnStep | None

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
