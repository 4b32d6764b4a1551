"""The loop: one epoch after another, and what it carries from one to the next.

Everything random comes from the recipe's seed and the number of the epoch or step, so
training that was killed goes on as if it had not been.

Shapes: N examples of the subset, B of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lipt.common.crop_flip import crop_flip
from lipt.common.data import Dataset, normalization
from lipt.common.errors import ConfigError, SubsetError
from lipt.common.learner_task import ImageFormat
from lipt.common.models import build_model, lay_out, memory_format
from lipt.common.preprocess import to_model_input
from lipt.common.run_config import Precision
from lipt.common.seeding import derive_generator, derive_seed
from lipt.common.weights.specs import Weights
from lipt.trainer.main_training.checkpoints import (
    Checkpoint,
    Progress,
    generator_states,
    load_checkpoint,
    restore_generators,
    save_checkpoint,
)
from lipt.trainer.main_training.evaluation import accuracy
from lipt.trainer.main_training.images import TrainingImages
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.main_training.records import EpochRecord, OnEpoch, OnStep
from lipt.trainer.subset import Subset
from lipt.trainer.weighted_loss import normalized_weights, weighted_cross_entropy

Forward = Callable[[Tensor], Tensor]


class SubsetSource(Protocol):
    """Where another subset may come from before an epoch, such as a `Reselection`."""

    subset: Subset

    def before_epoch(self, epoch: int) -> Subset:
        """The subset of an epoch, counted from 0."""
        ...


@dataclass(frozen=True)
class Trained:
    """What main training ends with.

    weights: the model's state dict, on the CPU.
    test_accuracy: after the last step; None without a test set.
    subset_accuracies: (step, accuracy on the subset without augmentation), in order.
    """

    weights: Weights
    num_steps: int
    seconds: float
    test_accuracy: float | None
    subset_accuracies: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Schedule:
    """When main training does something besides training.

    evaluations: how often the test set and the subset are looked at, evenly spread over
        the steps, the end included.
    checkpoint_seconds: time between checkpoints; 0 writes one after every epoch.
    """

    evaluations: int = 10
    checkpoint_seconds: float = 60.0


class Training:
    """The state of one training between epochs."""

    def __init__(
        self,
        model: str | nn.Module,
        train: Dataset,
        subset: Subset | None,
        test: Dataset | None,
        recipe: Recipe,
        schedule: Schedule,
        device: torch.device,
        allowed_modules: Collection[str],
    ) -> None:
        self.device = device
        self._train, self._test, self._recipe, self._schedule = train, test, recipe, schedule
        self._spec = model if isinstance(model, str) else f"{type(model).__name__}"
        self._format = memory_format(model) if isinstance(model, str) else torch.contiguous_format
        everything = torch.arange(len(train))
        mean, std = normalization(train, everything, derive_seed(recipe.seed, "normalization"))
        self._image = ImageFormat(*train.image_shape, mean=mean, std=std)
        if isinstance(model, str):
            built = build_model(
                model,
                num_classes=len(train.class_names),
                image_shape=train.image_shape,
                seed=derive_seed(recipe.seed, "main-model"),
                allowed_modules=allowed_modules,
            )
            self._model = lay_out(built, model, device)
        else:
            self._model = model.to(device)
        self._use(subset)
        self._num_steps = recipe.num_steps(len(self._ids_N))
        self._optimizer = torch.optim.SGD(
            self._model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
            fused=device.type == "cuda",
        )
        self._bfloat16 = _in_bfloat16(recipe.precision, device)
        self._progress = Progress(epoch=0, step=0, num_steps=self._num_steps, seconds=0.0)
        # The last step that the test set was looked at, and what it showed.
        self._tested = -1, 0.0

    def run(
        self,
        initial: Mapping[str, Tensor] | None,
        checkpoint: Path | None,
        reselect: SubsetSource | None,
        on_epoch: Sequence[OnEpoch],
        on_step: OnStep,
    ) -> Trained:
        """Train to the last step."""
        if initial is not None:
            self._model.load_state_dict(initial)
        if checkpoint is not None and checkpoint.is_file():
            self._restore(load_checkpoint(checkpoint, self._model, self._identity()), reselect)
        forward = torch.compile(self._model) if self._recipe.compile else self._model
        saved_at = started = monotonic()
        before = self._progress.seconds
        while self._progress.step < self._num_steps:
            self._reselect(reselect)
            record = self._train_epoch(forward, before, started, on_step)
            for tell in on_epoch:
                tell(record)
            due = monotonic() - saved_at >= self._schedule.checkpoint_seconds
            if checkpoint is not None and (due or record.step == self._num_steps):
                self._save(checkpoint)
                saved_at = monotonic()
        return Trained(
            weights=_on_cpu(self._model.state_dict()),
            num_steps=self._num_steps,
            seconds=self._progress.seconds,
            test_accuracy=self._test_accuracy(),
            subset_accuracies=self._progress.subset_accuracies,
        )

    def _reselect(self, reselect: SubsetSource | None) -> None:
        if reselect is not None:
            chosen = reselect.before_epoch(self._progress.epoch)
            if chosen.digest != self._digest:
                self._use(chosen)

    def _use(self, subset: Subset | None) -> None:
        """Take these examples from now on."""
        if subset is None:
            self._ids_N = torch.arange(len(self._train))
            weights_N = torch.ones(len(self._ids_N))
        else:
            _require_for(subset, self._train)
            self._ids_N = torch.as_tensor(subset.indices.copy())
            weights_N = torch.as_tensor(subset.weights.copy())
        self._subset = subset
        counted_N = weights_N if self._recipe.weighted else torch.ones(len(weights_N))
        self._weights_N = normalized_weights(counted_N).to(self.device)
        self._labels_N = self._train.labels_N[self._ids_N].to(self.device)
        self._images = TrainingImages(self._train, self._ids_N, self.device)

    @property
    def _digest(self) -> str:
        return "" if self._subset is None else self._subset.digest

    def _train_epoch(
        self, forward: Forward, before: float, started: float, on_step: OnStep
    ) -> EpochRecord:
        progress, recipe = self._progress, self._recipe
        order_N = torch.randperm(
            len(self._ids_N), generator=derive_generator(recipe.seed, "main-order", progress.epoch)
        )
        batches = recipe.batches(order_N)[: self._num_steps - progress.step]
        # Summed on the device: reading each batch's loss would make it wait.
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        epoch_started = monotonic()
        step = progress.step
        self._model.train()
        for positions_B, images_BCHW in zip(batches, self._images.batches(batches), strict=True):
            sums += self._train_step(forward, images_BCHW, positions_B.to(self.device), step)
            step += 1
            on_step(step, self._num_steps)
        num_examples = sum(map(len, batches))
        loss, accurate = (sums / num_examples).tolist()
        if not torch.isfinite(sums[0]):
            raise ConfigError(
                f"the loss is {loss} after step {step}, with learning rate "
                f"{recipe.learning_rate} and precision {recipe.precision}. Lower the learning "
                "rate, or train in float32."
            )
        epoch_seconds = monotonic() - epoch_started
        seconds = before + monotonic() - started
        self._progress = replace(progress, epoch=progress.epoch + 1, step=step, seconds=seconds)
        test_accuracy, subset_accuracy = self._evaluate(progress.step)
        return EpochRecord(
            epoch=self._progress.epoch,
            step=step,
            num_steps=self._num_steps,
            num_examples=num_examples,
            loss=loss,
            accuracy=accurate,
            learning_rate=recipe.learning_rate_at(step - 1, self._num_steps),
            images_per_second=num_examples / max(epoch_seconds, 1e-9),
            seconds=self._progress.seconds,
            seconds_left=self._progress.seconds / step * (self._num_steps - step),
            test_accuracy=test_accuracy,
            subset_accuracy=subset_accuracy,
            subset_digest=self._digest,
        )

    def _train_step(
        self, forward: Forward, images_BCHW: Tensor, positions_B: Tensor, step: int
    ) -> Tensor:
        """One step of SGD; the sums over the batch of loss and of correct answers."""
        recipe = self._recipe
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step, self._num_steps)
        if recipe.augmentation != "none":
            images_BCHW = crop_flip(
                images_BCHW,
                generator=derive_generator(recipe.seed, "main-augmentation", step),
                padding=recipe.padding,
                flip=recipe.augmentation == "crop_flip",
            )
        inputs_BCHW = to_model_input(images_BCHW, self._image, self.device)
        inputs_BCHW = inputs_BCHW.contiguous(memory_format=self._format)
        labels_B = self._labels_N[positions_B]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bfloat16):
            logits_BC = forward(inputs_BCHW)
        loss = weighted_cross_entropy(
            logits_BC,
            labels_B,
            self._weights_N[positions_B],
            label_smoothing=recipe.label_smoothing,
        )
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        num_correct = (logits_BC.detach().argmax(dim=-1) == labels_B).sum()
        return torch.stack([loss.detach().double() * len(positions_B), num_correct.double()])

    def _evaluate(self, step_before: int) -> tuple[float | None, float | None]:
        """Test and subset accuracy, where an evaluation fell due in the last epoch."""
        step, total, times = self._progress.step, self._num_steps, self._schedule.evaluations
        if step * times // total == step_before * times // total and step < total:
            return None, None
        on_subset = self._accuracy(self._train, self._ids_N)
        accuracies = (*self._progress.subset_accuracies, (step, on_subset))
        self._progress = replace(self._progress, subset_accuracies=accuracies)
        return self._test_accuracy(), on_subset

    def _test_accuracy(self) -> float | None:
        if self._test is None:
            return None
        step, known = self._tested
        if step != self._progress.step:
            known = self._accuracy(self._test, torch.arange(len(self._test)))
            self._tested = self._progress.step, known
        return known

    def _accuracy(self, dataset: Dataset, ids_N: Tensor) -> float:
        return accuracy(
            self._model,
            dataset,
            ids_N,
            self._image,
            self.device,
            self._format,
            bfloat16=self._bfloat16,
        )

    def _identity(self) -> dict[str, Any]:
        return {
            "recipe": self._recipe.model_dump(mode="json"),
            "model": self._spec,
            "data": self._train.fingerprint,
        }

    def _save(self, path: Path) -> None:
        momentum = {
            name: self._optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self._model.named_parameters()
            if self._optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
        }
        checkpoint = Checkpoint(
            progress=self._progress,
            model=_on_cpu(self._model.state_dict()),
            momentum=_on_cpu(momentum),
            subset=self._subset,
            generators=generator_states(self.device),
        )
        save_checkpoint(path, checkpoint, self._identity())

    def _restore(self, checkpoint: Checkpoint, reselect: SubsetSource | None) -> None:
        self._model.load_state_dict(checkpoint.model)
        for name, parameter in self._model.named_parameters():
            if name in checkpoint.momentum:
                buffer = torch.empty_like(parameter).copy_(checkpoint.momentum[name])
                self._optimizer.state[parameter]["momentum_buffer"] = buffer
        restore_generators(checkpoint.generators, self.device)
        self._progress = checkpoint.progress
        self._use(checkpoint.subset)
        if reselect is not None and checkpoint.subset is not None:
            reselect.subset = checkpoint.subset


def _require_for(subset: Subset, dataset: Dataset) -> None:
    if not len(subset):
        raise SubsetError("the subset is empty, so there is nothing to train on. Get another.")
    if subset.fingerprint != dataset.fingerprint:
        raise SubsetError(
            f"the subset belongs to data with fingerprint {subset.fingerprint}, but "
            f"{dataset.source} has {dataset.fingerprint}. Give the data that it was chosen from."
        )


def _in_bfloat16(precision: Precision, device: torch.device) -> bool:
    if precision is Precision.AUTO:
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision is Precision.BFLOAT16


def _on_cpu(tensors: Mapping[str, Tensor]) -> Weights:
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
