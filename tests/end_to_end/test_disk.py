"""A disk that is full or read-only, under a real coordinator."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import OverLimitError, StateError
from lipt.common.states import LearnerState
from tests.blob_files import blob_file
from tests.cluster import Cluster, LoggedProcess
from tests.end_to_end.conftest import one_of_two_in


@contextmanager
def mounted_read_only(directory: Path) -> Iterator[None]:
    """A tmpfs in `directory`; skips the test where this user may not mount."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(directory)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


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


def test_full_disk_is_said_loses_nothing_and_is_got_over(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    with one_of_two_in(cluster, small_run) as (client, run_id, worker):
        second = worker.take()
        learner = worker.learner(second)

        with full(coordinator):
            with pytest.raises(StateError, match="Free space there"):
                worker.submit(second, learner)
            with pytest.raises(
                (StateError, OverLimitError), match=r"Nothing .*was lost|ree space there"
            ):
                client.start_run(small_run, name="never")
            assert client.run(run_id).learners[0].state is LearnerState.DONE
            assert [item.run_id for item in client.runs()] == [run_id]
        worker.submit(second, learner)
        final = client.wait(run_id)
        assert [item.attempts for item in final.learners] == [1, 1]
        assert client.start_run(small_run, name="later").run_id
    coordinator.stop(signal.SIGKILL)
    cluster.start_coordinator()
    with cluster.client() as client:
        assert client.run(run_id).pretrained_weights == final.pretrained_weights


def test_result_that_the_disk_damages_is_trained_again(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    with one_of_two_in(cluster, small_run) as (client, run_id, worker):
        stored = client.run(run_id).learners[0].result
        assert stored is not None
        path = blob_file(cluster.state, stored.sha256)
        path.write_bytes(path.read_bytes()[::-1])
        second = worker.take()
        worker.submit(second)
        again = worker.take()
        assert again.learner_index == 0
        worker.submit(again)
        final = client.wait(run_id)
        assert [item.attempts for item in final.learners] == [2, 1]
    assert "event=learner_damaged run=run-1 learner=0" in coordinator.text()


def test_read_only_state_directory_is_refused_with_the_remedy(cluster: Cluster) -> None:
    state = cluster.directory / "read-only"
    with contextlib.ExitStack() as stack:
        if os.geteuid():
            state.mkdir(mode=0o500)
        else:  # whom no mode stops
            stack.enter_context(mounted_read_only(state))
        text = cluster.launch_coordinator("--state-dir", str(state)).refused()
    assert f"state directory {state} cannot be used: " in text
    assert "--state-dir" in text
