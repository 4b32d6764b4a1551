from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import cache_file
from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.determinism import derive_seed
from lipt.common.requests import WarmUp
from lipt.common.subsets import unpack
from lipt.common.tensor_files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import CutShards
from lipt.coordinator.compute.jobs.selection import SelectSubset
from lipt.coordinator.compute.messages import News, Progressed
from lipt.coordinator.state.records import LearnerRecord
from lipt.core.pretraining.initialization import warm_up
from lipt.core.pretraining.results import CommittedLearner, Trajectories
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.signals import Signals
from lipt.core.stages.warm_up import WarmUpSignals, dynamics_of, own_learners, warm_up_signals
from lipt.data.inputs.specs import ImageFormat
from lipt.data.shard import Shard, open_shard
from lipt.data.targets.values import SingleLabel
from lipt.models.encodings import encode_sparse
from lipt.models.registry import build_model, lay_out
from tests.coordinator.made_up_runs import shard_of
from tests.digits import digits_context, digits_settings
from tests.resolved import selection_job

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def context(tmp_path: Path, reports: list[str]) -> Context:
    def send(news: News) -> None:
        if isinstance(news, Progressed):
            reports.append(f"{news.activity}: {news.done}")

    return Context(digits_settings(tmp_path), send=send)


def job(context: Context, warm_up: WarmUp, **options: str) -> SelectSubset:
    initial = context.blobs.put_bytes(pack(context.new_model(CONFIG).state_dict()))
    return selection_job(
        "grand", 10, config=CONFIG, inputs=IMAGE, weights=initial, given=options, warm_up=warm_up
    )


def ask(context: Context, warm_up: WarmUp, **options: str) -> WarmUpSignals:
    asked = job(context, warm_up, **options)
    return warm_up_signals(context, asked.sources, warm_up, asked.request.needs)


def by_hand(context: Context, index: int) -> Signals:
    """Signals after an epoch of a model that begins as the index says."""
    purpose = ("model", 0) if index == 0 else ("warm-up model", index)
    model = build_model(
        "resnet8", num_classes=10, inputs=context.dataset.inputs, seed=derive_seed(3, *purpose)
    )
    model = lay_out(model, "resnet8", context.device)
    warm_up(
        *(model.train(), context.dataset, context.split(CONFIG).train_ids, 1, IMAGE),
        seed=derive_seed(3, "warm-up", index),
        device=context.device,
        cpu_threads=CONFIG.learners.cpu_threads,
    )
    return compute_signals(model.eval(), context.batches(IMAGE, "by hand"))


def test_grand_of_two_models_is_the_mean_of_both_norms(context: Context) -> None:
    norms_N = torch.zeros(len(context.dataset))
    for index in range(2):
        signals = by_hand(context, index)
        features_N = signals.features_ND.square().sum(dim=-1) + 1
        norms_N += (signals.errors_NC.square().sum(dim=-1) * features_N).sqrt() / 2
    selected = job(context, WarmUp(1.0, 2)).run(context)
    chosen = unpack(context.blobs.read_bytes(selected.blob), 10)
    indices_K = torch.from_numpy(chosen.indices_K)
    assert indices_K.tolist() == norms_N.topk(10).indices.sort().values.tolist()


def test_a_warm_up_is_trained_once_and_timed(context: Context, reports: list[str]) -> None:
    first = ask(context, WarmUp(1.0, 2))
    assert first.seconds == first.spent_seconds > 0
    assert "warming up model 2 of 2: 1" in reports
    reports.clear()
    again = ask(context, WarmUp(1.0, 2))
    assert (again.seconds, again.spent_seconds) == (first.seconds, 0.0)
    assert torch.equal(again.signals.errors_NC, first.signals.errors_NC)
    assert reports == []
    # Its first model is that of the shorter request, and gradients need no training.
    norms = ask(context, WarmUp(1.0), parameters="all")
    assert norms.spent_seconds == 0.0
    assert norms.signals.gradient_norms_N is not None
    assert not any("warming up" in report for report in reports)
    ask(context, WarmUp(0.0, 7))
    reports.clear()
    ask(context, WarmUp(0.0, 7))
    assert reports == []


