"""Validation accuracy: what the soup decides by.

Accuracy is counted, not averaged over batches, so that equal predictions are
equal scores whatever the batch size. Images stay uint8 and are normalized batch
by batch: ImageNet's split as floats would take 15 GB.

Shapes: N examples, B of them in a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.images.model_input import to_model_input
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.weights.specs import Weights
from lipt.coordinator.pretraining.batch_norm import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
)


def batch_size_for(height: int, width: int, device: torch.device) -> int:
    """Images per forward pass: as many as stay in a CPU's cache, or keep a GPU busy.

    On a CPU 64 of 32x32 pixels, and in proportion, within 16..1024.
    """
    if device.type != "cpu":
        return 256
    return min(1024, max(16, 64 * 32 * 32 // (height * width)))


@dataclass(frozen=True)
class Scored:
    """What an evaluation found out about weights."""

    accuracy: float
    # Entries that take the place of those evaluated: their batch-norm statistics.
    mended: Weights


def batch_norm_inputs(
    images_MCHW: Tensor, image: ImageFormat, device: torch.device | str, *, batch_size: int
) -> Iterator[Tensor]:
    """Model inputs to estimate batch-norm statistics on, in parts of at most `batch_size`.

    Args:
        images_MCHW: uint8, at least one.
        image: how they are normalized.
        device: where the inputs go.
        batch_size: images per part; the parts are even, because a last one of a single
            image would have no variance.
    """
    num_batches = -(-len(images_MCHW) // batch_size)
    for images_BCHW in images_MCHW.tensor_split(num_batches):
        yield to_model_input(images_BCHW, image, device)


@dataclass(frozen=True)
class Evaluator:
    """Scores weights on the validation split, their batch-norm statistics mended first.

    Attributes:
        model: on `device`; takes on the weights of each call, its training flags are restored.
        image: how the images are normalized.
        device: where the model is.
        images_NCHW: uint8.
        labels_N: int64.
        batch_norm_images_MCHW: training images; None evaluates with the statistics that the
            weights came with.
        batch_size: examples per forward pass.
        frozen: names of statistics that stay as they came.
    """

    model: nn.Module
    image: ImageFormat
    device: torch.device | str
    images_NCHW: Tensor
    labels_N: Tensor
    batch_norm_images_MCHW: Tensor | None
    batch_size: int = 128
    frozen: frozenset[str] = frozenset()

    def __call__(self, weights: Mapping[str, Tensor]) -> Scored:
        """The accuracy of `weights`, and the statistics that it was reached with.

        Args:
            weights: the model's; asked for each tensor once, and none is kept.

        Raises:
            ConfigError: there are no examples.
        """
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(weights[name])
        mended: Weights = {}
        images_MCHW = self.batch_norm_images_MCHW
        if images_MCHW is not None and has_batch_norm(self.model, self.frozen):
            with pinned_kernels():
                inputs = batch_norm_inputs(
                    images_MCHW,
                    self.image,
                    self.device,
                    batch_size=self.batch_size,
                )
                reestimate_batch_norm(self.model, inputs, self.frozen)
            mended = batch_norm_statistics(self.model, self.frozen)
        return Scored(accuracy=self._accuracy(), mended=mended)

    @torch.inference_mode()
    def _accuracy(self) -> float:
        """Share of examples whose largest logit is their label's.

        An example with a logit that is not finite counts as wrong.
        """
        if not len(self.labels_N):
            raise ConfigError(
                "accuracy over 0 examples is undefined. Hold out a larger validation.fraction."
            )
        num_correct = 0
        with evaluation_mode(self.model), pinned_kernels():
            for images_BCHW, labels_B in zip(
                torch.split(self.images_NCHW, self.batch_size),
                torch.split(self.labels_N, self.batch_size),
                strict=True,
            ):
                inputs_BCHW = to_model_input(images_BCHW, self.image, self.device)
                logits_BC = self.model(inputs_BCHW)
                right_B = logits_BC.argmax(dim=-1) == labels_B.to(self.device)
                num_correct += int((right_B & logits_BC.isfinite().all(dim=-1)).sum())
        return num_correct / len(self.labels_N)
