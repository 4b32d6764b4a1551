"""Subset stream: the request, and asking until the whole answer has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

from lipt.common.errors import InvalidRequestError, SubsetError
from lipt.trainer.client.conversion import view_of
from lipt.trainer.client.subset_reception import Reception
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
        accept_packed=True,
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

    A stream that breaks among the examples goes on after those that have come.

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
        SubsetError: as `Reception`, or examples came before their description.
    """
    reception = Reception(previous if isinstance(previous, Subset) else None)
    while True:
        responses = connection.stream(
            lambda of: of.subsets.GetSubset,
            reception.asking(request),
            idle_seconds=_IDLE_SECONDS,
        )
        try:
            # Closed here: the stream holds the channel until it has ended.
            with closing(responses):
                _receive(reconnection.heard(responses), on_progress, reception)
                subset = reception.subset()
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
    reception: Reception,
) -> None:
    described = False
    for response in responses:
        part = response.WhichOneof("part")
        if part == "progress" and on_progress:
            on_progress(view_of(ProgressView, response.progress))
        elif part == "subset":
            reception.describe(response.subset)
            described = True
        elif part in ("examples", "packed", "difference"):
            if not described:
                break
            reception.add(part, getattr(response, part))
    if not described:
        raise SubsetError("the coordinator sent no description of the subset. Ask again.")


def _option_text(value: object) -> str:
    # True travels as the command line would write it.
    return str(value).lower() if isinstance(value, bool) else str(value)