def test_a_killed_warm_up_resumes_at_the_last_epoch(
    context: Context, reports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ask(digits_context(tmp_path / "other"), WarmUp(3.0)).signals

    def keep_and_die(*given: object) -> None:
        cache_file(*given)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("lipt.coordinator.compute.context.cache_file", keep_and_die)
        with pytest.raises(Killed):
            ask(context, WarmUp(3.0))
    reports.clear()
    found = ask(context, WarmUp(3.0))
    per_epoch = len(context.split(CONFIG).train_ids) // 256
    assert reports[0] == f"warming up model: {per_epoch + 1}"
    assert found.seconds > found.spent_seconds
    assert torch.equal(found.signals.errors_NC, expected.errors_NC)
    assert torch.equal(found.signals.features_ND, expected.features_ND)


LEARNERS = LearnersConfig(num_learners=3, num_minibatches=2, batch_size=16)
OF_THREE = RunConfig(model="resnet8", seed=3, evaluation_threads=1, learners=LEARNERS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return digits_context(tmp_path_factory.mktemp("state"), "digits-test")


@pytest.fixture(scope="module")
def records(shared: Context) -> tuple[LearnerRecord, ...]:
    return CutShards(OF_THREE).run(shared)


def cut(shared: Context, record: LearnerRecord) -> Shard:
    content = shared.blobs.read_bytes(shard_of(record))
    return open_shard(content, IMAGE, num_examples=32, target=SingleLabel(10))


def learners(*indices: int) -> Trajectories:
    name = BlobName.of(b"any")
    return Trajectories(name, tuple(CommittedLearner(index, (), name) for index in indices))


def test_own_learners_follow_shards(shared: Context, records: tuple[LearnerRecord, ...]) -> None:
    dataset = shared.dataset
    own_learner_N = own_learners(shared, OF_THREE, learners(0, 1, 2))
    assert own_learner_N.dtype == torch.int16
    assert torch.bincount(own_learner_N + 1).tolist() == [len(dataset) - 96, 32, 32, 32]
    # No two digits are the same picture.
    images_NP = dataset.images(torch.arange(len(dataset))).flatten(1)
    assert len(images_NP.unique(dim=0)) == len(dataset)
    for index, record in enumerate(records):
        shard = cut(shared, record)
        assert isinstance(shard.examples, Tensor)
        own = torch.nonzero(own_learner_N == index).flatten()

        def rows(images: Tensor, labels_N: Tensor) -> list[list[int]]:
            return sorted(torch.cat([labels_N[:, None], images.flatten(1)], dim=1).tolist())

        assert rows(dataset.images(own), dataset.labels_N[own]) == rows(
            shard.examples, shard.targets_N
        )


def test_own_learners_are_positions_among_finished_learners(shared: Context) -> None:
    everyone_N = own_learners(shared, OF_THREE, learners(0, 1, 2))
    # Learner 1 has failed.
    two_N = own_learners(shared, OF_THREE, learners(0, 2))
    assert torch.equal(torch.nonzero(two_N == 0), torch.nonzero(everyone_N == 0))
    assert torch.equal(torch.nonzero(two_N == 1), torch.nonzero(everyone_N == 2))
    assert not bool((two_N > 1).any())


@pytest.fixture(scope="module")
def trajectories(shared: Context) -> Trajectories:
    models = [
        shared.new_model(OF_THREE.model_copy(update={"seed": seed})).state_dict()
        for seed in range(3)
    ]
    learners = (
        CommittedLearner(index, (), shared.blobs.put_bytes(encode_sparse(models[index])))
        for index in (0, 2)
    )
    return Trajectories(shared.blobs.put_bytes(pack(models[1])), tuple(learners))


def test_dynamics_use_the_shards_and_are_cached_on_disk(
    shared: Context, trajectories: Trajectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamics = dynamics_of(shared, OF_THREE, IMAGE, trajectories)
    expected_N = own_learners(shared, OF_THREE, learners(0, 2))
    assert torch.equal(dynamics.own_learner_N, expected_N)
    outside_N = dynamics.own_learner_N < 0
    assert torch.equal(dynamics.counted_NL.all(dim=1), outside_N)
    monkeypatch.setattr("lipt.core.stages.warm_up.compute_dynamics", None)
    again = dynamics_of(shared, OF_THREE, IMAGE, trajectories)
    assert torch.equal(again.own_learner_N, expected_N)
    assert torch.equal(again.margins_NLT, dynamics.margins_NLT)
