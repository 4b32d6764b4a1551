"""Commands that follow a run or a subset, and whose coordinator goes away and comes back."""

import re
import signal

import pytest

from tests.cluster import SMALL_RUN, Cluster

_GONE = r"coordinator {} does not answer since \d\d:\d\d:\d\d; waiting"


@pytest.mark.smoke
def test_a_watch_shows_that_its_coordinator_was_killed_and_goes_on_after_it(
    cluster: Cluster,
) -> None:
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        client.start_run(SMALL_RUN, name="watched")
    command = ("-m", "lipt.cli", "run", "watch", "watched")
    watch = cluster.start("watch", [*command, "--coordinator", cluster.address])
    watch.wait_for("run watched: training")
    coordinator.stop(signal.SIGKILL)
    gone = _GONE.format(re.escape(cluster.address))
    watch.wait_for(gone)
    cluster.start_coordinator("--listen", cluster.address)
    watch.wait_for(f"coordinator {re.escape(cluster.address)} answers again")
    cluster.start_worker("late")
    watch.wait_for("run watched: ready; soup")
    assert watch.wait() == 0
    lines = watch.text().splitlines()
    is_gone = [bool(re.match(gone, line)) for line in lines]
    first = is_gone.index(True)
    answered = lines.index(f"coordinator {cluster.address} answers again")
    # Nothing else is known meanwhile, and no remaining time.
    assert all(is_gone[first:answered])
    assert not any(is_gone[answered:])
