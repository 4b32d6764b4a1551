"""A bit that a disk flips is noticed before it is used, and what it was in is had again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.trainer.views import RunView
from tests.blob_files import blob_file, flip_a_bit
from tests.cluster import Cluster

RUN = {
    "model": "resnet8",
    "learners": {"num_learners": 2, "num_steps": 1, "batch_size": 32},
    "soup": {"num_alphas": 2, "batch_norm_examples": 64},
}


def flip_the_middle(path: Path) -> None:
    flip_a_bit(path, path.stat().st_size // 2)


def of_the_worker(cluster: Cluster, run: RunView) -> Path:
    assert run.initial_weights is not None
    return blob_file(cluster.directory / "cache-worker", run.initial_weights.sha256)


def of_the_coordinator(cluster: Cluster, run: RunView) -> Path:
    result = run.learners[0].result
    assert result is not None
    return blob_file(cluster.state, result.sha256)


def blobs_in(cluster: Cluster) -> set[Path]:
    return set((cluster.state / "blobs").glob("??/*"))


@pytest.mark.parametrize("damaged", [of_the_worker, of_the_coordinator])
def test_blob_that_changed_on_a_disk_is_noticed_and_asked_for_again(
    cluster: Cluster, damaged: Callable[[Cluster, RunView], Path]
) -> None:
    cluster.start_coordinator()
    cluster.start_worker("worker")
    with cluster.client() as client:
        first = client.wait(client.start_run(RUN).run_id)
        flip_the_middle(damaged(cluster, first))
        second = client.wait(client.start_run(RUN).run_id)
    assert [learner.attempts for learner in second.learners] == [1, 1]
    assert [it.result for it in second.learners] == [it.result for it in first.learners]
    assert second.pretrained_weights == first.pretrained_weights


@pytest.mark.parametrize("damage", [flip_the_middle, Path.unlink])
def test_theta_p_and_subsets_that_the_coordinator_s_disk_damages_or_loses_are_made_again(
    cluster: Cluster, damage: Callable[[Path], None]
) -> None:
    coordinator = cluster.start_coordinator()
    cluster.start_worker("worker")
    with cluster.client() as client:
        run = client.wait(client.start_run(RUN).run_id)
        of_the_run = blobs_in(cluster)
        subset = client.subset(run.run_id, "el2n", fraction=0.1)
        assert run.pretrained_weights is not None
        of_the_subset = blobs_in(cluster) - of_the_run
        assert of_the_subset
        for path in {blob_file(cluster.state, run.pretrained_weights.sha256), *of_the_subset}:
            damage(path)
        again = client.subset(run.run_id, "el2n", fraction=0.1)
        other = client.subset(run.run_id, "grand", fraction=0.1)
        assert client.weights(run.run_id)
    assert again.indices.tolist() == subset.indices.tolist()
    assert again.digest == subset.digest
    assert len(other) == len(subset)
    coordinator.wait_for("theta_p of run .* is not whole: it is made again")


@pytest.mark.smoke
def test_theta_star_and_shards_that_were_damaged_are_made_again_after_a_restart(
    cluster: Cluster,
) -> None:
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        run = client.start_run(RUN)
        coordinator.wait_for(": training")
        run = client.run(run.run_id)
    coordinator.stop(signal.SIGKILL)
    # All that there is by now.
    for path in blobs_in(cluster):
        flip_the_middle(path)
    coordinator = cluster.start_coordinator()
    coordinator.wait_for("3 inputs of run .* are not whole: they are made again")
    cluster.start_worker("worker")
    with cluster.client() as client:
        disturbed = client.wait(run.run_id)
        undisturbed = client.wait(client.start_run(RUN).run_id)
    assert disturbed.initial_weights == run.initial_weights
    assert disturbed.pretrained_weights == undisturbed.pretrained_weights
