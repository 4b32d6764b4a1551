"""Ray engine: workers as tasks of a Ray cluster, which places and restarts them.

A task is one `lipt-worker`. Ray finds or adds a node for it, and restarts it elsewhere if the node
is lost. Nothing stays on the cluster.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

from lipt.common.access.tls import is_loopback, split_address
from lipt.common.errors import ConfigError, UnreachableError
from lipt.common.imports import import_extra
from lipt.worker.pool import STOP_SECONDS, Child, Ended
from lipt.worker.settings import PoolSettings

_LOCAL = "local"
# Beyond the worker's own: a cancellation passes several Ray processes.
_CLOSE_SECONDS = STOP_SECONDS + 10.0
# Longest time until a task notices its cancellation.
_SLICE_SECONDS = 0.2


class RayEngine:
    """Runs workers on the Ray cluster that the settings name."""

    def __init__(self, settings: PoolSettings) -> None:
        amounts = (each.partition("=") for each in settings.resources)
        resources = {name: float(amount) for name, _, amount in amounts}
        runtime_env = _runtime_env(settings.runtime_env)
        self._ray: Any = import_extra(
            "ray", package="ray", extra="ray", needed_for="a worker pool on Ray"
        )
        # Only workers get the token.
        self._environment = {}
        if settings.token is not None and settings.token_file is None:
            self._environment = {"LIPT_TOKEN": settings.token.get_secret_value()}
        self._tasks: dict[int, Any] = {}
        _connect(self._ray, settings.ray or _LOCAL, runtime_env)
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


def _runtime_env(path: Path | None) -> Any:
    if path is None:
        return {}
    # Ray installs PyYAML; JSON is YAML.
    yaml = import_extra("yaml", package="pyyaml", extra="ray", needed_for="--runtime-env")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--runtime-env {path} cannot be read: {error}.") from None


def _connect(ray: Any, address: str, runtime_env: dict[str, Any]) -> None:
    started_here = {}
    if address == _LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        started_here = {"include_dashboard": False}
    try:
        ray.init(
            address=address,
            runtime_env=runtime_env or None,
            namespace="lipt",
            # Lines of many workers stay in Ray's logs.
            log_to_driver=False,
            logging_level=logging.WARNING,
            **started_here,
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
            sleep(_SLICE_SECONDS)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.terminate()
        status = child.end(STOP_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
    return status, child.tail()
