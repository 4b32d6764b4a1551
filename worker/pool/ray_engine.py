"""Ray engine: workers as tasks of a Ray cluster, which places and restarts them.

A task is one `lipt-worker`. Ray looks for a node with room for it, adds one where it scales itself,
and starts it again elsewhere when the node is gone; what a worker had in hand is the coordinator's
to give to another. Nothing of the cluster is changed, and nothing left on it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lipt.common.errors import ConfigError, UnreachableError
from lipt.common.imports import import_extra
from lipt.common.network.tls import is_loopback, split_address
from lipt.worker.pool.processes import STOP_SECONDS, Child, Ended

logger = logging.getLogger(__name__)

LOCAL = "local"
_CLIENT_SCHEME = "ray://"
_KNOCK_SECONDS = 10.0
# Beyond the worker's own: cancelling goes through several processes of Ray's.
_CLOSE_SECONDS = STOP_SECONDS + 10.0


@dataclass(frozen=True)
class RayOptions:
    """What Ray is told.

    Attributes:
        address: of a cluster as `ray.init` takes it, or "local" to start one here.
        cpus_per_worker: CPUs that are set aside for a worker; Ray limits nobody to them.
        gpus_per_worker: GPUs that a worker sees; less than 1 has several share one.
        resources: further resources of a node, by name, that a worker takes so much of.
        runtime_env: what nodes are given before a worker starts, in Ray's own form.
        environment: variables of the workers. They go to them alone, and are shown nowhere.
    """

    address: str
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class RayEngine:
    """Runs workers on a Ray cluster.

    Raises:
        MissingExtraError: Ray is not installed.
        UnreachableError: there is no cluster at the address, or it is of another version.
    """

    def __init__(self, options: RayOptions) -> None:
        self._ray: Any = import_extra(
            "ray", package="ray", extra="ray", needed_for="a worker pool on Ray"
        )
        self._options = options
        self._tasks: dict[int, Any] = {}
        _connect(self._ray, options)
        # By CUDA_VISIBLE_DEVICES Ray lets a worker see the GPUs that are its own.
        self._device = "cuda" if options.gpus_per_worker else "cpu"
        self._run: Callable[..., Any] = (
            self._ray.remote(run_worker)
            .options(
                name="lipt-worker",
                num_cpus=options.cpus_per_worker,
                num_gpus=options.gpus_per_worker,
                resources=dict(options.resources) or None,
                scheduling_strategy="SPREAD",
                # However many machines vanish under it.
                max_retries=-1,
            )
            .remote
        )

    def require_reachable(self, coordinator: str) -> None:
        """See that every node can reach the coordinator, as far as its address tells.

        Raises:
            ConfigError: it is a loopback address, and there are nodes on other machines.
        """
        host, _ = split_address(coordinator)
        if not is_loopback(host):
            return
        here = self._ray.util.get_node_ip_address()
        nodes = {node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]}
        if elsewhere := sorted(nodes - {here, "127.0.0.1"}):
            raise ConfigError(
                f"{coordinator} is an address of this machine alone ({here}), and Ray has nodes on "
                f"{', '.join(elsewhere[:3])}{' and others' if len(elsewhere) > 3 else ''}, whose "
                "workers cannot reach it. Have the coordinator --listen on 0.0.0.0 with TLS "
                "(lipt certs init --host HOST), and give the pool --coordinator HOST:PORT."
            )

    def start(self, number: int, arguments: Sequence[str]) -> None:
        """Have Ray place a worker."""
        # In front, so that a device that the user names comes later and wins.
        words = ["--device", self._device, *arguments]
        self._tasks[number] = self._run(words, dict(self._options.environment))

    def ended(self) -> list[Ended]:
        """Those that have ended since this was asked last; whom Ray starts again are not."""
        if not self._tasks:
            return []
        tasks = list(self._tasks.values())
        done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        found = [
            self._ended(number, task) for number, task in self._tasks.items() if task in set(done)
        ]
        for ended in found:
            del self._tasks[ended.number]
        return found

    def _ended(self, number: int, task: Any) -> Ended:
        try:
            status, tail = self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return Ended(number, 0)
        except self._ray.exceptions.RayTaskError as error:
            # It never came to a worker: lipt is not installed there, say.
            return Ended(number, 1, str(error))
        except self._ray.exceptions.RayError as error:
            return Ended(number, None, str(error))
        return Ended(number, status, tail)

    def stop(self, numbers: Collection[int]) -> None:
        """Cancel tasks: those that wait for room are gone, workers that run end in order."""
        for number in numbers:
            self._ray.cancel(self._tasks[number])

    def close(self) -> None:
        """Stop all, and leave the cluster."""
        self.stop(self._tasks)
        tasks = list(self._tasks.values())
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=_CLOSE_SECONDS)
        self._tasks.clear()
        self._ray.shutdown()


def _connect(ray: Any, options: RayOptions) -> None:
    if options.address == LOCAL:
        # A cluster that is started by the way is not to report to anybody; who wants it says so.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started_here = {"include_dashboard": False} if options.address == LOCAL else {}
    try:
        _knock(options.address)
        ray.init(
            address=options.address,
            runtime_env=dict(options.runtime_env) or None,
            namespace="lipt",
            # What workers print stays in Ray's own logs: there may be hundreds of them.
            log_to_driver=False,
            logging_level=logging.WARNING,
            **started_here,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise UnreachableError(
            f"no Ray cluster can be used at {options.address!r}: {error}. Start one (ray start "
            "--head --port 6379), and give --ray HOST:6379; auto on a machine of the cluster, "
            "ray://HOST:10001 from outside, or local to start one here."
        ) from None


def _knock(address: str) -> None:
    """See that somebody listens: Ray itself would try for more than a minute.

    Raises:
        OSError: nobody does.
    """
    if address in (LOCAL, "auto"):
        return
    with suppress(ConfigError):  # an address of another form is Ray's to judge
        host_and_port = split_address(address.removeprefix(_CLIENT_SCHEME))
        socket.create_connection(host_and_port, timeout=_KNOCK_SECONDS).close()


# How soon a task notices that it is cancelled.
_SLICE_SECONDS = 0.2


def run_worker(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a worker to its end; it gives its learner back first where the task is cancelled.

    Args:
        arguments: of `lipt-worker`.
        environment: on top of the node's own.

    Returns:
        Its exit status, and what it said last.
    """
    # Ray cancels a task by an interrupt, which is ignored where a script started Ray in the
    # background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = Child("lipt.worker", arguments, os.environ | environment, _log)
    try:
        while (status := child.wait(_SLICE_SECONDS)) is None:
            pass
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.terminate()
        status = child.end(STOP_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
    return status, child.tail()


def _log(line: str) -> None:
    # Ray keeps what its processes print, for each task, where `ray logs` and its dashboard look.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
