"""Codec parts: the bitmask and the description that both encodings of weights have.

A value is kept when its bit pattern is not zero, so -0.0 and every NaN survive. The bitmask of n
values has ceil(n / 8) bytes: bit i % 8 of byte i // 8, counted from the lowest, is set when value
i is kept; row-major over the values; padding bits are zero. The description is JSON in the file's
metadata, without spaces: {"version":V,PART:{NAME:...}}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.container import bytes_of
from lipt.common.weights.specs import TensorSpec, quoted


def split(tensor: torch.Tensor) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """A tensor's bitmask, and the bit patterns of the kept values as unsigned integers."""
    bits = bits_of(tensor)
    kept = bits != 0
    return np.packbits(kept, bitorder="little"), bits[kept]


def join(
    mask: npt.NDArray[np.uint8], values: npt.NDArray[Any], spec: TensorSpec, name: str
) -> torch.Tensor:
    """The tensor that has these bit patterns where its bitmask says.

    Args:
        mask: as many bytes as the tensor's bitmask has.
        values: unsigned integers of the tensor's item size.
        spec: the tensor's shape and dtype.
        name: what errors call it.

    Raises:
        WeightsError: the mask goes on after its end, or keeps another number of values.
    """
    num_padding = -spec.num_elements % 8
    if num_padding and int(mask[-1]) >> (8 - num_padding):
        raise contradiction(f"the mask of {quoted(name)} sets bits after its end")
    kept = np.unpackbits(mask, count=spec.num_elements, bitorder="little").view(np.bool_)
    num_kept = int(np.count_nonzero(kept))
    if num_kept != values.size:
        raise contradiction(
            f"the mask of {quoted(name)} keeps {num_kept} values, {values.size} follow"
        )
    tensor = torch.zeros(spec.shape, dtype=spec.dtype)
    bits_of(tensor)[kept] = values
    return tensor


def bits_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's bit patterns; a view of it where its layout allows."""
    # numpy has no bfloat16, and -0.0 == 0.0: bit patterns are compared and moved instead.
    return bytes_of(tensor).view(f"u{tensor.itemsize}")


def describe(key: str, version: int, **part: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that `read_description` reads."""
    content = {"version": version, **part}
    return {key: json.dumps(content, separators=(",", ":"), ensure_ascii=False)}


def read_description(
    metadata: Mapping[str, str], key: str, version: int, part: str
) -> dict[str, Any]:
    """What a file's metadata says of its tensors, by name.

    Raises:
        WeightsError: it is not of this form, or of another version.
    """
    try:
        description = json.loads(metadata[key])
        found, entries = description["version"], dict(description[part].items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise contradiction(f"{key!r} is not version and {part}") from None
    if found != version:
        raise WeightsError(
            f"the file has {key!r} of version {str(found)[:20]}, this program reads version "
            f"{version}. Run the same lipt version on both sides."
        )
    return entries


def contradiction(why: str) -> WeightsError:
    """The error for a file whose parts do not agree with each other."""
    return WeightsError(
        f"the encoded weights contradict themselves: {why}. "
        "Encode them again with lipt.common.weights.encodings.encode_weights."
    )
