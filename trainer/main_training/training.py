"""Main training: `fit` prepares a model and its data, `Training` runs the epochs.

Everything random comes from the recipe's seed and the number of the epoch or step, so
training that was killed goes on as if it had not been.

Shapes: N examples of the subset, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.determinism import (
    derive_generator,
    derive_seed,
    pinned_kernels,
    seeded_generators,
    tried_kernels,
)
from lipt.common.errors import ConfigError, TrainingDivergedError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.process.devices import resolve_device
from lipt.common.targets.kinds import TargetKind
from lipt.common.weights.specs import check_specs, copy_to_cpu, specs_of
from lipt.core.training import ForwardPass
from lipt.trainer.main_training.examples import (
    Examples,
    LossDriven,
    MakeSubsetSource,
    SubsetSource,
    require_comparable,
)
from lipt.trainer.main_training.recipe import Recipe, Schedule, due
from lipt.trainer.main_training.records import (
    Checkpoint,
    EpochRecord,
    Look,
    OnEpoch,
    OnStep,
    Progress,
    Trained,
    TrainingPaused,
    generator_states,
    load_checkpoint,
    require_same,
    restore_generators,
    save_checkpoint,
)
from lipt.trainer.main_training.steps import Steps, accuracy, place_model
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
        self._steps.sgd.restore_momentum(checkpoint.momentum)
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
            momentum=copy_to_cpu(self._steps.sgd.momentum()),
            subset=self._examples.subset,
            generators=generator_states(self._device),
            identity=identity,
            source={} if told is None else told.state_dict(),
        )


def fit(
    model: str | nn.Module,
    train: Dataset,
    *,
    subset: Subset | None = None,
    coreset: Subset | None = None,
    test: Dataset | None = None,
    recipe: Recipe | None = None,
    schedule: Schedule | None = None,
    device: str = "auto",
    initial: Mapping[str, Tensor] | None = None,
    checkpoint: Path | None = None,
    max_seconds: float | None = None,
    reselect: SubsetSource | MakeSubsetSource | None = None,
    on_epoch: Sequence[OnEpoch] = (),
    on_step: OnStep | None = None,
    on_resume: Callable[[Progress], object] = lambda _: None,
    allowed_modules: Collection[str] = (),
) -> Trained:
    """Train a model on a subset.

    Args:
        model: a name such as "resnet18", built with the recipe's seed, or a module, which
            is trained in place.
        train: the data set that the subset was chosen from.
        subset: the examples; where None those that `reselect` begins with, or all of `train`.
        coreset: examples that are trained on once more as copies, which alone are augmented by the
            recipe's `coreset_augmentation`: those that need a strong one.
        test: for the accuracy; never trained on.
        recipe: how to train.
        schedule: when to evaluate and to write checkpoints.
        device: "auto", "cpu", "cuda" or "cuda:N".
        initial: weights to begin with, such as theta* or theta_p.
        checkpoint: a file to write, and to go on from where it is there.
        max_seconds: how long this call may take, for training in pieces: it ends by
            `TrainingPaused` after the last epoch that is done by then, taking the next one to
            last as long as the one before. At least one epoch is trained.
        reselect: asked before every epoch for its subset, such as a `RedrawnRandom` or a
            `Reselection`; or a function that makes one of the model in training and the first
            subset, which is None where it is to be asked for:
            `lambda model, first: Reselection(client, model, "craig", fraction=0.1, first=first)`.
        on_epoch: each is called with every epoch's record.
        on_step: called after every optimizer step with (steps done, steps in all). It must
            not wait for the device.
        on_resume: called with how far training has come before it goes on from `checkpoint`.
        allowed_modules: modules that `model` may be imported from.

    Returns:
        The final weights, and how training went.

    Raises:
        SubsetError: a subset is empty, or belongs to other data.
        DataError: the test set has other images or classes than `train`; RandAugment is given
            images that are not bytes with 1 or 3 channels.
        ConfigError: labels are to be smoothed and there are numbers; a coreset is to be augmented
            and there are no images, or `reselect` goes by losses; the checkpoint is another
            training's, or the device does not exist; there is a limit of time without a checkpoint.
        TrainingPaused: the time is up, and the checkpoint is written.
        TrainingDivergedError: the loss is no longer finite.
        WeightsError: `initial` is another model's.
    """
    ends_at = _end(max_seconds, checkpoint)
    recipe, schedule, place = recipe or Recipe(), schedule or Schedule(), resolve_device(device)
    if test is not None:
        require_comparable(test, train)
    _require_fitting(recipe, train, coreset)
    built, forward_pass = place_model(model, train, recipe, place, allowed_modules)
    identity = {
        "recipe": recipe.model_dump(mode="json"),
        "model": model if isinstance(model, str) else type(model).__name__,
        "data": train.fingerprint,
        "subset": "" if subset is None else subset.digest,
        "coreset": "" if coreset is None else coreset.digest,
        "re-selection": reselect is not None,
    }
    with ExitStack() as stack:
        stack.enter_context(seeded_generators(derive_seed(recipe.seed, "main-layers"), place))
        on_cpu = place.type == "cpu"
        kernels = pinned_kernels(torch.get_num_threads()) if on_cpu else tried_kernels()
        stack.enter_context(kernels)
        if initial is not None:
            check_specs(specs_of(initial), specs_of(built.state_dict()))
            built.load_state_dict(initial)
        saved = None
        if checkpoint is not None and checkpoint.is_file():
            saved = load_checkpoint(checkpoint, built, identity)
            subset = saved.subset
        source = reselect(built, subset) if callable(reselect) else reselect
        if source is not None:
            identity["selection"] = dict(source.identity)
            if checkpoint is not None and saved is not None and subset is not None:
                require_same(checkpoint, saved.identity, identity)
                source.subset = subset
                if isinstance(source, LossDriven):
                    source.load_state_dict(saved.source)
            subset = source.subset if subset is None else subset
        budget = _budget(source, coreset)
        training = Training(
            built, forward_pass, train, test, recipe, schedule, subset, budget, coreset
        )
        if saved is not None:
            training.restore(saved)
            on_resume(saved.progress)
        told = on_step or (lambda *_: None)
        return training.run(source, on_epoch, told, checkpoint, identity, ends_at)


def _require_fitting(recipe: Recipe, train: Dataset, coreset: Subset | None) -> None:
    if recipe.label_smoothing and train.target.kind is TargetKind.NUMBER:
        raise ConfigError(
            f"label_smoothing = {recipe.label_smoothing}: of numbers there is nothing to spread "
            f"over classes, and {train.source} is regression. Leave it at 0."
        )
    if coreset is not None and not isinstance(train.inputs, ImageSpec):
        raise ConfigError(
            f"{train.source} has {train.inputs}, and only images are augmented. Leave out the "
            "coreset."
        )


def _budget(source: SubsetSource | None, coreset: Subset | None) -> int | None:
    if not isinstance(source, LossDriven):
        return None
    if coreset is not None:
        raise ConfigError(
            "examples are drawn by their losses, and a coreset's copies have losses of their "
            "own. Leave out the coreset, or draw them in another way."
        )
    return source.budget


def _end(max_seconds: float | None, checkpoint: Path | None) -> float:
    """The moment by which the call has to end, on the monotonic clock."""
    if max_seconds is None:
        return math.inf
    if checkpoint is None:
        raise ConfigError(
            f"training may take {max_seconds:g} s and has no checkpoint, so all of it would be "
            "lost then. Name a file for a checkpoint, or give no limit."
        )
    return monotonic() + max_seconds
