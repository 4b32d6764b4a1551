"""Main training: `fit` prepares a model and its data, and `Training` runs the epochs.

All randomness derives from the recipe's seed and the epoch or step, so resumed training is
bit-identical. Shapes: N examples of the subset, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.computation import computed, fastest_kernels, others_may_compute
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.common.errors import ConfigError, DivergedError
from lipt.common.process.devices import resolve_device
from lipt.common.tensor_files import Weights, check_specs, copy_to_cpu, specs_of
from lipt.core.pretraining.training import ForwardPass, require_finite_outputs
from lipt.data.dataset import Dataset
from lipt.data.held_out import TEST_DATA, comparable
from lipt.data.loading import open_set
from lipt.models.causal_folder import by_network_names, by_own_names
from lipt.models.own_model import load_plain_state, plain_state
from lipt.trainer.arguments import checked
from lipt.trainer.main_training.recipe import Recipe, Schedule, marks
from lipt.trainer.main_training.records import (
    Checkpoint,
    EpochRecord,
    Evaluation,
    OnEpoch,
    OnStep,
    Progress,
    Trained,
    TrainingPaused,
    generator_states,
    require_same,
    restore_generators,
)
from lipt.trainer.main_training.steps import Steps, TrainingExamples, accuracy, place_model
from lipt.trainer.resampling.reselection import Reselection
from lipt.trainer.resampling.samplers import RepeatedRandom
from lipt.trainer.subsets.subset import Subset

# Source of a subset before each epoch; `num_epochs` is set beforehand.
SubsetSource = RepeatedRandom | Reselection
# Called with the model in training and the first subset; None if the source selects that too.
MakeSubsetSource = Callable[[nn.Module, Subset | None], SubsetSource]


@dataclass
class Training:
    """One training, by the arguments of `fit`; without a subset all examples are trained on."""

    model: nn.Module
    forward_pass: ForwardPass
    train: Dataset
    test: Dataset | None
    recipe: Recipe
    schedule: Schedule
    subset: InitVar[Subset | None]
    source: SubsetSource | None
    checkpoint: Path | None
    identity: Mapping[str, Any]

    def __post_init__(self, subset: Subset | None) -> None:
        self.device = self.forward_pass.device
        self.examples = TrainingExamples(subset, self.train, self.recipe, self.device)
        num_steps = self.recipe.num_steps(len(self.examples))
        self.steps = Steps(self.model, self.forward_pass, self.recipe, num_steps)
        self.progress = Progress(epoch=0, step=0, num_steps=num_steps, seconds=0.0)
        self.began, self.first = 0.0, Weights()

    def restore(self, checkpoint: Checkpoint) -> None:
        load_plain_state(self.model, checkpoint.model)
        self.steps.num_steps = checkpoint.progress.num_steps
        self.steps.optimizer.restore_momentum(checkpoint.momentum)
        self.progress = checkpoint.progress
        self._use(checkpoint.subset)
        restore_generators(checkpoint.generators, self.device)

    def run(self, on_epoch: Sequence[OnEpoch], on_step: OnStep | None, ends_at: float) -> Trained:
        """Train to the last step, or pause before an epoch that would end after `ends_at`."""
        saved_at = monotonic()
        self.began = saved_at - self.progress.seconds
        self.first = copy_to_cpu(plain_state(self.model))
        num_steps = self.progress.num_steps
        while self.progress.step < num_steps:
            epoch_began = monotonic()
            if self.source is not None:
                # Assumes that later subsets have the current size.
                per_epoch = self.recipe.steps_per_epoch(len(self.examples))
                epochs_left = math.ceil((num_steps - self.progress.step) / per_epoch)
                self.source.num_epochs = self.progress.epoch + epochs_left
                with others_may_compute():
                    subset = self.source.before_epoch(self.progress.epoch)
                self._use(subset)
            record = self._train_epoch(on_step)
            for callback in on_epoch:
                callback(record)
            now, last = monotonic(), record.step == num_steps
            is_due = now - saved_at >= self.schedule.checkpoint_seconds
            over = not last and now + (now - epoch_began) > ends_at
            if self.checkpoint is not None and (is_due or over or last):
                self._save(self.checkpoint)
                saved_at = monotonic()
                if over:
                    raise TrainingPaused(self.checkpoint, self.progress)
        self._evaluate(num_steps)
        weights = copy_to_cpu(plain_state(self.model))
        kind, recipe = self.train.target.kind, self.recipe
        return Trained(**vars(self.progress), weights=weights, kind=kind, recipe=recipe)

    def _logits(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        ids_B = self.examples.ids_N[rows_B]
        return ids_B, self.forward_pass(self.model, self.train.examples(ids_B))

    def _use(self, subset: Subset | None) -> None:
        if ("" if subset is None else subset.digest) != self.examples.digest:
            self.examples = TrainingExamples(subset, self.train, self.recipe, self.device)

    def _train_epoch(self, on_step: OnStep | None) -> EpochRecord:
        before, recipe, examples = self.progress, self.recipe, self.examples
        step, num_steps = before.step, before.num_steps
        generator = derive_generator(recipe.seed, "main-order", before.epoch)
        order_N = torch.randperm(len(examples), generator=generator)
        batches = recipe.batches(order_N)[: num_steps - step]
        end = step + len(batches)
        # Summed on the device, so that no batch waits for it.
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        started = monotonic()
        self.model.train()
        for batch in examples.batches(batches):
            sums += self.steps.take(step, batch)
            step += 1
            if on_step is not None:
                on_step(step, num_steps)
            if step < end:
                self._evaluate(step)
        num_examples = sum(map(len, batches))
        loss, accurate = (sums / num_examples).tolist()
        if not math.isfinite(loss):
            load_plain_state(self.model, self.first)
            require_finite_outputs(self.model, map(self._logits, batches))
            raise DivergedError(
                f"the loss is {loss} after step {step}, with learning rate {recipe.learning_rate} "
                f"and precision {recipe.precision}. Lower the learning rate, or train in float32."
            )
        now = monotonic()
        seconds = now - self.began
        training = now - started - (self.progress.evaluation_seconds - before.evaluation_seconds)
        self.progress = replace(self.progress, epoch=before.epoch + 1, step=step)
        self._evaluate(step)
        evaluations = self.progress.evaluations[len(before.evaluations) :]
        subset_accuracies = self.progress.subset_accuracies[len(before.subset_accuracies) :]
        return EpochRecord(
            epoch=self.progress.epoch,
            step=step,
            num_steps=num_steps,
            num_examples=num_examples,
            loss=loss,
            accuracy=accurate,
            learning_rate=recipe.learning_rate_at(step - 1, num_steps),
            images_per_second=num_examples / max(training, 1e-9),
            seconds=seconds,
            seconds_left=seconds / step * (num_steps - step),
            test_accuracy=evaluations[-1].accuracy if evaluations else None,
            subset_accuracy=subset_accuracies[-1][1] if subset_accuracies else None,
            subset_digest=examples.digest,
        )

    def _evaluate(self, step: int) -> None:
        """Evaluate the test set and the subset if it is time; `seconds` include it."""
        progress, started = self.progress, monotonic()
        at_test, at_subset = (
            marks(shares, progress.num_steps)
            for shares in (self.schedule.test_at, self.schedule.subset_at)
        )
        evaluations, on_subset = progress.evaluations, progress.subset_accuracies
        if (
            self.test is not None
            and step in at_test
            and step not in {evaluation.step for evaluation in evaluations}
        ):
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # finish the steps before timing
                started = monotonic()
            ids_N, before = torch.arange(len(self.test)), self.began + progress.evaluation_seconds
            measured = accuracy(self.model, self.test, ids_N, self.forward_pass)
            evaluations = (*evaluations, Evaluation(step, started - before, measured))
        if step in at_subset and step not in dict(on_subset):
            measured = accuracy(self.model, self.train, self.examples.ids_N, self.forward_pass)
            on_subset = (*on_subset, (step, measured))
        now = monotonic()
        self.progress = replace(
            progress,
            evaluations=evaluations,
            subset_accuracies=on_subset,
            seconds=now - self.began,
            evaluation_seconds=progress.evaluation_seconds + now - started,
        )

    def _save(self, path: Path) -> None:
        saved = Checkpoint(
            progress=self.progress,
            model=copy_to_cpu(plain_state(self.model)),
            momentum=copy_to_cpu(self.steps.optimizer.momentum()),
            subset=self.examples.subset,
            generators=generator_states(self.device),
            identity=self.identity,
        )
        saved.save(path)


@checked
@computed
def fit(
    model: str | nn.Module | Callable[..., nn.Module],
    train: Any,
    *,
    target: str | None = None,
    subset: Subset | None = None,
    test: Any = None,
    recipe: Recipe | Mapping[str, Any] | None = None,
    schedule: Schedule | None = None,
    device: str = "auto",
    initial: Mapping[str, Tensor] | None = None,
    checkpoint: str | Path | None = None,
    max_seconds: float | None = None,
    reselect: SubsetSource | MakeSubsetSource | None = None,
    on_epoch: Sequence[OnEpoch] = (),
    on_step: OnStep | None = None,
    on_resume: Callable[[Progress], object] = lambda _: None,
    allowed_modules: Collection[str] = (),
) -> Trained:
    """Train a model on a subset.

    Args:
        model: a name such as "resnet18", a function of num_classes, or a module to train in place:
            on texts also a causal model of transformers, in float32.
        train: data that the subset was selected from, as `lipt.open_dataset` takes it.
        target: as in `lipt.open_dataset`, of `train` and `test`.
        subset: the examples; None for those of `reselect`, or all of `train`.
        test: test data for the accuracy.
        recipe: settings of training, such as {"steps": 300}.
        schedule: times of evaluations and checkpoints.
        device: "auto", "cpu", "cuda" or "cuda:N".
        initial: initial weights, such as theta* or theta_p.
        checkpoint: file to write, and to continue from where it exists.
        max_seconds: pause after the last epoch that ends by then, but at least one epoch.
        reselect: source of the subset before every epoch, such as a `RepeatedRandom`. Or a function
            of the model and the first subset (or None) that makes one, such as a `Reselection`.
        on_epoch: each is called with every epoch's record.
        on_resume: called with the checkpoint's progress before training continues.
        on_step: called after every step with (steps done, steps in all); must not block.
        allowed_modules: modules that `model` may be imported from.

    Raises:
        SubsetError, DataError, ConfigError, WeightsError: an argument does not fit the others.
        TrainingPaused, DivergedError: the time limit is reached, or the loss is infinite.
    """
    ends_at = monotonic() + (math.inf if max_seconds is None else max_seconds)
    checkpoint = None if checkpoint is None else Path(checkpoint)
    if max_seconds is not None and checkpoint is None:
        raise ConfigError(
            f"training may take {max_seconds:g} s and has no checkpoint. Name a file for one."
        )
    opened = partial(open_set, target=target, allow_modules=tuple(allowed_modules))
    train = opened("data", train)
    test = None if test is None else comparable(opened(TEST_DATA, test), train)
    recipe, schedule = (
        Recipe.of(recipe).fitted_to(train.inputs, train.target.kind),
        schedule or Schedule(),
    )
    place = resolve_device(device)
    built, forward_pass = place_model(model, train, recipe, place, allowed_modules)
    identity = _identity(recipe, model, train, subset, reselects=reselect is not None)
    kernels = nullcontext() if place.type == "cpu" else fastest_kernels()
    with seeded_generators(derive_seed(recipe.seed, "main-layers"), place), kernels:
        if initial is not None:
            initial = by_network_names(built, initial)
            check_specs(specs_of(initial), specs_of(plain_state(built)))
            load_plain_state(built, initial)
        saved = None
        if checkpoint is not None and checkpoint.is_file():
            saved = Checkpoint.load(checkpoint, built, identity)
            subset = saved.subset
        with others_may_compute():
            source = reselect(built, subset) if callable(reselect) else reselect
        if source is not None:
            identity["selection"] = dict(source.identity)
            if checkpoint is not None and saved is not None:
                require_same(checkpoint, saved.identity, identity)
                source.subset = saved.subset or source.subset
            subset = source.subset if subset is None else subset
        training = Training(
            built, forward_pass, train, test, recipe, schedule, subset, source, checkpoint, identity
        )
        if saved is not None:
            training.restore(saved)
            on_resume(saved.progress)
        trained = training.run(on_epoch, on_step, ends_at)
    if isinstance(model, str):
        return trained
    return replace(trained, weights=by_own_names(built, trained.weights))


def _identity(
    recipe: Recipe,
    model: str | nn.Module | Callable[..., nn.Module],
    train: Dataset,
    subset: Subset | None,
    *,
    reselects: bool,
) -> dict[str, Any]:
    return {
        "recipe": recipe.model_dump(mode="json"),
        "model": model if isinstance(model, str) else type(model).__name__,
        "data": train.fingerprint,
        "subset": "" if subset is None else subset.digest,
        "re-selection": reselects,
    }
