"""Pool: as many workers as there are learners for, until it is told to stop.

It grows as soon as there are more open learners than workers. It shrinks slowly, and takes nobody
away who has a learner: a worker that got none for a while leaves by itself, and the pool ends
workers only where no learner is open at all. So a short pause between two runs costs no worker.
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

from lipt.common.access.tokens import TokenSource
from lipt.common.backoff import Backoff
from lipt.common.errors import LiptError, ProcessEndedError
from lipt.common.network.tls import TlsFiles, split_address
from lipt.common.rpc.channel import LongPoll, open_channel
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.pool.processes import Ended, LocalEngine
from lipt.worker.pool.ray_engine import RayEngine
from lipt.worker.settings import PoolSettings

logger = logging.getLogger(__name__)

# How long it waits for news of learners before it looks after its workers again.
_POLL_SECONDS = 2.0
_RETRY_SECONDS = 1.0
_CALL_SECONDS = 20.0
# A command line that is not understood, in every shell.
_USAGE = 2
# A worker that ended with an error before it was so old has probably never worked.
_YOUNG_SECONDS = 60.0
_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)


@dataclass(frozen=True)
class Demand:
    """Open learners at the coordinator, and ranges for workers that have the data.

    num_queued: they wait for a worker.
    num_leased: workers have them.
    num_coming: their runs are on the way to training.
    num_ranges: of passes over the data, for workers that have it; 0 where these have not.
    """

    num_queued: int = 0
    num_leased: int = 0
    num_coming: int = 0
    num_ranges: int = 0

    @property
    def num_open(self) -> int:
        """All of them."""
        return self.num_queued + self.num_leased + self.num_coming + self.num_ranges


@dataclass(frozen=True)
class Plan:
    """What is to change: so many workers are started, or all above the fewest are ended."""

    num_to_start: int = 0
    shrink: bool = False
    reason: str = ""


def plan(
    demand: Demand,
    num_present: int,
    settings: PoolSettings,
    *,
    quiet_since: float,
    not_before: float,
    now: float,
) -> Plan:
    """What to do about the number of workers.

    num_present: workers that were started and have not ended, placed or not.
    quiet_since: when `demand` last had an open learner.
    not_before: no worker is started earlier; see `Restraint`.
    """
    wanted = max(settings.min_workers, min(settings.workers, demand.num_open))
    missing = wanted - num_present
    if missing > 0:
        if now < not_before:
            return Plan()
        return Plan(missing, reason=_why_more(demand, wanted, settings.min_workers))
    quiet_seconds = now - quiet_since
    too_many = num_present > settings.min_workers and not demand.num_open
    if too_many and quiet_seconds >= settings.idle_seconds:
        return Plan(shrink=True, reason=f"there has been no learner for {quiet_seconds:.0f} s")
    return Plan()


def _why_more(demand: Demand, wanted: int, fewest: int) -> str:
    if demand.num_open < fewest:
        return f"there are always {fewest}"
    words = {
        "waiting": demand.num_queued,
        "with a worker": demand.num_leased,
        "about to come": demand.num_coming,
        "ranges of a pass over the data": demand.num_ranges,
    }
    counts = ", ".join(f"{count} {word}" for word, count in words.items() if count)
    most = f", and there are {wanted} workers at most" if demand.num_open > wanted else ""
    return f"learners: {counts}{most}"


@dataclass(frozen=True)
class Restraint:
    """When the next worker may start, after so many in a row have failed."""

    num_failed: int = 0
    not_before: float = -math.inf

    def after_failure(self, now: float) -> Restraint:
        """What it is after one more; workers that end at the same time are one reason to wait."""
        if now < self.not_before:
            return self
        number = self.num_failed + 1
        return Restraint(number, now + _BACKOFF.pause_seconds(number))


class Pool:
    """One pool; the engine, where its workers run, is the caller's, who closes it."""

    def __init__(
        self,
        settings: PoolSettings,
        arguments: Sequence[str],
        source: DemandSource,
        engine: LocalEngine | RayEngine,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._arguments = arguments
        self._source = source
        self._engine = engine
        self._clock = clock
        self._stopping = threading.Event()
        # By number: when each was started.
        self._workers: dict[int, float] = {}
        self._leaving: set[int] = set()
        self._failures = Restraint()
        self._demand: Demand | None = None
        self._changed_at = self._quiet_since = clock()
        self._complained_of: type[LiptError] | None = None

    def stop(self) -> None:
        """Return from `run` soon; made for signal handlers."""
        self._stopping.set()
        self._source.interrupt()

    def run(self) -> None:
        """Work until `stop`; raises where workers do not take their arguments."""
        while not self._stopping.is_set():
            try:
                found = self._source.wait(self._demand, wait_seconds=_POLL_SECONDS)
            except LiptError as error:
                # Said once: the coordinator may be away for hours; its workers wait as well.
                if self._complained_of is not type(error):
                    logger.warning("%s Trying again until it answers.", error)
                self._complained_of = type(error)
                self._stopping.wait(max(_RETRY_SECONDS, error.retry_after_seconds or 0.0))
                continue
            self._complained_of = None
            if not self._stopping.is_set():
                self.tend(found)

    def tend(self, demand: Demand) -> None:
        """Take leave of who has ended, and start or stop as many as the demand asks for."""
        now = self._clock()
        if demand != self._demand:
            self._demand, self._changed_at = demand, now
        if demand.num_open:
            self._quiet_since = now
        for ended in self._engine.ended():
            self._say_goodbye(ended, demand, now)
        decided = plan(
            demand,
            len(self._workers) - len(self._leaving),
            self._settings,
            quiet_since=self._quiet_since,
            not_before=self._failures.not_before,
            now=now,
        )
        fewest, idle_seconds = self._settings.min_workers, self._settings.idle_seconds
        if decided.shrink:
            going = {number for number in self._workers if number >= fewest} - self._leaving
            logger.info("ending %s: %s", _workers(len(going)), decided.reason)
            self._engine.stop(going)
            self._leaving |= going
        if decided.num_to_start:
            logger.info("starting %s: %s", _workers(decided.num_to_start), decided.reason)
        number = 0
        for _ in range(decided.num_to_start):
            while number in self._workers:
                number += 1
            # The fewest are there whatever there is to do; who is not needed leaves by itself.
            leaves = ["--max-idle-seconds", f"{idle_seconds:g}"] if number >= fewest else []
            self._engine.start(number, [*leaves, *self._arguments])
            self._workers[number] = now

    def _say_goodbye(self, ended: Ended, demand: Demand, now: float) -> None:
        age_seconds = now - self._workers.pop(ended.number)
        if ended.number in self._leaving:
            self._leaving.discard(ended.number)
            return
        name = f"worker {ended.number}"
        if ended.status == _USAGE:
            raise ProcessEndedError(f"{name} does not take its arguments:\n{ended.tail}")
        if ended.status == 0:
            logger.info("%s is done; %s left", name, _workers(len(self._workers)))
            unchanged_seconds = now - self._changed_at
            if demand.num_queued and unchanged_seconds >= self._settings.idle_seconds:
                logger.warning(
                    "%s left without a learner, and %d wait: lipt doctor and lipt run watch say "
                    "what keeps workers from them",
                    name,
                    demand.num_queued,
                )
            return
        if ended.status is not None:
            old = age_seconds >= _YOUNG_SECONDS
            self._failures = Restraint() if old else self._failures.after_failure(now)
        how = "was lost" if ended.status is None else f"ended with status {ended.status}"
        logger.warning("%s %s after %.0f s; it said last:\n%s", name, how, age_seconds, ended.tail)


def _workers(number: int) -> str:
    return f"{number} worker{'' if number == 1 else 's'}"


class DemandSource:
    """A pool's calls to its coordinator; ranges count for workers that have the data."""

    def __init__(self, channel: grpc.Channel, *, has_data: bool = False) -> None:
        self._has_data = has_data
        # Whatever counts here: the coordinator is told what it has said.
        self._num_ranges = 0
        self._workers = worker_pb2_grpc.WorkerServiceStub(channel)
        self._polls = LongPoll()

    def wait(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        """The demand as soon as it is not `known`, at the time-out, or when interrupted."""
        request = worker_pb2.GetDemandRequest(wait_seconds=wait_seconds)
        if known is not None:
            request.known.CopyFrom(
                worker_pb2.GetDemandResponse(
                    num_queued=known.num_queued,
                    num_leased=known.num_leased,
                    num_coming=known.num_coming,
                    num_ranges=self._num_ranges,
                )
            )
        timeout = wait_seconds + _CALL_SECONDS
        call = self._polls.answered(
            lambda: self._workers.GetDemand.future(request, timeout=timeout)
        )
        if call is None:
            return known or Demand()
        answer = call.result()
        self._num_ranges = answer.num_ranges
        num_ranges = answer.num_ranges if self._has_data else 0
        return Demand(answer.num_queued, answer.num_leased, answer.num_coming, num_ranges)

    def interrupt(self) -> None:
        """End a wait now, and every later one; may be called in a signal handler."""
        self._polls.interrupt()


@contextmanager
def opened(
    settings: PoolSettings, worker_arguments: Sequence[str], *, say: Callable[[str], object]
) -> Iterator[Pool]:
    """A pool that has not begun; its workers end with the block.

    Every `lipt-worker` is told `worker_arguments` besides its own; `say` takes the lines of those
    that run on this machine.
    """
    split_address(settings.coordinator)
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    token = TokenSource.from_options(settings.token_file, settings.token)
    arguments = [*own_arguments(settings), *worker_arguments]
    # Its interpreter loads nothing of the engine's before the files have been read.
    engine = RayEngine(settings) if settings.ray else LocalEngine(settings.gpus_per_worker, say)
    has_data = any(word.partition("=")[0] == "--worker-data" for word in worker_arguments)
    try:
        with open_channel(settings.coordinator, tls, token) as channel:
            yield Pool(settings, arguments, DemandSource(channel, has_data=has_data), engine)
    finally:
        logger.info("ending all workers")
        engine.close()


def own_arguments(settings: PoolSettings) -> list[str]:
    """What every worker is told of the pool's own settings: paths, and no secret."""
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
