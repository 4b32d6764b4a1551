"""A coordinator whose data is not its runs' own: they wait for it, and nothing is made of other."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lipt.common.data import open_dataset
from lipt.common.errors import OtherDataError
from lipt.common.states import RunState
from tests.cluster import Cluster
from tests.end_to_end.conftest import one_of_two_in


@pytest.mark.parametrize("other", ["relabelled", "enlarged"])
def test_run_is_held_while_other_data_is_served_and_goes_on_with_its_own(
    cluster: Cluster, small_run: dict[str, Any], other: str
) -> None:
    own, source = open_dataset("digits").fingerprint, f"tests.other_digits:{other}"
    coordinator = cluster.start_coordinator()
    served_again = ("--listen", cluster.address)
    with one_of_two_in(cluster, small_run) as (client, run_id, worker):
        second = worker.take()
        coordinator.stop(signal.SIGKILL)
        coordinator = cluster.start_coordinator(*served_again, "--data", source)
        # It was made of the run's own shard, and is as good as ever.
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
        # As a careful program writes: nobody sees half a file.
        Image.fromarray(pixels).save(path.with_suffix(".part"), "PNG")
        path.with_suffix(".part").replace(path)


def test_run_is_held_while_its_files_are_replaced_under_the_coordinator(
    cluster: Cluster,
) -> None:
    images = cluster.directory / "images"
    paint(images, brightness=100)
    coordinator = cluster.start_coordinator("--data", f"imagefolder:{images}")
    run = {
        "model": "resnet8",
        "learners": {"num_learners": 1, "num_steps": 1, "batch_size": 8},
        "soup": {"num_alphas": 2, "batch_norm_examples": 16},
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
