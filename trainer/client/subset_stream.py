"""Subset stream: the request, and the answer put together and checked against its description."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import NoReturn

import numpy as np

from lipt.common.errors import InvalidRequestError, SubsetError, UnreachableError
from lipt.common.subsets.difference import Difference, Examples, apply_difference
from lipt.trainer.client.conversion import view_of
from lipt.trainer.connection.connection import Connection
from lipt.trainer.connection.reconnection import Reconnection
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import ProgressView
from lipt.v1 import subset_pb2

# A selection reports its progress, but one step of it may take a while.
_IDLE_SECONDS = 300.0


def subset_request(
    run: str,
    strategy: str,
    *,
    fraction: float | None,
    budget: int | None,
    balanced: bool | None,
    options: Mapping[str, object] | None,
    previous: Subset | str | None = None,
) -> subset_pb2.GetSubsetRequest:
    """The request for a subset; None leaves the choice to the strategy.

    Raises:
        InvalidRequestError: both of fraction and budget, or neither.
    """
    if (fraction is None) == (budget is None):
        raise InvalidRequestError(
            f"fraction {fraction} and budget {budget} were given: give one of them, a "
            "fraction in (0, 1] of the data set or a number of examples."
        )
    request = subset_pb2.GetSubsetRequest(
        run_id=run,
        strategy=strategy,
        fraction=fraction,
        budget=budget,
        options={name: _option_text(value) for name, value in (options or {}).items()},
        previous=previous.digest if isinstance(previous, Subset) else previous,
        # Only who has the examples can put a difference to them together.
        accept_difference=isinstance(previous, Subset),
    )
    if balanced is not None:
        request.balanced = balanced
    return request


def fetch_subset(
    connection: Connection,
    request: subset_pb2.GetSubsetRequest,
    on_progress: Callable[[ProgressView], None] | None,
    *,
    previous: Subset | str | None,
    reconnection: Reconnection,
) -> Subset:
    """Ask until the whole answer has come; see `Client.subset`.

    Raises:
        UnreachableError: the coordinator stayed away too long.
        SubsetError: as `receive_subset`.
    """
    while True:
        responses = connection.stream(
            lambda of: of.subsets.GetSubset, request, idle_seconds=_IDLE_SECONDS
        )
        try:
            # Closed here: the stream holds the channel until it has ended.
            with closing(responses):
                return receive_subset(reconnection.heard(responses), on_progress, previous=previous)
        except UnreachableError as error:
            reconnection.pause(error)


def receive_subset(
    responses: Iterable[subset_pb2.GetSubsetResponse],
    on_progress: Callable[[ProgressView], None] | None = None,
    *,
    previous: Subset | str | None = None,
) -> Subset:
    """The subset of a complete stream: progress, a description, then its examples.

    Args:
        responses: the stream.
        on_progress: called as the computation goes on.
        previous: what the request named; the answer may be its difference to this.

    Raises:
        SubsetError: examples before their description, more or fewer than it
            says, or others than its digest says; a difference to another subset.
    """
    contents: _Contents | None = None
    for response in responses:
        part = response.WhichOneof("part")
        if part == "progress" and on_progress:
            on_progress(view_of(ProgressView, response.progress))
        elif part == "subset":
            contents = _Contents(response.subset, previous)
        elif part in ("examples", "difference"):
            if contents is None:
                break
            contents.add(response)
    if contents is None:
        raise SubsetError("the coordinator sent no description of the subset. Ask again.")
    return contents.subset()


class _Contents:
    """What follows a description, in parts: examples, or a difference to `previous`."""

    def __init__(self, description: subset_pb2.Subset, previous: Subset | str | None) -> None:
        base = previous if isinstance(previous, Subset) else None
        if description.difference_to and (base is None or description.difference_to != base.digest):
            raise SubsetError(
                f"the coordinator sent the difference to subset {description.difference_to!r}, "
                f"and {base.digest if base else 'none'} is here. Ask again without `previous`."
            )
        self._description = description
        self._base = base if description.difference_to else None
        self._removed: list[np.ndarray] = []
        self._indices: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []

    def add(self, response: subset_pb2.GetSubsetResponse) -> None:
        """Keep a part.

        Raises:
            SubsetError: it is of the other kind, or more than there can be.
        """
        part: subset_pb2.SubsetExamples | subset_pb2.SubsetDifference
        if self._base is None:
            self._require_kind(response, "examples")
            part = response.examples
        else:
            self._require_kind(response, "difference")
            part = response.difference
            self._removed.append(np.array(part.removed, dtype=np.int64))
            if (removed := _count(self._removed)) > len(self._base):
                raise SubsetError(
                    f"the coordinator removes {removed} of the {len(self._base)} examples that are "
                    "here. Ask again without `previous`, for the whole subset."
                )
        self._indices.append(np.array(part.indices, dtype=np.int64))
        self._weights.append(np.array(part.weights, dtype=np.float32))
        # What follows could be without end.
        received = max(_count(self._indices), _count(self._weights))
        if received > self._description.num_examples:
            self._refuse_count(received)

    def _require_kind(self, response: subset_pb2.GetSubsetResponse, kind: str) -> None:
        found = response.WhichOneof("part")
        if found != kind:
            raise SubsetError(
                f"the coordinator announced a subset in parts of {kind} and sent {found}. "
                "Ask again; if it stays so, see the coordinator's log."
            )

    def subset(self) -> Subset:
        """All parts together, which have to have the announced count and digest."""
        description = self._description
        examples = Examples(_joined(self._indices, np.int64), _joined(self._weights, np.float32))
        if self._base is not None:
            old = Examples(self._base.indices, self._base.weights)
            difference = Difference(_joined(self._removed, np.int64), examples)
            examples = apply_difference(old, difference)
        if len(examples) != description.num_examples:
            self._refuse_count(len(examples))
        return Subset(
            indices=examples.indices_K,
            weights=examples.weights_K,
            fingerprint=description.fingerprint,
            digest=description.digest,
            strategy=description.strategy,
            manifest=_manifest(description.manifest_json),
            kept=description.kept,
        )

    def _refuse_count(self, found: int) -> NoReturn:
        raise SubsetError(
            f"the coordinator announced {self._description.num_examples} examples and sent "
            f"{found}. Ask again; if it stays so, see the coordinator's log."
        )


def _count(parts: list[np.ndarray]) -> int:
    return sum(len(part) for part in parts)


def _joined(parts: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _option_text(value: object) -> str:
    # True travels as the command line would write it.
    return str(value).lower() if isinstance(value, bool) else str(value)


def _manifest(text: str) -> dict[str, object]:
    try:
        manifest = json.loads(text or "{}")
    except ValueError as error:
        raise SubsetError(f"the subset's manifest is not JSON ({error}). Ask again.") from None
    if not isinstance(manifest, dict):
        raise SubsetError("the subset's manifest is not a JSON object. Ask again.")
    return manifest
