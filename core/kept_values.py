"""Kept values: what is computed once for a model or a data set, in memory or in a file.

The file is safetensors: tensors by their field's name, mappings of tensors as `field/name`, and the
rest as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import torch

from lipt.common.nested import parse_json
from lipt.common.tensor_files import load_tensors, write_packed


class KeptValue:
    """A dataclass that is kept in a file: tensors, mappings of tensors, and JSON."""

    def save(self, path: Path) -> None:
        """Write a safetensors file, without nested values and tuples."""
        tensors, rest = dict[str, torch.Tensor](), dict[str, Any]()
        for field in fields(cast("Any", self)):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor):
                tensors[field.name] = value.contiguous()
            elif isinstance(value, Mapping) and all(map(torch.is_tensor, value.values())):
                tensors |= {f"{field.name}/{name}": value[name].contiguous() for name in value}
            elif value != field.default and not isinstance(value, (KeptValue, tuple)):
                rest[field.name] = value
        write_packed(path, tensors, {"rest": json.dumps(rest)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Map a file of `save` into memory; pages are read on use."""

        def build(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> Any:
            values: dict[str, Any] = parse_json(metadata["rest"])
            for field in fields(cast("Any", cls)):
                if field.name in values and isinstance(field.default, Enum):
                    values[field.name] = type(field.default)(values[field.name])
            for name, tensor in tensors.items():
                owner, slash, part = name.partition("/")
                if slash:
                    values.setdefault(owner, {})[part] = tensor
                else:
                    values[name] = tensor
            return cls(**values)

        value: Self = load_tensors(path, build)
        return value


KeptT = TypeVar("KeptT", bound=KeptValue)


@dataclass(frozen=True)
class Key(Generic[KeptT]):
    """The name of a kept value.

    depends_on: compared by `repr`. models: number of models of the warm-up that it belongs to.
    """

    of: type[KeptT]
    kind: str
    depends_on: tuple[object, ...]
    models: int = 0
