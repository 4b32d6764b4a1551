from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from lipt.common.errors import ComputeError, OutOfMemoryError
from lipt.common.states import RunState
from tests.cluster import SMALL_RUN, Cluster

STARVED = ("-m", "tests.faults.starved_coordinator")


def test_requests_without_memory_fail_by_name_and_the_queue_goes_on(cluster: Cluster) -> None:
    attempts = cluster.directory / "attempts"
    coordinator = cluster.start_coordinator(
        program=STARVED, environment={"ATTEMPTS": str(attempts)}
    )
    cluster.start_worker("worker")
    with cluster.client() as client, ThreadPoolExecutor(3) as pool:
        run = client.wait(client.start_run(SMALL_RUN).run_id)

        def ask(strategy: str) -> int:
            return len(client.subset(run.run_id, strategy, fraction=0.1))

        killed, refused, other = (
            pool.submit(ask, name) for name in ("facility_location", "craig", "glister")
        )
        with pytest.raises(ComputeError, match=r"SIGKILL .* attempt 3 of 3.* memory is short"):
            killed.result()
        with pytest.raises(OutOfMemoryError, match=r"ran out of memory: .*--compute-memory"):
            refused.result()
        assert other.result() == 180
        assert client.run(run.run_id).state is RunState.READY
        # What comes later is computed as well, in a new process.
        assert ask("grand") == 180
        again = client.wait(client.start_run(SMALL_RUN).run_id)
        assert again.pretrained_weights == run.pretrained_weights
    assert coordinator.text().count("event=retried detail=compute") == 2
    # Three deaths, and no second attempt where memory was refused.
    assert Counter(attempts.read_text().split()) == {
        "facility_location": 3,
        "craig": 1,
        "glister": 1,
        "grand": 1,
    }
    assert coordinator.stop() == 0
