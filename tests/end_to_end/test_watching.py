"""Commands that follow a run or a subset, and whose coordinator goes away and comes back."""

import re
import signal

import pytest

from tests.cluster import SMALL_RUN, Cluster, LoggedProcess

_GONE = r"coordinator {} does not answer since \d\d:\d\d:\d\d; waiting"


def watching(cluster: Cluster) -> LoggedProcess:
    with cluster.client() as client:
        client.start_run(SMALL_RUN, name="watched")
    watch = ("-m", "lipt.cli", "run", "watch", "watched")
    process = cluster.start("watch", [*watch, "--coordinator", cluster.address])
    process.wait_for("run watched: training")
    return process


def finish(cluster: Cluster, watch: LoggedProcess) -> None:
    """Let the run end, and check what the watch has printed."""
    watch.wait_for(f"coordinator {re.escape(cluster.address)} answers again")
    cluster.start_worker("late")
    watch.wait_for("run watched: ready; soup")
    assert watch.wait() == 0
    lines = watch.text().splitlines()
    gone = [bool(re.match(_GONE.format(re.escape(cluster.address)), line)) for line in lines]
    first, answered = gone.index(True), lines.index(f"coordinator {cluster.address} answers again")
    # Nothing else is known meanwhile, and no remaining time.
    assert all(gone[first:answered])
    assert not any(gone[answered:])


@pytest.mark.smoke
def test_a_watch_shows_that_its_coordinator_was_killed_and_goes_on_after_it(
    cluster: Cluster,
) -> None:
    coordinator = cluster.start_coordinator()
    watch = watching(cluster)
    coordinator.stop(signal.SIGKILL)
    watch.wait_for(_GONE.format(re.escape(cluster.address)))
    cluster.start_coordinator("--listen", cluster.address)
    finish(cluster, watch)
