"""Upload sources: a user's own weights or features, as safetensors.

Other formats are refused before upload; the coordinator checks shapes and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lipt.common.errors import FeaturesError, WeightsError
from lipt.common.tensor_header import require_safetensors

_HOW = (
    "Give {'features': N x d} with one row per example, for strategies on pairs also "
    "'paired_features', or a file that safetensors.torch.save_file wrote of them."
)

Source = str | Path | bytes
# A file, its content, tensors by name, or a tensor or array of features.
Features = Source | Mapping[str, Any] | Any


def weights_source(weights: Source) -> Path | bytes:
    """Return a path, or safetensors content (also of `torch.save` files); else WeightsError."""
    source = Path(weights) if isinstance(weights, str) else weights
    if not isinstance(source, Source):
        raise WeightsError(
            f"the weights are a {type(weights).__name__}. Give a safetensors file or its content, "
            "as safetensors.torch.save(model.state_dict()) returns it."
        )
    try:
        require_safetensors(source)
    except WeightsError as error:
        if isinstance(source, bytes):
            raise
        from lipt.common.tensor_files import pack  # noqa: PLC0415
        from lipt.models.checkpoints import read_torch_file, state_dict_in  # noqa: PLC0415

        try:
            return pack(state_dict_in(read_torch_file(source)))
        except ValueError as reason:
            why = str(reason).partition("\n")[0]
            raise WeightsError(f"{error} Its tensors alone cannot be read either: {why}") from None
    return source


def features_source(features: Features) -> Path | bytes:
    """Return a path, or a safetensors file's content; FeaturesError for other values."""
    if isinstance(features, Source):
        source = Path(features) if isinstance(features, str) else features
        try:
            require_safetensors(source)
        except WeightsError as error:
            # The rest of the message is about model weights.
            raise FeaturesError(f"{error.problem}. {_HOW}") from error
        except OSError as error:
            raise FeaturesError(f"the features cannot be read: {error}. {_HOW}") from error
        return source
    named = features if isinstance(features, Mapping) else {"features": features}
    import numpy as np  # noqa: PLC0415 - as torch
    import torch  # noqa: PLC0415 - slow, and a file needs none of it

    from lipt.common.tensor_files import pack  # noqa: PLC0415

    def tensor(values: Any) -> torch.Tensor:
        if isinstance(values, np.ndarray):  # copied where it is read-only or in another order
            values = np.require(values, requirements=("C", "W"))
        return torch.as_tensor(values).detach()

    try:
        return pack({str(name): tensor(values) for name, values in named.items()})
    except (TypeError, ValueError, RuntimeError, WeightsError) as error:
        raise FeaturesError(f"the features are no tensors ({error}). {_HOW}") from error


def option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
