"""Pool: keeps as many workers running as there are learners for, until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lipt.common.errors import IncompatibleProtocolError, LiptError, ProcessEndedError
from lipt.worker.pool.demand import DemandSource
from lipt.worker.pool.engine import Ended, Engine
from lipt.worker.pool.scaling import Bounds, Demand, Plan, Restraint, plan

logger = logging.getLogger(__name__)

# How long it waits for news of learners before it looks after its workers again.
_POLL_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# A command line that is not understood, in every shell.
_USAGE = 2


@dataclass(frozen=True)
class PoolOptions:
    """How many workers, and what each is told.

    bounds: how many there may be.
    idle_seconds: how long one stays with nothing to do.
    arguments: of every `lipt-worker`.
    """

    bounds: Bounds
    idle_seconds: float
    arguments: Sequence[str]


class Pool:
    """One pool; the engine is the caller's, who closes it."""

    def __init__(
        self,
        options: PoolOptions,
        source: DemandSource,
        engine: Engine,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep workers of `engine` running for what `source` has.

        Args:
            options: how many, and what they are told.
            source: what there is to do.
            engine: where they run.
            clock: monotonic seconds.
        """
        self._options = options
        self._source = source
        self._engine = engine
        self._clock = clock
        self._stopping = threading.Event()
        # By number: when each was started.
        self._workers: dict[int, float] = {}
        self._leaving: set[int] = set()
        # After workers that failed, and after those that left learners behind.
        self._failures, self._in_vain = Restraint(), Restraint()
        self._demand: Demand | None = None
        self._changed_at = self._quiet_since = clock()
        self._complained_of: type[LiptError] | None = None

    def stop(self) -> None:
        """Return from `run` soon; made for signal handlers."""
        self._stopping.set()
        self._source.interrupt()

    def run(self) -> None:
        """Work until `stop`.

        Raises:
            IncompatibleProtocolError: the coordinator is too old to say what there is to do.
            ProcessEndedError: workers do not take the arguments that they are given.
        """
        met = False
        while not self._stopping.is_set():
            try:
                if not met:
                    self._source.require_same_protocol()
                    met = True
                found = self._source.wait(self._demand, wait_seconds=_POLL_SECONDS)
            except IncompatibleProtocolError:
                raise
            except LiptError as error:
                self._complain(error)
                self._stopping.wait(max(_RETRY_SECONDS, error.retry_after_seconds or 0.0))
                continue
            self._complained_of = None
            if not self._stopping.is_set():
                self.tend(found)

    def tend(self, demand: Demand) -> None:
        """Take leave of who has ended, and start or stop as many as the demand asks for.

        Raises:
            ProcessEndedError: as `run`.
        """
        now = self._clock()
        if demand != self._demand:
            self._demand, self._changed_at = demand, now
            self._in_vain = Restraint()
        if demand.num_open:
            self._quiet_since = now
        for ended in self._engine.ended():
            self._say_goodbye(ended, demand, now)
        decided = plan(
            demand,
            len(self._workers) - len(self._leaving),
            self._options.bounds,
            quiet_since=self._quiet_since,
            idle_seconds=self._options.idle_seconds,
            not_before=max(self._failures.not_before, self._in_vain.not_before),
            now=now,
        )
        self._carry_out(decided, now)

    def _carry_out(self, decided: Plan, now: float) -> None:
        if decided.shrink:
            fewest = self._options.bounds.fewest
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
                self._engine.start(number, self._arguments(number))
                self._workers[number] = now

    def _arguments(self, number: int) -> list[str]:
        # The fewest are there whatever there is to do; who is not needed leaves by itself.
        if number < self._options.bounds.fewest:
            return list(self._options.arguments)
        return ["--max-idle-seconds", f"{self._options.idle_seconds:g}", *self._options.arguments]

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
            if demand.num_open and unchanged_seconds >= self._options.idle_seconds:
                self._left_in_vain(name, demand, now)
            return
        failed = ended.status is not None
        self._failures = self._failures.after_end(failed=failed, age_seconds=age_seconds, now=now)
        how = "was lost" if ended.status is None else f"ended with status {ended.status}"
        logger.warning("%s %s after %.0f s; it said last:\n%s", name, how, age_seconds, ended.tail)

    def _left_in_vain(self, name: str, demand: Demand, now: float) -> None:
        self._in_vain = self._in_vain.after_vain(now, at_least_seconds=self._options.idle_seconds)
        if demand.num_queued:
            logger.warning(
                "%s left without a learner, and %d wait: lipt doctor and lipt run watch say what "
                "keeps workers from them",
                name,
                demand.num_queued,
            )

    def _complain(self, error: LiptError) -> None:
        # Said once: the coordinator may be away for hours, and its workers wait for it as well.
        if self._complained_of is not type(error):
            logger.warning("%s Trying again until it answers.", error)
        self._complained_of = type(error)


def _workers(number: int) -> str:
    return f"{number} worker{'' if number == 1 else 's'}"
