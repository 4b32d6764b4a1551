"""Torch's own files: what `torch.save` wrote, read as tensors and plain containers alone.

The one place where such a file is opened; the linter bans `torch.load`, `pickle` and their like
everywhere else. None of these files comes from a peer: an operator or a user names them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

# Where programs put a model's weights among other things.
_STATE_KEYS = ("state_dict", "model_state_dict", "model")


def read_torch_file(path: Path) -> Any:
    """The content of the file, with all tensors on the CPU; no object of it is unpickled.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds more than tensors and plain containers, is cut, or is no such file.
    """
    try:
        # Of a foreign pickle torch warns before it refuses it.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from error


def state_dict_in(content: Any) -> dict[str, torch.Tensor]:
    """The tensors of a model in what `read_torch_file` gave, by name.

    They are at the top, or one level below: under `state_dict`, `model_state_dict` or `model`, else
    under the only key that has tensors. What is no tensor beside them is left out.

    Raises:
        ValueError: there are none, or under several keys.
    """
    parts = content if isinstance(content, Mapping) else {}
    if found := _tensors(parts):
        return found
    below = {str(key): found for key, part in parts.items() if (found := _tensors(part))}
    known = [key for key in _STATE_KEYS if key in below]
    if not known and len(below) != 1:
        keys = ", ".join(map(repr, below or parts))
        raise ValueError(f"no state dict among {keys or 'nothing'}: save model.state_dict() alone")
    return below[known[0] if known else next(iter(below))]


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    if not isinstance(part, Mapping):
        return {}
    return {str(key): item for key, item in part.items() if isinstance(item, torch.Tensor)}
