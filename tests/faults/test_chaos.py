"""A minute in which everything happens: the run ends as if nothing had."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.blob_files import flip_a_bit
from tests.cluster import Cluster, LoggedProcess
from tests.faults.conftest import Record

SECONDS, PAUSE_SECONDS = 60.0, (0.5, 2.5)
LEASE_SECONDS = 2.0
WORKERS = ("one", "two")
RUN = {
    "model": "resnet8",
    # A disk that is damaged again and again costs attempts.
    "learners": {"num_learners": 8, "num_steps": 150, "batch_size": 64, "max_attempts": 100},
    "soup": {"num_alphas": 8, "batch_norm_examples": 512},
}


class Chaos:
    def __init__(self, cluster: Cluster, draw: random.Random) -> None:
        self._cluster, self._draw = cluster, draw
        self._flags = cluster.leases_of(LEASE_SECONDS)
        self._coordinator = cluster.start_coordinator(*self._flags)
        self._workers = {name: cluster.start_worker(name) for name in WORKERS}
        self.happenings: tuple[Callable[[], None], ...] = (
            self.coordinator_dies,
            self.coordinator_stands_still,
            self.compute_process_dies,
            self.worker_dies,
            self.worker_stands_still,
            self.bit_flips_at_the_coordinator,
            self.bit_flips_at_a_worker,
            self.blob_is_lost,
        )

    def coordinator_dies(self) -> None:
        self._coordinator.stop(signal.SIGKILL)
        self._coordinator = self._cluster.start_coordinator(
            *self._flags, "--listen", self._cluster.address
        )

    def coordinator_stands_still(self) -> None:
        self._stand_still(self._coordinator)

    def compute_process_dies(self) -> None:
        self._coordinator.kill_computing()

    def worker_dies(self) -> None:
        name = self._draw.choice(WORKERS)
        self._workers[name].stop(signal.SIGKILL)
        self._workers[name] = self._cluster.start_worker(name)

    def worker_stands_still(self) -> None:
        self._stand_still(self._workers[self._draw.choice(WORKERS)])

    def bit_flips_at_the_coordinator(self) -> None:
        self._flip_a_bit(self._cluster.state)

    def bit_flips_at_a_worker(self) -> None:
        self._flip_a_bit(self._cluster.directory / f"cache-{self._draw.choice(WORKERS)}")

    def blob_is_lost(self) -> None:
        for path in self._a_blob(self._cluster.state):
            path.unlink()

    def _stand_still(self, process: LoggedProcess) -> None:
        process.send(signal.SIGSTOP)
        time.sleep(1.75 * LEASE_SECONDS)
        process.send(signal.SIGCONT)

    def _flip_a_bit(self, store: Path) -> None:
        for path in self._a_blob(store):
            flip_a_bit(path, self._draw.randrange(path.stat().st_size), self._draw.randrange(8))

    def _a_blob(self, store: Path) -> list[Path]:
        blobs = sorted((store / "blobs").glob("*/*"))
        return [self._draw.choice(blobs)] if blobs else []


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_soup_and_subset_are_the_same_whatever_happens_meanwhile(
    tmp_path: Path, seed: int, record: Record
) -> None:
    (tmp_path / "quiet").mkdir()
    (tmp_path / "chaos").mkdir()
    with Cluster(tmp_path / "quiet") as quiet, Cluster(tmp_path / "chaos") as shaken:
        quiet.start_coordinator()
        quiet.start_worker("only")
        expected = outcome(quiet)

        draw = random.Random(seed)
        chaos = Chaos(shaken, draw)
        with shaken.client() as client:
            run_id = client.start_run(RUN).run_id
        happened: list[str] = []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(draw.uniform(*PAUSE_SECONDS))
            happening = draw.choice(chaos.happenings)
            happened.append(happening.__name__)
            happening()
        found = outcome(shaken, run_id)
    record(f"{len(happened)} things happened: {', '.join(happened)}")
    assert found == expected


def outcome(cluster: Cluster, run_id: str = "") -> tuple[str, str]:
    with cluster.client() as client:
        run = client.wait(run_id or client.start_run(RUN).run_id)
        assert run.pretrained_weights is not None
        subset = client.subset(run.run_id, "craig", fraction=0.1)
        return run.pretrained_weights.sha256, subset.digest
