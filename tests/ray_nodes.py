"""Ray on this machine: a real cluster of two nodes, of which one can vanish."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.cluster import children_of


class RayNodes:
    """Two nodes on this machine, each with room for two workers; `doomed` is not the head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        # It asks for no dashboard, and has a store as small as Ray allows.
        small: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
        self.cluster = RayCluster()
        self.cluster.add_node(include_dashboard=False, **small)
        self.doomed = self.cluster.add_node(**small)
        self.address = str(self.cluster.address)

    def processes_of_the_doomed(self) -> set[int]:
        """Its raylet, Ray's workers, and ours, by their ids."""
        (raylet,) = self.doomed.all_processes["raylet"]
        return with_descendants(raylet.process.pid)

    def vanish(self) -> None:
        """End the node as a machine ends that is switched off: nobody is told anything."""
        for pid in self.processes_of_the_doomed():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(self.doomed, allow_graceful=False)


def with_descendants(pid: int) -> set[int]:
    """A process and all that it has started, directly or not."""
    return {pid}.union(*map(with_descendants, children_of(pid)))


@contextmanager
def two_nodes(**environment: str) -> Iterator[RayNodes]:
    """A cluster whose nodes, and nobody else, have this environment besides the test's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        # Whatever this user's own clusters do; a local one makes a token in the home folder.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        with pytest.MonkeyPatch.context() as of_nodes:
            for name, value in environment.items():
                of_nodes.setenv(name, value)
            nodes = RayNodes()
        try:
            yield nodes
        finally:
            nodes.cluster.shutdown()
