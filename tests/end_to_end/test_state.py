import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lipt.common.errors import OtherDataError, OverLimitError, StateError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.state.cli import app
from lipt.data.loading import open_dataset
from tests.cluster import SMALL_RUN, Cluster, LoggedProcess
from tests.end_to_end.conftest import one_of_two_in


@contextmanager
def full(coordinator: LoggedProcess) -> Iterator[None]:
    """The kernel refuses to let the processes' files grow; needs no privilege."""
    pids = [coordinator.process.pid, *coordinator.computing()]

    def limit(num_bytes: int) -> None:
        for pid in pids:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, hard))

    limit(0)
    try:
        yield
    finally:
        limit(resource.RLIM_INFINITY)


def test_a_full_disk_is_reported_and_loses_nothing(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    with one_of_two_in(cluster) as (client, run_id, worker):
        second = worker.take()
        learner = worker.learner(second)

        with full(coordinator):
            with pytest.raises(StateError, match="Free space there"):
                worker.submit(second, learner)
            with pytest.raises(
                (StateError, OverLimitError), match=r"othing acknowledged was lost|ree space there"
            ):
                client.start_run(SMALL_RUN, name="never")
            assert client.run(run_id).learners[0].state is LearnerState.DONE
            assert [item.run_id for item in client.runs()] == [run_id]
        worker.submit(second, learner)
        final = client.wait(run_id)
        assert [item.attempts for item in final.learners] == [1, 1]
        assert client.start_run(SMALL_RUN, name="later").run_id
    coordinator.stop(signal.SIGKILL)
    cluster.start_coordinator()
    with cluster.client() as client:
        assert client.run(run_id).pretrained_weights == final.pretrained_weights


def state(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_a_backup_of_a_running_coordinator_can_be_resumed(cluster: Cluster) -> None:
    directory, copy = cluster.state, cluster.directory / "copy"
    coordinator = cluster.start_coordinator()
    with one_of_two_in(cluster) as (client, run_id, worker):
        result = client.run(run_id).learners[0].result
        state("backup", copy, "--state-dir", directory)
        second = worker.take()
        worker.submit(second)
        expected = client.wait(run_id)
        collecting = ["-m", "lipt.cli", "state", "gc", "--state-dir", str(directory)]
        assert f"serving {cluster.address}" in cluster.start("gc", collecting).refused()
        state("check", "--state-dir", directory)
    assert coordinator.stop() == 0
    assert "1 runs" in state("check", "--state-dir", copy)

    restored = cluster.start_coordinator("--state-dir", str(copy))
    with cluster.client() as client:
        left = client.run(run_id).learners[0]
        assert (left.result, left.attempts) == (result, 1)
        worker = cluster.play_worker("other")
        again = worker.take()
        assert again.learner_index == second.learner_index
        worker.submit(again)
        final = client.wait(run_id)
        assert final.pretrained_weights == expected.pretrained_weights
    assert restored.stop() == 0
    cleaned = state("gc", "--min-age-hours", "0", "--state-dir", copy)
    assert "removed 1 files" in cleaned  # the shard of its last learner
    state("check", "--state-dir", copy)


def test_metrics_are_local_by_default(cluster: Cluster) -> None:
    cluster.address = "127.0.0.1:1"
    worker = cluster.start_worker("worker", "--metrics-listen", "[::]:0")
    assert "--metrics-listen [::]:0 is reachable from other machines" in worker.refused()


@pytest.mark.parametrize("other", ["relabelled", "enlarged"])
def test_a_run_is_held_under_other_data_and_resumes_with_its_own(
    cluster: Cluster, other: str
) -> None:
    own, source = open_dataset("digits").fingerprint, f"tests.other_digits:{other}"
    coordinator = cluster.start_coordinator()
    served_again = ("--listen", cluster.address)
    with one_of_two_in(cluster) as (client, run_id, worker):
        second = worker.take()
        coordinator.stop(signal.SIGKILL)
        coordinator = cluster.start_coordinator(*served_again, "--data", source)
        # It was made of the run's own shard, and stays valid.
        worker.submit(second)
        with pytest.raises(OtherDataError) as held:
            client.wait(run_id)
        for words in (f"{own} (digits)", f"serves {source} with", "the run's own data"):
            assert words in str(held.value)
        watched = cluster.lipt("run", "watch", run_id)
        assert (watched.returncode, str(held.value) in watched.stdout) == (1, True)
        assert [run.state for run in client.runs()] == [RunState.HELD]
        assert coordinator.stop() == 0

        cluster.start_coordinator(*served_again)
        merged = client.wait(run_id)
        assert merged.fingerprint == own
        # The same as if nothing had happened.
        again = client.start_run(merged.config.model_dump(mode="json"))
        other_worker = cluster.play_worker("again")
        for _ in range(2):
            other_worker.submit(other_worker.take())
        assert client.wait(again.run_id).pretrained_weights == merged.pretrained_weights


def paint(folder: Path, *, brightness: int) -> None:
    """64 images of two classes, of which every one counts in a sampled fingerprint."""
    generator = np.random.default_rng(0)
    for number in range(64):
        pixels = generator.integers(0, brightness, (8, 8), np.uint8)
        path = folder / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        # As a careful program writes: readers never see half a file.
        Image.fromarray(pixels).save(path.with_suffix(".part"), "PNG")
        path.with_suffix(".part").replace(path)


def test_a_run_is_held_while_its_files_are_replaced(cluster: Cluster) -> None:
    images = cluster.directory / "images"
    paint(images, brightness=100)
    coordinator = cluster.start_coordinator("--data", f"imagefolder:{images}")
    run = {
        "model": "resnet8",
        "learners": {"num_learners": 1, "num_steps": 1, "num_minibatches": 1, "batch_size": 8},
        "soup": {"batch_norm_examples": 16},
    }
    with cluster.client() as client:
        expected = client.start_run(run)
        worker = cluster.play_worker("w")
        worker.submit(worker.take())
        ready = client.wait(expected.run_id)
        subset = client.subset(ready.run_id, "el2n", fraction=0.5)

        started = client.start_run(run)
        learner = worker.take()
        paint(images, brightness=200)
        worker.submit(learner)
        with pytest.raises(OtherDataError, match="run-2 waits for its own data: imagefolder:"):
            client.wait(started.run_id)
        # Of what is there, nothing is made; what is stored is served.
        with pytest.raises(OtherDataError, match="Put the run's own data back"):
            client.subset(ready.run_id, "facility_location", fraction=0.25)
        with pytest.raises(OtherDataError):
            client.diagnose()
        assert client.subset(ready.run_id, "el2n", fraction=0.5) == subset
        # So is what follows from signals that were kept: they are of the run's own data.
        half = client.subset(ready.run_id, "el2n", fraction=0.25)
        assert set(half.indices.tolist()) < set(subset.indices.tolist())
        paint(images, brightness=100)
        states = [view.state for view in client.watch(started.run_id)]
        assert states[-1] is RunState.READY
        assert client.run(started.run_id).pretrained_weights == ready.pretrained_weights
        assert len(client.subset(ready.run_id, "el2n", fraction=0.25)) == 16
    coordinator.wait_for("event=run_held run=run-2")
