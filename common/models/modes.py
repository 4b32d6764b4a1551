"""How a model is used: memory layout, initial weights, evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

# Initialization: the first weights of the built-in networks, after He et al., by layer kind.


def initialize(network: nn.Module) -> None:
    """Draw the weights of convolutions, batch norms and linear layers, in place.

    Convolutions: normal with variance 2 / fan_out (He et al. 2015, arXiv:1502.01852).
    Batch norms: the identity. Linear layers: PyTorch's own draw, with a zero bias.
    Randomness comes from the global CPU generator, which the caller seeds.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


# Evaluation mode: for the time of a block, whatever mode each layer was in before.


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all of the model's modules into evaluation mode; each one's own flag comes back."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training
