"""Pool: keeps as many workers running as there are learners for, until it is told to stop.

`opened` makes one from its settings; `DemandSource` asks the coordinator what there is to do.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from lipt.common.access.tokens import TokenSource
from lipt.common.errors import ConfigError, IncompatibleProtocolError, LiptError, ProcessEndedError
from lipt.common.imports import import_extra
from lipt.common.network.tls import TlsFiles, split_address
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.messages import PROTOCOL_MAJOR
from lipt.common.rpc.status import from_rpc_error
from lipt.v1 import info_pb2, info_pb2_grpc, worker_pb2, worker_pb2_grpc
from lipt.worker.pool.processes import Ended, Engine, LocalEngine
from lipt.worker.pool.ray_engine import RayEngine, RayOptions
from lipt.worker.pool.scaling import Bounds, Demand, Plan, Restraint, plan
from lipt.worker.settings import PoolSettings

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


_CALL_SECONDS = 20.0


class DemandSource:
    """A pool's calls to its coordinator."""

    def __init__(self, channel: grpc.Channel, *, has_data: bool = False) -> None:
        """Ask over a channel.

        Args:
            channel: to the coordinator.
            has_data: whether the pool's workers have the data: ranges count for no others.
        """
        self._has_data = has_data
        # Whatever counts here: the coordinator is told what it has said.
        self._num_ranges = 0
        self._workers = worker_pb2_grpc.WorkerServiceStub(channel)
        self._info = info_pb2_grpc.InfoServiceStub(channel)
        self._waiting: grpc.Future[Any] | None = None
        self._interrupted = threading.Event()

    def require_same_protocol(self) -> None:
        """See that the coordinator speaks this protocol.

        Raises:
            IncompatibleProtocolError: it speaks another.
            LiptError: it cannot be asked.
        """
        try:
            info = self._info.GetInfo(info_pb2.GetInfoRequest(), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        if info.protocol.major != PROTOCOL_MAJOR:
            raise IncompatibleProtocolError(
                f"the coordinator speaks protocol {info.protocol.major}, this pool "
                f"{PROTOCOL_MAJOR}. Install the same lipt on both."
            )

    def wait(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        """The demand as soon as it is not `known`, at the time-out, or when interrupted.

        Raises:
            LiptError: the coordinator does not answer, or refuses to.
        """
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
        waiting = self._workers.GetDemand.future(request, timeout=wait_seconds + _CALL_SECONDS)
        self._waiting = waiting
        # A signal may have come while the call was being made.
        if self._interrupted.is_set():
            waiting.cancel()
        try:
            answer = waiting.result()
        except grpc.FutureCancelledError:
            return known or Demand()
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            self._waiting = None
        self._num_ranges = answer.num_ranges
        num_ranges = answer.num_ranges if self._has_data else 0
        return Demand(answer.num_queued, answer.num_leased, answer.num_coming, num_ranges)

    def interrupt(self) -> None:
        """End a wait now, and every later one; may be called in a signal handler."""
        self._interrupted.set()
        waiting = self._waiting
        if waiting is not None:
            waiting.cancel()


@contextmanager
def opened(
    settings: PoolSettings, worker_arguments: Sequence[str], *, say: Callable[[str], object]
) -> Iterator[Pool]:
    """A pool that has not begun; its workers end with the block.

    Args:
        settings: the pool's.
        worker_arguments: what every `lipt-worker` is told besides.
        say: takes the lines of workers that run on this machine.

    Raises:
        ConfigError: a file or an address does not work.
        UnreachableError: there is no such Ray cluster.
    """
    split_address(settings.coordinator)
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    secret = settings.token.get_secret_value() if settings.token is not None else None
    token = TokenSource.from_options(settings.token_file, secret)
    options = PoolOptions(
        Bounds(settings.min_workers, settings.workers),
        settings.idle_seconds,
        [*_own_arguments(settings), *worker_arguments],
    )
    # Its interpreter loads nothing of the engine's before the files have been read.
    engine = _engine(settings, say)
    try:
        with open_channel(settings.coordinator, tls, token) as channel:
            source = DemandSource(channel, has_data=_have_data(worker_arguments))
            yield Pool(options, source, engine)
    finally:
        logger.info("ending all workers")
        engine.close()


def _have_data(worker_arguments: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "--worker-data" for word in worker_arguments)


def _engine(settings: PoolSettings, say: Callable[[str], object]) -> Engine:
    if settings.ray is None:
        return LocalEngine(gpus_per_worker=settings.gpus_per_worker, say=say)
    options = RayOptions(
        settings.ray,
        settings.cpus_per_worker,
        settings.gpus_per_worker,
        dict(map(_resource, settings.resources)),
        _runtime_env(settings),
        _environment(settings),
    )
    engine = RayEngine(options)
    engine.require_reachable(settings.coordinator)
    return engine


def _own_arguments(settings: PoolSettings) -> list[str]:
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


def _environment(settings: PoolSettings) -> dict[str, str]:
    if settings.token is None or settings.token_file is not None:
        return {}
    return {"LIPT_TOKEN": settings.token.get_secret_value()}


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount)
    except ValueError:
        raise ConfigError(
            f"--resource {text!r} is not NAME=AMOUNT. Example: --resource accelerator=1"
        ) from None


def _runtime_env(settings: PoolSettings) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if (path := settings.runtime_env) is not None:
        made = _mapping(path)
    if settings.working_dir is not None:
        made["working_dir"] = str(settings.working_dir.absolute())
    return made


def _mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--runtime-env {path} cannot be read: {error.strerror}.") from None
    try:
        found = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise ConfigError(f"--runtime-env {path} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--runtime-env {path} is no mapping. Example: pip: [lipt]")
    return found


def _yaml(text: str) -> object:
    # It comes with Ray, which reads such files with it.
    yaml = import_extra("yaml", package="pyyaml", extra="ray", needed_for="--runtime-env")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
