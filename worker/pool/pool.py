"""Pool: as many workers as open learners, until stopped.

It grows at once, and shrinks slowly without ending a busy worker. Idle workers leave by themselves;
the pool ends workers only when no learner is open. A short pause between runs therefore costs no
worker.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from lipt.common.access.tls import TlsFiles, split_address
from lipt.common.access.tokens import TokenSource
from lipt.common.backoff import Backoff
from lipt.common.errors import LiptError, ProcessEndedError
from lipt.common.rpc.channel import LongPoll, open_channel
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.pool import Ended, LocalEngine
from lipt.worker.pool.ray_engine import RayEngine
from lipt.worker.settings import PoolSettings

logger = logging.getLogger(__name__)

Demand = worker_pb2.GetDemandResponse

# Longest wait for demand before workers are checked again.
_POLL_SECONDS = 2.0
_RETRY_SECONDS = 1.0
_CALL_SECONDS = 20.0
# Exit status for invalid arguments.
_USAGE = 2
# A worker that fails earlier has probably never worked.
_YOUNG_SECONDS = 60.0
_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)


class DemandSource:
    """A pool's calls to its coordinator."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._workers = worker_pb2_grpc.WorkerServiceStub(channel)
        self.polls = LongPoll()

    def wait(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        """The demand once it differs from `known`, at the time-out, or when interrupted."""
        request = worker_pb2.GetDemandRequest(wait_seconds=wait_seconds, known=known)
        timeout = wait_seconds + _CALL_SECONDS
        call = self.polls.answered(lambda: self._workers.GetDemand.future(request, timeout=timeout))
        return call.result() if call else known or Demand()


@dataclass(eq=False)
class Pool:
    """One pool; ranges of examples count as open learners if `has_data`."""

    settings: PoolSettings
    arguments: Sequence[str]
    source: DemandSource
    engine: LocalEngine | RayEngine
    has_data: bool = False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        # Start times by number.
        self._workers: dict[int, float] = {}
        self._leaving: set[int] = set()
        self._num_failed, self._not_before = 0, -math.inf
        self._demand: Demand | None = None
        self._quiet_since = self.clock()
        self._logged_error: type[LiptError] | None = None

    def stop(self) -> None:
        self._stopping.set()
        self.source.polls.interrupt()

    def run(self, check: Callable[[], object] = lambda: None) -> None:
        """Work until `stop`, an error of `check`, or a worker that refuses its arguments."""
        while not self._stopping.is_set():
            check()
            try:
                found = self.source.wait(self._demand, wait_seconds=_POLL_SECONDS)
            except LiptError as error:
                # Logged once: the coordinator may be away for hours.
                if self._logged_error is not type(error):
                    logger.warning("%s Trying again until it answers.", error)
                self._logged_error = type(error)
                self._stopping.wait(max(_RETRY_SECONDS, error.retry_after_seconds or 0.0))
                continue
            self._logged_error = None
            if not self._stopping.is_set():
                self.tend(found)

    def tend(self, demand: Demand) -> None:
        """Remove ended workers, and start or end others by demand."""
        now, settings = self.clock(), self.settings
        num_open = demand.num_queued + demand.num_leased + demand.num_upcoming
        num_open += demand.num_ranges if self.has_data else 0
        self._demand = demand
        if num_open:
            self._quiet_since = now
        for ended in self.engine.ended():
            self._remove_ended(ended, now)
        missing = min(settings.workers, num_open) - len(self._workers) + len(self._leaving)
        if missing > 0 and now >= self._not_before:
            logger.info("starting %s for %d learners and ranges", _workers(missing), num_open)
            leaves = ["--max-idle-seconds", f"{settings.idle_seconds:g}"]
            for _ in range(missing):
                number = min(set(range(len(self._workers) + 1)) - self._workers.keys())
                self.engine.start(number, [*leaves, *self.arguments])
                self._workers[number] = now
            return
        idle = self._workers.keys() - self._leaving
        if idle and now - self._quiet_since >= settings.idle_seconds:
            logger.info("ending %s: there is no learner", _workers(len(idle)))
            self.engine.stop(idle)
            self._leaving |= idle

    def _remove_ended(self, ended: Ended, now: float) -> None:
        age_seconds = now - self._workers.pop(ended.number)
        if ended.number in self._leaving:
            self._leaving.discard(ended.number)
            return
        name = f"worker {ended.number}"
        if ended.status == _USAGE:
            raise ProcessEndedError(f"{name} refuses its arguments:\n{ended.tail}")
        if ended.status == 0:
            logger.info("%s is done; %s left", name, _workers(len(self._workers)))
            return
        if ended.status is not None:
            if age_seconds >= _YOUNG_SECONDS:
                self._num_failed, self._not_before = 0, -math.inf
            # Simultaneous failures count as one.
            elif now >= self._not_before:
                self._num_failed += 1
                self._not_before = now + _BACKOFF.pause_seconds(self._num_failed)
        how = "was lost" if ended.status is None else f"ended with status {ended.status}"
        logger.warning(
            "%s %s after %.0f s; its last lines:\n%s", name, how, age_seconds, ended.tail
        )


def _workers(number: int) -> str:
    return f"{number} worker{'' if number == 1 else 's'}"


@contextmanager
def open_pool_workers(
    settings: PoolSettings, worker_arguments: Sequence[str], *, print_line: Callable[[str], object]
) -> Iterator[Pool]:
    """A pool whose workers end with the block; `print_line` gets the output lines of local ones."""
    split_address(settings.coordinator)
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    token = TokenSource.from_options(settings.token_file, settings.token)
    arguments = [*own_arguments(settings), *worker_arguments]
    engine = (
        RayEngine(settings) if settings.ray else LocalEngine(settings.gpus_per_worker, print_line)
    )
    has_data = any(word.partition("=")[0] == "--worker-data" for word in worker_arguments)
    try:
        with open_channel(settings.coordinator, tls, token) as channel:
            source = DemandSource(channel)
            yield Pool(settings, arguments, source, engine, has_data=has_data)
    finally:
        logger.info("ending all workers")
        engine.close()


def own_arguments(settings: PoolSettings) -> list[str]:
    """The pool's own settings as worker flags: paths, never secrets."""
    files = {
        "--tls-cert": settings.tls_cert,
        "--tls-key": settings.tls_key,
        "--tls-ca": settings.tls_ca,
        "--token-file": settings.token_file,
    }
    flags = {
        "--coordinator": settings.coordinator,
        "--log-level": settings.log_level,
        **{flag: str(path.absolute()) for flag, path in files.items() if path is not None},
    }
    return [word for flag in flags.items() for word in flag]
