"""Which learner was trained on what, against the shards that were really cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.data.shard import Shard, unpack_shard
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import images_in
from lipt.common.targets.values import SingleLabel
from lipt.common.weights.encodings import encode_sparse
from lipt.common.weights.files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import CutShards
from lipt.coordinator.state.records import LearnerRecord
from lipt.core.results import CommittedLearner, Trajectories
from lipt.core.stages.warm_up import dynamics_of, own_learners, states_of
from tests.digits import digits_settings

LEARNERS = LearnersConfig(num_learners=3, num_minibatches=2, batch_size=16)
CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1, learners=LEARNERS)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    settings = digits_settings(tmp_path_factory.mktemp("state"), "digits-test")
    return Context(settings, send=lambda _: None)


@pytest.fixture(scope="module")
def records(context: Context) -> tuple[LearnerRecord, ...]:
    return CutShards(CONFIG).run(context)


def cut(context: Context, record: LearnerRecord) -> Shard:
    """What the learner was sent, from its bytes."""
    content = context.blobs.read_bytes(record.shard)
    return unpack_shard(content, IMAGE, num_examples=32, target=SingleLabel(10))


def learners(*indices: int) -> Trajectories:
    """That are in, whatever they became."""
    name = BlobName.of(b"any")
    return Trajectories(name, tuple(CommittedLearner(index, (), name) for index in indices))


def test_membership_is_that_of_the_shards_that_were_cut(
    context: Context, records: tuple[LearnerRecord, ...]
) -> None:
    dataset = context.dataset
    own_learner_N = own_learners(context, CONFIG, learners(0, 1, 2))
    assert own_learner_N.dtype == torch.int16
    assert torch.bincount(own_learner_N + 1).tolist() == [len(dataset) - 96, 32, 32, 32]
    # No two digits are the same picture.
    images_NP = dataset.images(torch.arange(len(dataset))).flatten(1)
    assert len(images_NP.unique(dim=0)) == len(dataset)
    for index, record in enumerate(records):
        shard = cut(context, record)
        own = torch.nonzero(own_learner_N == index).flatten()

        def rows(images: Tensor, labels_N: Tensor) -> list[list[int]]:
            return sorted(torch.cat([labels_N[:, None], images.flatten(1)], dim=1).tolist())

        assert rows(dataset.images(own), dataset.labels_N[own]) == rows(
            images_in(shard.examples), shard.targets_N
        )


def test_places_are_those_of_the_learners_that_are_in(context: Context) -> None:
    everyone_N = own_learners(context, CONFIG, learners(0, 1, 2))
    # Learner 1 has failed.
    two_N = own_learners(context, CONFIG, learners(0, 2))
    assert torch.equal(torch.nonzero(two_N == 0), torch.nonzero(everyone_N == 0))
    assert torch.equal(torch.nonzero(two_N == 1), torch.nonzero(everyone_N == 2))
    assert not bool((two_N > 1).any())


@pytest.fixture(scope="module")
def trajectories(context: Context) -> Trajectories:
    models = [
        context.new_model(CONFIG.model_copy(update={"seed": seed})).state_dict()
        for seed in range(3)
    ]
    learners = (
        CommittedLearner(index, (), context.blobs.put_bytes(encode_sparse(models[index])))
        for index in (0, 2)
    )
    return Trajectories(context.blobs.put_bytes(pack(models[1])), tuple(learners))


def test_dynamics_know_the_shards_and_are_found_on_the_disk_again(
    context: Context, trajectories: Trajectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamics = dynamics_of(context, CONFIG, IMAGE, trajectories)
    expected_N = own_learners(context, CONFIG, learners(0, 2))
    assert torch.equal(dynamics.own_learner_N, expected_N)
    outside_N = dynamics.own_learner_N < 0
    assert torch.equal(dynamics.counted_NL.all(dim=1), outside_N)
    monkeypatch.setattr("lipt.core.stages.warm_up.compute_dynamics", None)
    again = dynamics_of(context, CONFIG, IMAGE, trajectories)
    assert torch.equal(again.own_learner_N, expected_N)
    assert torch.equal(again.margins_NLT, dynamics.margins_NLT)


def test_a_learner_is_looked_at_on_its_way_and_else_as_it_was_pruned() -> None:
    early, end, pruned = (BlobName.of(part) for part in (b"early", b"end", b"pruned"))
    assert states_of(CommittedLearner(0, (early, end), pruned)) == (early, end)
    assert states_of(CommittedLearner(0, (), pruned)) == (pruned,)
