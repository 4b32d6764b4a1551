"""Weighted loss: every example counts as much as its subset says.

Shapes: B examples of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from lipt.common.errors import ConfigError


def weighted_cross_entropy(
    logits_BC: Tensor, labels_B: Tensor, weights_B: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """Mean over the batch of each example's cross-entropy times its weight.

    The sum is divided by B, not by the weights' sum: a batch of heavy examples then moves
    the model further than one of light ones, as in training on all that they stand for.
    Give weights with mean 1 over the subset (`normalized_weights`), and the learning rate
    means what it means without them.

    Args:
        logits_BC: the model's outputs, any floating dtype.
        labels_B: int64.
        weights_B: one per example, on the same device.
        label_smoothing: share of the target that goes to all classes.

    Returns:
        0-d, float32.
    """
    losses_B = example_losses(logits_BC, labels_B, label_smoothing=label_smoothing)
    return (losses_B * weights_B).mean()


def example_losses(logits_BC: Tensor, labels_B: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Each example's cross-entropy, float32, without weights; arguments as above."""
    return functional.cross_entropy(
        logits_BC.float(), labels_B, reduction="none", label_smoothing=label_smoothing
    )


def normalized_weights(weights_N: Tensor) -> Tensor:
    """A subset's weights scaled to mean 1, float32; all ones where they sum to 0."""
    mean = weights_N.double().mean()
    return (weights_N / mean).float() if mean > 0 else weights_N.new_ones(len(weights_N))


class WeightedSubsetLoss(nn.Module):
    """A loss in which every example counts as much as its subset says.

        loss_of = WeightedSubsetLoss()
        for images, labels, weights in DataLoader(subset.dataset(data), batch_size=64):
            loss = loss_of(model(images), labels, weights)

    Args:
        criterion: gives one loss for each example, such as
            `nn.CrossEntropyLoss(reduction="none")`, which is the one where None.
    """

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self._criterion = criterion or example_losses

    def forward(self, outputs: Tensor, targets: Tensor, weights_B: Tensor) -> Tensor:
        """Mean over the batch of each example's loss times its weight, 0-d.

        Args:
            outputs: the model's, one row for each example.
            targets: what `criterion` takes with them.
            weights_B: one for each example.

        Raises:
            ConfigError: `criterion` does not give one loss for each example.
        """
        losses_B = self._criterion(outputs, targets)
        if losses_B.shape != weights_B.shape:
            raise ConfigError(
                f"the criterion gave losses of shape {list(losses_B.shape)} for weights of shape "
                f"{list(weights_B.shape)}. Let it give one loss for each example: "
                'reduction="none", and a mean over what an example has several of.'
            )
        return (losses_B * weights_B).mean()
