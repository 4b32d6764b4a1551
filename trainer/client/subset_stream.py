"""Subset stream: the request, and the answer put together and checked against its description."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NoReturn

import numpy as np

from lipt.common.errors import InvalidRequestError, SubsetError
from lipt.common.subsets.difference import Difference, Examples, apply_difference
from lipt.trainer.client.conversion import view_of
from lipt.trainer.connection.connection import Connection
from lipt.trainer.connection.reconnection import INTERRUPTIONS, Reconnection
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
    preset: str | None = None,
    proxy: str | None = None,
    labels: str | None = None,
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
        preset=preset,
        proxy=proxy,
        labels=labels,
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
    """Ask until the whole answer has come: progress, a description, then its examples.

    Args:
        connection: where to ask.
        request: made by `subset_request`.
        on_progress: called as the computation goes on.
        previous: what the request named; the answer may be its difference to this.
        reconnection: how long a broken stream is opened again.

    Raises:
        UnreachableError: the coordinator stayed away too long.
        QueueFullError: it had too much to do for too long.
        InvalidRequestError: the coordinator does not know presets, or choices without labels,
            and one was asked for.
        SubsetError: examples before their description, more or fewer than it
            says, or others than its digest says; a difference to another subset.
    """
    base = previous if isinstance(previous, Subset) else None
    while True:
        responses = connection.stream(
            lambda of: of.subsets.GetSubset, request, idle_seconds=_IDLE_SECONDS
        )
        try:
            # Closed here: the stream holds the channel until it has ended.
            with closing(responses):
                subset = _receive(reconnection.heard(responses), on_progress, base)
                _require_preset(subset, request.preset)
                _require_labels(subset, request.labels)
                return subset
        except INTERRUPTIONS as error:
            reconnection.pause(error)


def _require_preset(subset: Subset, preset: str) -> None:
    # An older coordinator passes over what it does not know.
    if preset and subset.manifest.get("preset") != preset:
        raise InvalidRequestError(
            f"preset {preset!r} was asked for, and the coordinator selected without it: it runs a "
            "version that has no presets. Update it, or give the options by name."
        )


def _require_labels(subset: Subset, labels: str) -> None:
    if labels not in ("", "given") and subset.manifest.get("labels") != labels:
        raise InvalidRequestError(
            f"labels={labels} was asked for, and the coordinator selected as if they were given: "
            "it runs a version that cannot do without. Update it."
        )


def _receive(
    responses: Iterable[subset_pb2.GetSubsetResponse],
    on_progress: Callable[[ProgressView], None] | None,
    base: Subset | None,
) -> Subset:
    contents: _Contents | None = None
    for response in responses:
        part = response.WhichOneof("part")
        if part == "progress" and on_progress:
            on_progress(view_of(ProgressView, response.progress))
        elif part == "subset":
            contents = _Contents(response.subset, base)
        elif part in ("examples", "difference"):
            if contents is None:
                break
            contents.add(part, getattr(response, part))
    if contents is None:
        raise SubsetError("the coordinator sent no description of the subset. Ask again.")
    return contents.subset()


class _Contents:
    """What follows a description, in parts: examples, or a difference to `base`."""

    def __init__(self, description: subset_pb2.Subset, base: Subset | None) -> None:
        if description.difference_to and (base is None or description.difference_to != base.digest):
            raise SubsetError(
                f"the coordinator sent the difference to subset {description.difference_to!r}, "
                f"and {base.digest if base else 'none'} is here. Ask again without `previous`."
            )
        self._description = description
        self._base = base if description.difference_to else None
        self._removed = np.empty(0, np.int64)
        self._indices, self._weights = np.empty(0, np.int64), np.empty(0, np.float32)

    def add(self, kind: str, part: Any) -> None:
        """Keep a part.

        Raises:
            SubsetError: it is of the other kind, or more than there can be.
        """
        announced = "examples" if self._base is None else "difference"
        if kind != announced:
            raise SubsetError(
                f"the coordinator announced a subset in parts of {announced} and sent {kind}. "
                "Ask again; if it stays so, see the coordinator's log."
            )
        if self._base is not None:
            self._removed = _followed(self._removed, part.removed)
            if len(self._removed) > len(self._base):
                raise SubsetError(
                    f"the coordinator removes {len(self._removed)} of the {len(self._base)} "
                    "examples that are here. Ask again without `previous`, for the whole subset."
                )
        self._indices = _followed(self._indices, part.indices)
        self._weights = _followed(self._weights, part.weights)
        # What follows could be without end.
        received = max(len(self._indices), len(self._weights))
        if received > self._description.num_examples:
            self._refuse_count(received)

    def subset(self) -> Subset:
        """All parts together, which have to have the announced count and digest."""
        description = self._description
        examples = Examples(self._indices, self._weights)
        if self._base is not None:
            old = Examples(self._base.indices, self._base.weights)
            examples = apply_difference(old, Difference(self._removed, examples))
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


def _followed(column: np.ndarray, values: Sequence[float]) -> np.ndarray:
    return np.append(column, np.array(values, dtype=column.dtype))


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
