"""Pool: as many workers as open learners, until stopped.

It grows at once, and shrinks slowly without ending a busy worker. Idle workers leave by themselves;
the pool ends workers only when no learner is open. A short pause between runs therefore costs no
worker.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from lipt.common.access.tls import TlsFiles, is_loopback, split_address
from lipt.common.access.tokens import TokenSource
from lipt.common.backoff import Backoff, RetryLevels
from lipt.common.errors import ConfigError, LiptError, ProcessEndedError, UnreachableError
from lipt.common.imports import import_extra
from lipt.common.rpc.channel import LongPoll, open_channel
from lipt.common.terminal import print_line
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.pool import Child
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
# Time for a worker to release its learner at a slow coordinator.
_STOP_SECONDS = 15.0
_LOCAL = "local"
# Beyond the worker's own: a cancellation passes several Ray processes.
_CLOSE_SECONDS = _STOP_SECONDS + 10.0
# Longest time until a task notices its cancellation.
_SLICE_SECONDS = 0.2


@dataclass(frozen=True)
class Ended:
    """A worker that has ended; `status` is negative for a signal, None if unknown."""

    number: int
    status: int | None
    tail: str = ""


class LocalEngine:
    """Runs workers as children of this process; two with 0.5 `gpus_per_worker` share a GPU."""

    def __init__(self, gpus_per_worker: float) -> None:
        self._gpus = gpus_per_worker
        self._children: dict[int, Child] = {}

    def start(self, number: int, arguments: Sequence[str]) -> None:
        device = f"cuda:{int(number * min(self._gpus, 1.0))}" if self._gpus else "cpu"
        # First, so that a device in the user's arguments overrides it.
        arguments = ["--device", device, *arguments]
        self._children[number] = Child(
            "lipt.worker",
            arguments,
            os.environ,
            lambda line: print_line(f"worker {number} | {line}", err=True),
        )

    def ended(self) -> list[Ended]:
        ended_children = [
            Ended(number, status, child.tail())
            for number, child in self._children.items()
            if (status := child.poll()) is not None
        ]
        for ended in ended_children:
            del self._children[ended.number]
        return ended_children

    def stop(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._children[number].terminate()

    def close(self) -> None:
        self.stop(self._children)
        deadline = time.monotonic() + _STOP_SECONDS
        for child in self._children.values():
            child.end(max(0.0, deadline - time.monotonic()))
        self._children.clear()


class RayEngine:
    """Runs workers as tasks of a Ray cluster, which places and restarts them.

    Ray finds or adds a node for each task, and restarts it elsewhere if the node is lost. Nothing
    stays on the cluster.
    """

    def __init__(self, settings: PoolSettings) -> None:
        amounts = (each.partition("=") for each in settings.resources)
        resources = {name: float(amount) for name, _, amount in amounts}
        self._ray: Any = import_extra(
            "ray", package="ray", extra="ray", needed_for="a worker pool on Ray"
        )
        # Only workers get the token.
        self._environment = {}
        if settings.token is not None and settings.token_file is None:
            self._environment = {"LIPT_TOKEN": settings.token.get_secret_value()}
        self._tasks: dict[int, Any] = {}
        _connect(self._ray, settings.ray or _LOCAL, settings.working_dir)
        self._device = "cuda" if settings.gpus_per_worker else "cpu"
        self._run: Callable[..., Any] = (
            self._ray.remote(run_worker)
            .options(
                name="lipt-worker",
                num_cpus=settings.cpus_per_worker,
                num_gpus=settings.gpus_per_worker,
                resources=resources or None,
                scheduling_strategy="SPREAD",
                max_retries=-1,
            )
            .remote
        )
        self._require_reachable(settings.coordinator)

    def _require_reachable(self, coordinator: str) -> None:
        host, _ = split_address(coordinator)
        if not is_loopback(host):
            return
        here = self._ray.util.get_node_ip_address()
        nodes = {node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]}
        if elsewhere := sorted(nodes - {here, "127.0.0.1"}):
            raise ConfigError(
                f"{coordinator} is an address of this machine alone, and Ray has nodes on "
                f"{', '.join(elsewhere[:3])}. Have the coordinator --listen on 0.0.0.0 with TLS, "
                "and give the pool --coordinator HOST:PORT."
            )

    def start(self, number: int, arguments: Sequence[str]) -> None:
        # First, so that a device in the user's arguments overrides it.
        words = ["--device", self._device, *arguments]
        self._tasks[number] = self._run(words, dict(self._environment))

    def ended(self) -> list[Ended]:
        if not self._tasks:
            return []
        tasks = list(self._tasks.values())
        done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        ended_tasks = [
            self._ended(number, task) for number, task in self._tasks.items() if task in set(done)
        ]
        for ended in ended_tasks:
            del self._tasks[ended.number]
        return ended_tasks

    def _ended(self, number: int, task: Any) -> Ended:
        try:
            status, tail = self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return Ended(number, 0)
        except self._ray.exceptions.RayTaskError as error:
            # No worker started, for example because lipt is not installed there.
            return Ended(number, 1, str(error))
        except self._ray.exceptions.RayError as error:
            return Ended(number, None, str(error))
        return Ended(number, status, tail)

    def stop(self, numbers: Collection[int]) -> None:
        """Cancel waiting tasks, and end running workers."""
        for number in numbers:
            self._ray.cancel(self._tasks[number])

    def close(self) -> None:
        self.stop(self._tasks)
        tasks = list(self._tasks.values())
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_CLOSE_SECONDS)
        self._tasks.clear()
        self._ray.shutdown()


def _connect(ray: Any, address: str, working_dir: Path | None) -> None:
    options: dict[str, Any] = {}
    if address == _LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options["include_dashboard"] = False
    if working_dir is not None:
        options["runtime_env"] = {"working_dir": str(working_dir)}
    try:
        ray.init(
            address=address,
            namespace="lipt",
            # Lines of many workers stay in Ray's logs.
            log_to_driver=False,
            logging_level=logging.WARNING,
            **options,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise UnreachableError(
            f"no Ray cluster can be used at {address!r}: {error}. Start one (ray start --head "
            "--port 6379) and give --ray HOST:6379, or --ray local."
        ) from None


def run_worker(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a worker to its end; returns its exit status and last lines."""
    # Ray cancels a task by SIGINT, which background processes ignore by default.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # The lines are for `ray logs`.
    log = partial(print, file=sys.stderr, flush=True)
    child = Child("lipt.worker", arguments, os.environ | environment, log)
    try:
        while (status := child.poll()) is None:
            time.sleep(_SLICE_SECONDS)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.terminate()
        status = child.end(_STOP_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
    return status, child.tail()


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
        self._levels = RetryLevels(clock=self.clock)

    def stop(self) -> None:
        self._stopping.set()
        self.source.polls.interrupt()

    def run(self, check: Callable[[], object] = lambda: None) -> None:
        """Work until `stop`, an error of `check`, or a worker that refuses its arguments."""
        while not self._stopping.is_set():
            check()
            try:
                demand = self.source.wait(self._demand, wait_seconds=_POLL_SECONDS)
            except LiptError as error:
                logger.log(self._levels.level(error), "%s Trying again until it answers.", error)
                self._stopping.wait(max(_RETRY_SECONDS, error.retry_after_seconds or 0.0))
                continue
            if self._levels.recover():
                logger.info("%s answers again", self.settings.coordinator)
            if not self._stopping.is_set():
                self.tend(demand)

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


def connected(settings: PoolSettings) -> grpc.Channel:
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    token = TokenSource.from_options(settings.token_file, settings.token)
    return open_channel(settings.coordinator, tls, token)


@contextmanager
def open_pool_workers(settings: PoolSettings, worker_arguments: Sequence[str]) -> Iterator[Pool]:
    """A pool whose workers end with the block."""
    arguments = [*own_arguments(settings), *worker_arguments]
    given = {word.partition("=")[0] for word in worker_arguments}
    has_data = "--worker-data" in given and "--source" not in given
    with connected(settings) as channel:
        engine = RayEngine(settings) if settings.ray else LocalEngine(settings.gpus_per_worker)
        try:
            yield Pool(settings, arguments, DemandSource(channel), engine, has_data=has_data)
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
