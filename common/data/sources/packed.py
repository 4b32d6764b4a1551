"""Packed names: very many short texts as one block of bytes, which a file can be mapped to.

A Python list of a million paths takes 150 MB and more; packed they take what their letters do.

Shapes: N names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedNames:
    """Names in order.

    Attributes:
        letters: uint8, of all of them, one behind the other, as UTF-8.
        ends_N: int64, where each ends in `letters`.
    """

    letters: Tensor
    ends_N: Tensor

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Pack names; of any bytes, where they are a file system's."""
        encoded = [name.encode(errors="surrogateescape") for name in names]
        lengths_N = torch.tensor([len(name) for name in encoded], dtype=torch.int64)
        joined = bytearray(b"".join(encoded))
        letters = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0).byte()
        return cls(letters, lengths_N.cumsum(0))

    def __getitem__(self, row: int) -> str:
        start = int(self.ends_N[row - 1]) if row else 0
        letters = self.letters[start : int(self.ends_N[row])].numpy().tobytes()
        return str(letters, "utf-8", "surrogateescape")

    def __len__(self) -> int:
        return len(self.ends_N)
