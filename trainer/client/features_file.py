"""A user's own features as an upload: a safetensors file, or tensors that become one.

The coordinator checks shapes and values; a file of another format is refused before it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipt.common.errors import FeaturesError, WeightsError
from lipt.common.weights.header import require_safetensors

if TYPE_CHECKING:  # torch takes seconds, and a file needs none of it
    from torch import Tensor

_HOW = (
    "Give {'features': N x d} with one row per example, for strategies on pairs also "
    "'paired_features', or a file that safetensors.torch.save_file wrote of them."
)

Features = str | Path | bytes | Mapping[str, Any]


def features_content(features: Features) -> Path | bytes:
    """What to upload: a path, or the content of a safetensors file.

    Args:
        features: a safetensors file, its content, or N x d tensors, arrays or nested lists
            by name: `features`, and `paired_features` for strategies on pairs.

    Raises:
        FeaturesError: a file of another format, or values that are no tensors.
        OSError: the file cannot be read.
    """
    if isinstance(features, Mapping):
        return _serialize(features)
    source = Path(features) if isinstance(features, str) else features
    try:
        require_safetensors(source)
    except WeightsError as error:
        # What else it says is about a model's weights.
        raise FeaturesError(f"{error.problem}. {_HOW}") from error
    return source


def _serialize(features: Mapping[str, Any]) -> bytes:
    from lipt.common.weights.container import pack  # noqa: PLC0415 - imports torch

    try:
        tensors = {str(name): _tensor(values) for name, values in features.items()}
        return pack(tensors)
    except (TypeError, ValueError, RuntimeError, WeightsError) as error:
        raise FeaturesError(f"the features are no tensors ({error}). {_HOW}") from error


def _tensor(values: Any) -> Tensor:
    import torch  # noqa: PLC0415 - slow, and not always needed

    return torch.as_tensor(values).detach()
