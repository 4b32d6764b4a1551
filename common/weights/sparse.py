"""The sparse codec: pruned weights as a bitmask and the values that were kept.

A file is a safetensors file whose metadata has the key `lipt.sparse` with
{"version":1,"shapes":{NAME:[...]}}: names sorted, no spaces. Each tensor NAME is
stored in one of two forms:

    dense/NAME    the tensor as it is
    mask/NAME     uint8, ceil(n / 8): bit i % 8 of byte i // 8, counted from the lowest, is
                  set when value i is kept; row-major over the n values; padding bits are zero
    values/NAME   the kept values in row-major order, 1-D, of the tensor's dtype

`shapes` has the shapes of those with a mask, which the other two do not tell.

A value is kept when its bit pattern is not zero. -0.0 and every NaN survive:
decoding gives back the very bits, so the soup is that of the unpruned path.
A tensor gets a mask when it is floating point and ceil(n / 8) plus its kept
values take fewer bytes than the tensor. COO indices would take more than the
dense tensor at the densities of 0.85 to 0.95 that learners have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.container import Container, bytes_of, is_shape, pack
from lipt.common.weights.specs import TensorSpec, check_specs, quoted

METADATA_KEY = "lipt.sparse"
_VERSION = 1


def encode_sparse(weights: Mapping[str, torch.Tensor]) -> bytes:
    """Encode weights without loss; equal weights give equal bytes.

    Args:
        weights: tensors by name, any shape, dtype, layout and device.

    Raises:
        WeightsError: a tensor's dtype is not one of the format's.
    """
    stored: dict[str, torch.Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in sorted(weights.items()):
        masked = _mask(tensor)
        if masked is None:
            stored[f"dense/{name}"] = tensor
        else:
            stored[f"mask/{name}"], stored[f"values/{name}"] = masked
            shapes[name] = list(tensor.shape)
    description = {"version": _VERSION, "shapes": shapes}
    text = json.dumps(description, separators=(",", ":"), ensure_ascii=False)
    return pack(stored, {METADATA_KEY: text})


def _mask(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    if not tensor.is_floating_point():
        return None
    bits = _integers(bytes_of(tensor), tensor.itemsize)
    kept = bits != 0
    num_mask_bytes = -(-bits.size // 8)
    if num_mask_bytes + int(np.count_nonzero(kept)) * tensor.itemsize >= bits.nbytes:
        return None
    values = torch.from_numpy(bits[kept]).view(tensor.dtype)
    return torch.from_numpy(np.packbits(kept, bitorder="little")), values


def _integers(values: npt.NDArray[np.uint8], itemsize: int) -> npt.NDArray[Any]:
    # numpy has no bfloat16, and -0.0 == 0.0: bit patterns are compared and moved instead.
    return values.view(np.dtype(f"i{itemsize}"))


def sparse_decoder(
    container: Container, *, like: Mapping[str, TensorSpec]
) -> Callable[[str], torch.Tensor]:
    """What decodes a file of `encode_sparse` that must hold exactly the tensors of a model.

    Every size is compared with `like` before anything is allocated for it.

    Args:
        container: the file.
        like: the model's tensors.

    Returns:
        Decodes the tensor of a name: on the CPU, independent of the file.

    Raises:
        WeightsError: not a sparse file, or one that contradicts itself or `like`; what
            concerns a tensor's values when it is decoded.
    """
    shapes = _read_shapes(container.metadata)
    check_specs(dict(_declared(container.specs, shapes)), like)

    def decode(name: str) -> torch.Tensor:
        if name in shapes:
            return _unmask(container, name, like[name])
        return container.tensor(f"dense/{name}")

    return decode


def _read_shapes(metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    if METADATA_KEY not in metadata:
        raise WeightsError(
            f"the file has no {METADATA_KEY!r} in its metadata, so it is not sparse weights. "
            "Dense weights are read with read_weights."
        )
    try:
        description = json.loads(metadata[METADATA_KEY])
        version, shapes = description["version"], description["shapes"]
        valid = all(is_shape(shape) for shape in shapes.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _contradiction(f"{METADATA_KEY!r} is not version and shapes") from None
    if version != _VERSION:
        raise WeightsError(
            f"the file is sparse weights of version {str(version)[:20]}, this program reads "
            f"version {_VERSION}. Run the same lipt version on both sides."
        )
    if not valid:
        raise _contradiction(f"{METADATA_KEY!r} has an impossible shape")
    return {name: tuple(shape) for name, shape in shapes.items()}


def _declared(
    specs: Mapping[str, TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, TensorSpec]]:
    """What the header says the tensors are, once its parts agree with each other."""
    for stored, spec in specs.items():
        form, _, name = stored.partition("/")
        if form == "dense" and name not in shapes:
            yield name, spec
        elif form not in ("mask", "values") or name not in shapes:
            raise _contradiction(f"{quoted(stored)} is neither dense nor one of the masked tensors")
    for name, shape in shapes.items():
        mask, values = specs.get(f"mask/{name}"), specs.get(f"values/{name}")
        if mask is None or values is None:
            raise _contradiction(
                f"{quoted(name)} is declared as masked, but its mask or values miss"
            )
        spec = TensorSpec(shape, values.dtype)
        expected = TensorSpec((-(-spec.num_elements // 8),), torch.uint8)
        if mask != expected:
            raise _contradiction(f"the mask of {quoted(name)} is {mask}, {spec} needs {expected}")
        if not spec.dtype.is_floating_point or len(values.shape) != 1:
            raise _contradiction(
                f"the values of {quoted(name)} are {values}, not 1-D floating point"
            )
        yield name, spec


def _unmask(container: Container, name: str, spec: TensorSpec) -> torch.Tensor:
    packed = container.values(f"mask/{name}")
    num_padding = -spec.num_elements % 8
    if num_padding and int(packed[-1]) >> (8 - num_padding):
        raise _contradiction(f"the mask of {quoted(name)} sets bits after its end")
    kept = np.unpackbits(packed, count=spec.num_elements, bitorder="little").view(np.bool_)
    values = _integers(container.values(f"values/{name}"), spec.dtype.itemsize)
    num_kept = int(np.count_nonzero(kept))
    if num_kept != values.size:
        raise _contradiction(
            f"the mask of {quoted(name)} keeps {num_kept} values, {values.size} follow"
        )
    tensor = torch.zeros(spec.shape, dtype=spec.dtype)
    _integers(bytes_of(tensor), tensor.itemsize)[kept] = values
    return tensor


def _contradiction(why: str) -> WeightsError:
    return WeightsError(
        f"the sparse weights contradict themselves: {why}. "
        "Encode them again with lipt.common.weights.sparse.encode_sparse."
    )
