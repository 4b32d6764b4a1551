"""Subset reception: the answer put together, over several streams where one breaks, and checked.

Examples go into arrays that grow to the announced length, by doubling, so that what is only
announced takes no memory; the subset then keeps these very arrays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import SubsetError
from lipt.common.subsets.difference import Difference, Examples, apply_difference
from lipt.common.subsets.packing import PackedRun, unpack
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import subset_pb2

# So many examples are made room for before any has come: 12 MiB.
_ROOM_AT_FIRST = 2**20


class Reception:
    """What has come of an answer so far: examples, or a difference to `base`.

    Args:
        base: a subset that is here; the answer may be the difference to it.

    Raises:
        SubsetError: more examples or fewer than announced, or others than the digest says; a
            difference to another subset; a stream that goes on elsewhere than asked to.
    """

    def __init__(self, base: Subset | None) -> None:
        self._base = base
        self._description = subset_pb2.Subset()
        self._contents: _Whole | _Changes = _Whole(0)

    def asking(self, request: subset_pb2.GetSubsetRequest) -> subset_pb2.GetSubsetRequest:
        """The request, for what has not come yet."""
        asked = subset_pb2.GetSubsetRequest()
        asked.CopyFrom(request)
        if isinstance(self._contents, _Whole) and len(self._contents):
            asked.received_digest = self._description.digest
            asked.num_received = len(self._contents)
        return asked

    def describe(self, description: subset_pb2.Subset) -> None:
        """Begin with what is described, or go on with it."""
        if description.difference_to:
            if self._base is None or description.difference_to != self._base.digest:
                raise SubsetError(
                    f"the coordinator sent the difference to subset "
                    f"{description.difference_to!r}, and "
                    f"{self._base.digest if self._base else 'none'} is here. Ask again without "
                    "`previous`."
                )
            self._contents = _Changes(self._base, description.num_examples)
        elif not description.resumed_at:
            self._contents = _Whole(description.num_examples)
        else:
            self._require_the_same(description)
        self._description = description

    def add(self, kind: str, part: Any) -> None:
        """Keep a part: of `examples`, `packed`, or `difference`."""
        announced = "difference" if isinstance(self._contents, _Changes) else "examples"
        if (kind == "difference") != (announced == "difference"):
            raise SubsetError(
                f"the coordinator announced a subset in parts of {announced} and sent {kind}. "
                "Ask again; if it stays so, see the coordinator's log."
            )
        if isinstance(self._contents, _Changes):
            self._contents.add(part)
        elif kind == "packed":
            packed = PackedRun(part.first, part.low_bits, part.high, part.low, part.weights)
            self._contents.add(unpack(packed))
        else:
            indices, weights = np.array(part.indices, np.int64), np.array(part.weights, np.float32)
            self._contents.add(Examples(indices, weights))

    def subset(self) -> Subset:
        """All parts together, which have to have the announced count and digest."""
        description = self._description
        examples = self._contents.examples()
        if len(examples) != description.num_examples:
            _refuse_count(description.num_examples, len(examples))
        return Subset(
            indices=examples.indices_K,
            weights=examples.weights_K,
            fingerprint=description.fingerprint,
            digest=description.digest,
            strategy=description.strategy,
            manifest=_manifest(description.manifest_json),
            kept=description.kept,
            handed_over=True,
        )

    def _require_the_same(self, description: subset_pb2.Subset) -> None:
        come = len(self._contents) if isinstance(self._contents, _Whole) else 0
        here = self._description.digest, self._description.num_examples, come
        there = description.digest, description.num_examples, description.resumed_at
        if here != there:
            raise SubsetError(
                f"the coordinator goes on with subset {there[0]!r} of {there[1]} examples at "
                f"{there[2]}, where {here[2]} of the {here[1]} of {here[0]!r} had come. Ask again."
            )


class _Whole:
    """All examples, in arrays that grow as they come."""

    def __init__(self, announced: int) -> None:
        self._announced, self._count = announced, 0
        self._indices: NDArray[np.int64] = np.empty(0, np.int64)
        self._weights: NDArray[np.float32] = np.empty(0, np.float32)

    def __len__(self) -> int:
        return self._count

    def add(self, some: Examples) -> None:
        indices, weights = some.indices_K, some.weights_K
        # What follows could be without end.
        end = self._count + max(len(indices), len(weights))
        if end > self._announced:
            _refuse_count(self._announced, end)
        if len(indices) != len(weights):
            raise SubsetError(
                f"the coordinator sent {len(indices)} indices with {len(weights)} weights, and "
                "there is one weight per index. Ask again; if it stays so, see its log."
            )
        if end > len(self._indices):
            self._resize(min(max(2 * end, _ROOM_AT_FIRST), self._announced))
        self._indices[self._count : end] = indices
        self._weights[self._count : end] = weights
        self._count = end

    def examples(self) -> Examples:
        self._resize(self._count)
        return Examples(self._indices, self._weights)

    def _resize(self, count: int) -> None:
        # Where it lies, or moved by the kernel: no copy beside it. Nobody else looks at it.
        self._indices.resize(count, refcheck=False)
        self._weights.resize(count, refcheck=False)


class _Changes:
    """A difference to a subset that is here."""

    def __init__(self, base: Subset, announced: int) -> None:
        self._base, self._announced = base, announced
        self._removed = np.empty(0, np.int64)
        self._indices, self._weights = np.empty(0, np.int64), np.empty(0, np.float32)

    def add(self, part: subset_pb2.SubsetDifference) -> None:
        self._removed = _followed(self._removed, part.removed)
        if len(self._removed) > len(self._base):
            raise SubsetError(
                f"the coordinator removes {len(self._removed)} of the {len(self._base)} "
                "examples that are here. Ask again without `previous`, for the whole subset."
            )
        self._indices = _followed(self._indices, part.indices)
        self._weights = _followed(self._weights, part.weights)
        received = max(len(self._indices), len(self._weights))
        if received > self._announced:
            _refuse_count(self._announced, received)

    def examples(self) -> Examples:
        old = Examples(self._base.indices, self._base.weights)
        changed = Examples(self._indices, self._weights)
        return apply_difference(old, Difference(self._removed, changed))


def _refuse_count(announced: int, found: int) -> NoReturn:
    raise SubsetError(
        f"the coordinator announced {announced} examples and sent {found}. Ask again; if it "
        "stays so, see the coordinator's log."
    )


def _followed(column: np.ndarray, values: Sequence[float]) -> np.ndarray:
    return np.append(column, np.array(values, dtype=column.dtype))


def _manifest(text: str) -> dict[str, object]:
    try:
        manifest = json.loads(text or "{}")
    except ValueError as error:
        raise SubsetError(f"the subset's manifest is not JSON ({error}). Ask again.") from None
    if not isinstance(manifest, dict):
        raise SubsetError("the subset's manifest is not a JSON object. Ask again.")
    return manifest
