"""Tensor specs: names, shapes and dtypes that a peer's weights file must have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lipt.common.errors import WeightsError
from lipt.common.text import listed

Weights = dict[str, torch.Tensor]

_MAX_NAME_CHARACTERS = 100


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def copy_to_cpu(tensors: Mapping[str, torch.Tensor]) -> Weights:
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }


def specs_of(weights: Mapping[str, torch.Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}


def quoted(name: str) -> str:
    """A name quoted for an error; a peer's may be long or unprintable."""
    return repr(name if len(name) <= _MAX_NAME_CHARACTERS else f"{name[:_MAX_NAME_CHARACTERS]}...")


def check_specs(found: Mapping[str, TensorSpec], like: Mapping[str, TensorSpec]) -> None:
    """Refuse weights that do not match the model."""
    differing = {name: found.get(name) for name, spec in like.items() if found.get(name) != spec}
    strange = {name: spec for name, spec in found.items() if name not in like}
    if differing or strange:
        raise differences(differing, strange, like)


def differences(
    differing: Mapping[str, TensorSpec | None],
    strange: Mapping[str, TensorSpec],
    like: Mapping[str, TensorSpec],
    *,
    remedy: str = "Give weights of this model, or name the model that they belong to.",
) -> WeightsError:
    """The error for weights with missing, changed or `strange` tensors."""
    clauses = [
        f"{quoted(name)} is {found or 'missing'}, the model has {like[name]}"
        for name, found in differing.items()
    ]
    clauses += [
        f"{quoted(name)} is {spec}, the model has no such tensor" for name, spec in strange.items()
    ]
    shown = listed(clauses, 3, separator="; ")
    return WeightsError(
        f"the weights differ from the model's in {len(clauses)} tensors: {shown}. {remedy}"
    )
