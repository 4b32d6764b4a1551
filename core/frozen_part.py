"""Frozen part: what learners have of theta* as it is, and what they hand in without it.

A learner's file has what it trained alone. theta*'s own file says in its metadata, under
`lipt.frozen`, which of its tensors that leaves out, as a JSON list of sorted names: who checks
what comes in needs neither the model nor the patterns. A run without frozen layers has no such
entry.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lipt.common.weights.container import pack
from lipt.common.weights.encodings import open_weights
from lipt.common.weights.specs import TensorSpec, Weights

_KEY = "lipt.frozen"


def pack_initial(weights: Weights, frozen: Collection[str]) -> bytes:
    """theta*'s file; `frozen` names what learners leave as it is."""
    return pack(weights, {_KEY: json.dumps(sorted(frozen))} if frozen else None)


def frozen_in(metadata: Mapping[str, str]) -> frozenset[str]:
    """What `pack_initial` was told, from the file's metadata."""
    return frozenset(json.loads(metadata.get(_KEY, "[]")))


@dataclass(frozen=True)
class LearnerReader:
    """Opens learners' files as whole states of their model.

    specs: the model's tensors.
    frozen: those of theta* that no learner changes; shared among all that is opened.
    """

    specs: Mapping[str, TensorSpec]
    frozen: Weights

    @classmethod
    def of(
        cls, specs: Mapping[str, TensorSpec], initial: Mapping[str, Tensor], frozen: Collection[str]
    ) -> LearnerReader:
        """A reader that keeps of theta* no more than it needs."""
        return cls(specs, {name: initial[name] for name in specs if name in frozen})

    def open(self, source: bytes | Path) -> Mapping[str, Tensor]:
        """Open a result or a snapshot; each access decodes a tensor anew, or gives theta*'s own.

        Raises:
            BlobTooLargeError, WeightsError: as `open_weights`.
        """
        trained = {name: spec for name, spec in self.specs.items() if name not in self.frozen}
        opened = open_weights(source, like=trained)
        return _Whole(self.specs, self.frozen, opened) if self.frozen else opened


@dataclass(frozen=True, eq=False)
class _Whole(Mapping[str, Tensor]):
    specs: Mapping[str, TensorSpec]
    frozen: Weights
    trained: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.frozen[name] if name in self.frozen else self.trained[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)
