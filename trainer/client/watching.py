"""Watch streams, of a run and of the service: they go on when they break and are opened again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lipt.common.errors import UnreachableError
from lipt.trainer.client.connection import INTERRUPTIONS, Connection, Reconnection
from lipt.trainer.client.conversion import view_of
from lipt.trainer.views import RunView, ServiceView
from lipt.v1 import info_pb2, run_pb2

# The coordinator repeats the last revision every few seconds as a sign of life.
_IDLE_SECONDS = 30.0


def get_run(connection: Connection, run_id: str) -> RunView:
    """A run as it is now.

    Raises:
        UnknownRunError: there is none of that name.
    """
    request = run_pb2.GetRunRequest(run_id=run_id)
    return view_of(RunView, connection.unary(lambda of: of.runs.GetRun, request).run)


def watch_run(
    connection: Connection, run_id: str, after_revision: int, *, reconnection: Reconnection
) -> Iterator[RunView]:
    """See `Client.watch`."""
    revision, waiting = after_revision, ""
    while True:
        try:
            for view in reconnection.heard(_watch_once(connection, run_id, revision)):
                run_id = view.run_id
                # Not `>`: a restart after the clock was set back starts lower.
                if view.revision != revision or view.waiting != waiting:
                    revision, waiting = view.revision, view.waiting
                    yield view
                if view.ended:
                    return
        except INTERRUPTIONS as error:
            reconnection.pause(error)
        else:
            # A coordinator that shuts down ends its streams in order.
            reconnection.pause(
                UnreachableError(f"{connection.address} ends the stream of {run_id}.")
            )


def while_going_on(changes: Iterable[RunView]) -> Iterator[RunView]:
    """A run's changes up to the first with which it does not go on by itself."""
    for view in changes:
        yield view
        if not view.goes_on:
            return


def _watch_once(connection: Connection, run_id: str, revision: int) -> Iterator[RunView]:
    request = run_pb2.WatchRunRequest(run_id=run_id, after_revision=revision)
    for response in connection.stream(
        lambda of: of.runs.WatchRun, request, idle_seconds=_IDLE_SECONDS
    ):
        yield view_of(RunView, response.run)
    # A run that had ended before has nothing after its last revision.
    yield get_run(connection, run_id)


def watch_service(
    connection: Connection,
    *,
    interval_seconds: float,
    num_runs: int,
    reconnection: Reconnection,
) -> Iterator[ServiceView]:
    """See `Client.watch_service`."""
    request = info_pb2.WatchServiceRequest(interval_seconds=interval_seconds, num_runs=num_runs)
    while True:
        # Each stream begins with all that there is.
        runs: dict[str, RunView] = {}
        stream = connection.stream(
            lambda of: of.info.WatchService,
            request,
            idle_seconds=_IDLE_SECONDS + interval_seconds,
        )
        try:
            for message in reconnection.heard(stream):
                view = view_of(ServiceView, message)
                runs |= {run.run_id: run for run in view.runs}
                yield replace(view, runs=_newest(runs.values(), num_runs))
        except INTERRUPTIONS as error:
            reconnection.pause(error)
        else:
            reconnection.pause(UnreachableError(f"{connection.address} ends its stream."))


def _newest(runs: Iterable[RunView], num_runs: int) -> tuple[RunView, ...]:
    """The newest so many, and all that have not ended, newest first."""
    in_order = sorted(runs, key=lambda run: (run.created_at is None, run.created_at), reverse=True)
    return tuple(run for place, run in enumerate(in_order) if place < num_runs or not run.ended)
