"""The whole pipeline by real processes, everything of it on a CUDA device."""

from __future__ import annotations

import json

import pytest

from tests.cluster import SMALL_RUN, Cluster

pytestmark = pytest.mark.slow


@pytest.mark.cuda
def test_a_run_its_subset_and_its_training_are_computed_on_the_device(cluster: Cluster) -> None:
    cluster.start_coordinator("--device", "cuda")
    cluster.start_worker("one", "--device", "cuda").wait_for("joined")
    with cluster.client() as client:
        run = client.wait(client.start_run(SMALL_RUN, name="there").run_id)
        assert run.soup is not None
        path = client.subset("there", "auto", fraction=0.1).save(cluster.directory / "subset.npy")
        for strategy in ("craig", "gradmatch", "glister", "grand"):
            assert len(client.subset("there", strategy, fraction=0.1))
    data = ("--data", "digits", "--model", "resnet8", "--subset", str(path))
    log = ("--log", str(cluster.directory / "train.jsonl"))
    done = cluster.lipt("train", *data, "--steps", "20", "--device", "cuda", *log, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_steps"] == 20
