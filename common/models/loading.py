"""Models in use: initial weights, loading, evaluation mode."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import nn

from lipt.common.inputs.specs import InputSpec
from lipt.common.models.registry import build_model, lay_out
from lipt.common.weights.files import read_weights
from lipt.common.weights.specs import specs_of

# Loading: a model with weights from a safetensors file, ready to be evaluated.


def load_model(
    name: str,
    weights: bytes | Path,
    *,
    num_classes: int,
    inputs: InputSpec,
    device: torch.device,
    seed: int = 0,
    allowed_modules: Collection[str] = (),
    max_bytes: int,
) -> nn.Module:
    """A model on a device, in evaluation mode.

    Args:
        name: as `build_model` takes it.
        weights: a file's content, or its path.
        num_classes: of its outputs.
        inputs: what it is given.
        device: where it goes.
        seed: of what it draws that is not among its weights.
        allowed_modules: that its name may import.
        max_bytes: the largest file that is read.

    Raises:
        LiptError: the model cannot be built.
        BlobTooLargeError, WeightsError: as `read_weights`.
    """
    model = build_model(
        name, num_classes=num_classes, inputs=inputs, seed=seed, allowed_modules=allowed_modules
    )
    model = lay_out(model, name, device)
    loaded = read_weights(weights, like=specs_of(model.state_dict()), max_bytes=max_bytes)
    model.load_state_dict(loaded)
    return model.eval()
