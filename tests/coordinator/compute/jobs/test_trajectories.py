"""Which states of learners are looked at, by what their blobs hold."""

from __future__ import annotations

import torch

from lipt.common.blobs.name import BlobName
from lipt.common.weights.specs import Weights
from lipt.coordinator.compute.jobs.trajectories import states_of
from lipt.coordinator.state.records import CommittedLearner

EARLY, END = [1.0, 2.0, 3.0], [1.5, 2.5, 3.5]
PRUNED = [0.0, 2.5, 3.5]


class Stored:
    """Weights by name, and how often they were read."""

    def __init__(self) -> None:
        self.weights: dict[BlobName, Weights] = {}
        self.num_reads = 0

    def put(self, values: list[float]) -> BlobName:
        name = BlobName.of(repr(values).encode())
        self.weights[name] = {"w": torch.tensor(values)}
        return name

    def read(self, name: BlobName) -> Weights:
        self.num_reads += 1
        return self.weights[name]

    def learner(self, index: int, *states: list[float]) -> CommittedLearner:
        *snapshots, result = map(self.put, states)
        return CommittedLearner(index, tuple(snapshots), result)


def test_a_learner_ends_as_it_was_before_pruning() -> None:
    stored = Stored()
    learners = (stored.learner(0, EARLY, END, PRUNED), stored.learner(1, EARLY, END, PRUNED))
    early, end = stored.put(EARLY), stored.put(END)
    assert states_of(learners, stored.read) == ((early, end), (early, end))


def test_without_snapshots_its_pruned_result_is_all_there_is() -> None:
    stored = Stored()
    learners = (stored.learner(0, PRUNED), stored.learner(1, PRUNED))
    assert states_of(learners, stored.read) == ((stored.put(PRUNED),),) * 2
    assert stored.num_reads == 0


def test_snapshots_of_older_versions_end_in_the_result_as_they_did() -> None:
    stored = Stored()
    learners = (stored.learner(0, EARLY, PRUNED),)
    assert states_of(learners, stored.read) == ((stored.put(EARLY), stored.put(PRUNED)),)


def test_a_run_that_an_update_cut_in_two_has_as_many_moments_of_each_learner() -> None:
    stored = Stored()
    learners = (stored.learner(0, EARLY, PRUNED), stored.learner(1, END, PRUNED))
    early, end, pruned = stored.put(EARLY), stored.put(END), stored.put(PRUNED)
    assert states_of(learners, stored.read) == ((early, pruned), (end, pruned))
