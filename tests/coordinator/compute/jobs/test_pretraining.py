from pathlib import Path

import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import LearnersConfig, RunConfig, SoupConfig
from lipt.common.errors import CorruptBlobError, DataError
from lipt.common.tensor_files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DamagedLearners,
    DescribeData,
    InitializeWeights,
    LearnerOffered,
    MakeSoup,
    SoupResult,
)
from lipt.coordinator.compute.messages import News, Progressed
from lipt.core import pipeline
from lipt.core.pretraining.sharding import draw_densities
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageSpec, InputFormat
from lipt.models.encodings import encode_sparse
from lipt.models.registry import build_model
from tests.blob_files import flip_a_bit
from tests.coordinator.made_up_runs import IMAGE
from tests.digits import digits_context


def test_a_data_set_is_described(context: Context) -> None:
    described = DescribeData().run(context)
    assert described.source == "digits"
    assert described.class_names == tuple("0123456789")
    assert described.num_examples == sum(described.class_counts) == 1797
    assert described.inputs == ImageSpec(1, 8, 8)
    assert described.fingerprint == context.dataset.fingerprint


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """One for each test: they damage what is stored."""
    return digits_context(tmp_path)


def test_each_learner_has_its_own_shard_and_density(context: Context) -> None:
    config = RunConfig(model="resnet8", learners=LearnersConfig(num_learners=3, batch_size=16))
    learners = CutShards(config).run(context)
    drawn = draw_densities(3, config.pruning, seed=config.seed)
    assert [learner.density for learner in learners] == list(drawn)
    assert len({learner.shard for learner in learners}) == 3


def test_initial_weights_are_trained_on_the_training_split(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(model="resnet8")
    seen: list[torch.Tensor] = []

    normalize = pipeline.input_format

    def look(dataset: Dataset, ids: torch.Tensor, seed: int) -> InputFormat:
        seen.append(ids)
        return normalize(dataset, ids, seed)

    def stop(_model: object, _dataset: object, ids: torch.Tensor, *_: object, **__: object) -> None:
        seen.append(ids)
        raise DataError("seen.")

    monkeypatch.setattr(pipeline, "input_format", look)
    monkeypatch.setattr(pipeline, "initialize", stop)
    with pytest.raises(DataError, match="seen"):
        InitializeWeights(config).run(context)
    assert len(seen) == 2
    assert all(torch.equal(ids, context.split(config).train_ids) for ids in seen)


def make(context: Context) -> tuple[MakeSoup, BlobName, BlobName]:
    config = RunConfig(
        model="resnet8",
        learners=LearnersConfig(num_learners=2, batch_size=16),
        soup=SoupConfig(num_alphas=1, reestimate_batch_norm=False),
    )
    weights = build_model(
        "resnet8", num_classes=10, inputs=context.dataset.inputs, seed=0
    ).state_dict()
    initial = context.blobs.put_bytes(pack(weights))
    learner = context.blobs.put_bytes(
        encode_sparse({name: tensor * 2 for name, tensor in weights.items()})
    )
    return MakeSoup(config, IMAGE, initial, ((0, learner), (1, learner))), initial, learner


def damage(path: Path) -> None:
    flip_a_bit(path, -1000)


@pytest.mark.parametrize("what", ["damaged", "lost"])
def test_a_damaged_learner_is_named_and_can_be_submitted_again(context: Context, what: str) -> None:
    job, _, learner = make(context)
    made = job.run(context)
    assert isinstance(made, SoupResult)
    path = context.blobs.path(learner)
    content = path.read_bytes()
    damage(path) if what == "damaged" else path.unlink()
    assert job.run(context) == DamagedLearners((0, 1))
    assert context.blobs.put_bytes(content) == learner
    assert job.run(context) == made


def test_every_offered_learner_is_reported_and_a_damaged_one_stays_out(context: Context) -> None:
    job, _, learner = make(context)
    told: list[News] = []
    made = job.run(Context(context.settings, send=told.append))
    assert isinstance(made, SoupResult)
    parts = [now for now in told if isinstance(now, LearnerOffered)]
    assert parts == [LearnerOffered(index, part) for index, part in made.ingredients.items()]
    assert told.index(parts[0]) < len(told) - 1

    def after_the_learners_are_scored(now: News) -> None:
        scored = "merging learners", len(job.learners)
        if isinstance(now, Progressed) and (now.activity, now.done) == scored:
            damage(context.blobs.path(learner))

    disturbed = Context(context.settings, send=after_the_learners_are_scored)
    assert job.run(disturbed) == DamagedLearners((0, 1))


def test_damaged_initial_weights_stay_out_of_the_soup(context: Context) -> None:
    job, initial, _ = make(context)
    path = context.blobs.path(initial)
    damage(path)
    with pytest.raises(CorruptBlobError, match=f"{path.name}.*Delete it"):
        job.run(context)
