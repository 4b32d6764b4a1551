"""Training loop: one epoch after another, and what it carries from one to the next.

Everything random comes from the recipe's seed and the number of the epoch or step, so
training that was killed goes on as if it had not been.

Shapes: N examples of the subset, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator
from lipt.common.errors import TrainingDivergedError
from lipt.common.weights.specs import copy_to_cpu
from lipt.trainer.main_training.checkpoints import (
    Checkpoint,
    Progress,
    TrainingPaused,
    generator_states,
    restore_generators,
    save_checkpoint,
)
from lipt.trainer.main_training.examples import Examples, LossDriven, SubsetSource
from lipt.trainer.main_training.forward import ForwardPass, accuracy
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.main_training.records import EpochRecord, Look, OnEpoch, OnStep, Trained
from lipt.trainer.main_training.schedule import Schedule, due
from lipt.trainer.main_training.steps import Steps
from lipt.trainer.subsets.subset import Subset


class Training:
    """The state of one training between epochs.

    Args:
        model: on its device, with the weights to begin with.
        forward_pass: how examples go through it.
        train: the data set that the subsets are of.
        test: what accuracy is measured on, if anything.
        recipe: how to train.
        schedule: when to evaluate and to write checkpoints.
        subset: the first one; all of `train` where None.
        budget: how many examples decide the number of steps where the recipe counts epochs;
            those of the first subset where None.
        coreset: whose copies are trained on as well, with an augmentation of their own.

    Raises:
        SubsetError: a subset is empty, or another data set's.
    """

    def __init__(
        self,
        model: nn.Module,
        forward_pass: ForwardPass,
        train: Dataset,
        test: Dataset | None,
        recipe: Recipe,
        schedule: Schedule,
        subset: Subset | None,
        budget: int | None = None,
        coreset: Subset | None = None,
    ) -> None:
        self._model, self._forward_pass = model, forward_pass
        self._train, self._test, self._recipe, self._schedule = train, test, recipe, schedule
        self._device, self._coreset = forward_pass.device, coreset
        self._examples = self._examples_of(subset)
        num_steps = recipe.num_steps(len(self._examples) if budget is None else budget)
        self._steps = Steps(model, forward_pass, recipe, num_steps)
        self._progress = Progress(epoch=0, step=0, num_steps=num_steps, seconds=0.0)
        # The steps in whose midst of an epoch the test set is looked at.
        self._marks: frozenset[int] = frozenset()
        # The moment that training's seconds count from.
        self._began = 0.0
        # How long accuracies have taken, also since `progress` was last brought up to date.
        self._evaluation_seconds = 0.0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same training."""
        self._model.load_state_dict(checkpoint.model)
        self._steps.num_steps = checkpoint.progress.num_steps
        self._steps.restore_momentum(checkpoint.momentum)
        self._progress = checkpoint.progress
        self._evaluation_seconds = checkpoint.progress.evaluation_seconds
        self._use(checkpoint.subset)
        restore_generators(checkpoint.generators, self._device)

    def run(
        self,
        reselect: SubsetSource | None,
        on_epoch: Sequence[OnEpoch],
        on_step: OnStep,
        checkpoint: Path | None,
        identity: Mapping[str, Any],
        ends_at: float = math.inf,
    ) -> Trained:
        """Train to the last step.

        Args:
            reselect: asked before every epoch for its subset, and told the losses of what
                was trained on where it looks at them.
            on_epoch: each is called with every epoch's record.
            on_step: called after every step.
            checkpoint: a file to write.
            identity: what it is a checkpoint of.
            ends_at: when to pause, on the monotonic clock; there is a checkpoint then.

        Raises:
            TrainingDivergedError: the loss is no longer finite.
            TrainingPaused: the next epoch would end after `ends_at`.
            SubsetError: a subset that was chosen again is empty, or another data set's.
        """
        told = reselect if isinstance(reselect, LossDriven) else None
        saved_at = monotonic()
        self._began = saved_at - self._progress.seconds
        if self._schedule.within_epochs:
            self._marks = self._schedule.test_steps(self._progress.num_steps)
        while self._progress.step < self._progress.num_steps:
            epoch_began = monotonic()
            if reselect is not None:
                reselect.num_epochs = self._num_epochs()
                self._use(reselect.before_epoch(self._progress.epoch))
            record = self._train_epoch(on_step, told)
            for tell in on_epoch:
                tell(record)
            now, last = monotonic(), record.step == record.num_steps
            due = now - saved_at >= self._schedule.checkpoint_seconds
            over = not last and now + (now - epoch_began) > ends_at
            if checkpoint is not None and (due or over or last):
                save_checkpoint(checkpoint, self._checkpoint(identity, told))
                saved_at = monotonic()
                if over:
                    raise TrainingPaused(checkpoint, self._progress)
        return Trained(
            weights=copy_to_cpu(self._model.state_dict()),
            num_steps=self._progress.num_steps,
            seconds=self._progress.seconds,
            test_accuracy=self._test_accuracy(self._progress.step),
            subset_accuracies=self._progress.subset_accuracies,
            evaluation_seconds=self._progress.evaluation_seconds,
            looks=self._progress.looks,
            kind=self._train.target.kind,
        )

    def _examples_of(self, subset: Subset | None) -> Examples:
        weighted = self._recipe.weighted
        return Examples(subset, self._train, self._device, weighted=weighted, coreset=self._coreset)

    def _use(self, subset: Subset | None) -> None:
        """Take these examples from now on."""
        if ("" if subset is None else subset.digest) != self._examples.digest:
            self._examples = self._examples_of(subset)

    def _train_epoch(self, on_step: OnStep, told: LossDriven | None) -> EpochRecord:
        progress, recipe, examples = self._progress, self._recipe, self._examples
        step, num_steps = progress.step, progress.num_steps
        generator = derive_generator(recipe.seed, "main-order", progress.epoch)
        order_N = torch.randperm(len(examples), generator=generator)
        batches = recipe.batches(order_N)[: num_steps - step]
        # Summed on the device: reading each batch's loss would make it wait.
        sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        losses: list[Tensor] = []
        evaluated, epoch_started = self._evaluation_seconds, monotonic()
        self._model.train()
        for batch in examples.batches(batches):
            taken = self._steps.take(step, batch)
            sums += taken.sums
            if told is not None:
                losses.append(taken.losses_B)
            step += 1
            on_step(step, num_steps)
            if step in self._marks:
                self._test_accuracy(step)
        num_examples = sum(map(len, batches))
        loss, accurate = (sums / num_examples).tolist()
        if not math.isfinite(loss):
            raise TrainingDivergedError(
                f"the loss is {loss} after step {step}, with learning rate {recipe.learning_rate} "
                f"and precision {recipe.precision}. Lower the learning rate, or train in float32."
            )
        if told is not None:
            told.update(examples.ids_N[torch.cat(batches)], torch.cat(losses).cpu())
        now, evaluated = monotonic(), self._evaluation_seconds - evaluated
        epoch_seconds, seconds = now - epoch_started - evaluated, now - self._began
        self._progress = replace(
            self._progress,
            epoch=progress.epoch + 1,
            step=step,
            seconds=seconds,
            evaluation_seconds=self._evaluation_seconds,
        )
        test_accuracy, subset_accuracy = self._evaluate()
        return EpochRecord(
            epoch=self._progress.epoch,
            step=step,
            num_steps=num_steps,
            num_examples=num_examples,
            loss=loss,
            accuracy=accurate,
            learning_rate=recipe.learning_rate_at(step - 1, num_steps),
            images_per_second=num_examples / max(epoch_seconds, 1e-9),
            seconds=seconds,
            seconds_left=seconds / step * (num_steps - step),
            test_accuracy=test_accuracy,
            subset_accuracy=subset_accuracy,
            subset_digest=examples.digest,
        )

    def _num_epochs(self) -> int:
        """How many epochs there will be in all, with subsets as large as the present one."""
        progress = self._progress
        left = progress.num_steps - progress.step
        return progress.epoch + math.ceil(left / self._steps_per_epoch())

    def _steps_per_epoch(self) -> int:
        return self._recipe.steps_per_epoch(len(self._examples))

    def _evaluate(self) -> tuple[float | None, float | None]:
        """Test and subset accuracy, each where it is due after the last epoch."""
        step, num_steps = self._progress.step, self._progress.num_steps
        next_step = step + self._steps_per_epoch()
        on_test = on_subset = None
        subset_at = self._schedule.subset_at
        if subset_at is not None and due(subset_at, step, next_step, num_steps):
            on_subset = self._accuracy(self._train, self._examples.ids_N)
            accuracies = (*self._progress.subset_accuracies, (step, on_subset))
            self._progress = replace(self._progress, subset_accuracies=accuracies)
        test_at = () if self._schedule.within_epochs else self._schedule.test_at
        if due(test_at, step, next_step, num_steps):
            on_test = self._test_accuracy(step)
        return on_test, on_subset

    def _test_accuracy(self, step: int) -> float | None:
        """The accuracy on the test set after a step, which it was perhaps looked at before."""
        if self._test is None:
            return None
        looks = self._progress.looks
        if not looks or looks[-1].step != step:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the steps' time is not the look's
            seconds = monotonic() - self._began - self._evaluation_seconds
            found = self._accuracy(self._test, torch.arange(len(self._test)))
            looks = (*looks, Look(step, seconds, found))
            self._progress = replace(self._progress, looks=looks)
        return looks[-1].accuracy

    def _accuracy(self, dataset: Dataset, ids_N: Tensor) -> float:
        started = monotonic()
        found = accuracy(self._model, dataset, ids_N, self._forward_pass)
        self._evaluation_seconds += monotonic() - started
        return found

    def _checkpoint(self, identity: Mapping[str, Any], told: LossDriven | None) -> Checkpoint:
        return Checkpoint(
            progress=self._progress,
            model=copy_to_cpu(self._model.state_dict()),
            momentum=copy_to_cpu(self._steps.momentum()),
            subset=self._examples.subset,
            generators=generator_states(self._device),
            identity=identity,
            source={} if told is None else told.state_dict(),
        )
