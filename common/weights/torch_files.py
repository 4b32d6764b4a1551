"""Torch's own files: what `torch.save` wrote, read as tensors and plain containers alone.

The one place where such a file is opened; the linter bans `torch.load`, `pickle` and their like
everywhere else. None of these files comes from a peer: an operator or a user names them.
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch


def read_torch_file(path: Path) -> Any:
    """The content of the file, with all tensors on the CPU; no object of it is unpickled.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds more than tensors and plain containers, is cut, or is no such file.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from error
