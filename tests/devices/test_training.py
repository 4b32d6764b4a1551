import json
from pathlib import Path

import pytest
import torch

from lipt.common.config.run_config import (
    AugmentationConfig,
    InitializationConfig,
    LearnersConfig,
    Precision,
    PruningMethod,
)
from lipt.common.tensor_files import Weights
from lipt.core.pretraining.evaluation import Evaluator
from lipt.core.pretraining.initialization import initialize
from lipt.core.pretraining.learner import TrainedLearner, compute_mode, train_learner
from lipt.core.pretraining.soup import Soup, greedy_soup, weighted_soup
from lipt.core.selection.select import STRATEGIES
from lipt.core.selection.strategy import Strategy
from lipt.core.signals.signals import moved
from lipt.core.tasks import LearnerTask
from lipt.data.shard import Shard
from lipt.data.targets.values import SingleLabel
from lipt.models.registry import build_model, lay_out
from lipt.trainer.main_training import Recipe, Trained, TrainingPaused, fit
from tests.cluster import SMALL_RUN, Cluster
from tests.core.selection.builders import full_signals
from tests.core.selection.test_conformance import LABELS, Options, choose, variants
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network
from tests.devices.conftest import close

pytestmark = pytest.mark.slow

DATASET = made_up_dataset(96)
cuda = pytest.mark.cuda


def task(precision: Precision, pruning: PruningMethod) -> LearnerTask:
    return LearnerTask(
        model="resnet8",
        num_classes=3,
        image=IMAGE,
        learners=LearnersConfig(
            num_minibatches=2, num_steps=2, batch_size=16, learning_rate=0.01, precision=precision
        ),
        augmentation=AugmentationConfig(),
        pruning_method=pruning,
        density=0.9,
        seed=5,
    )


def learner(
    device: torch.device, precision: Precision, pruning: PruningMethod = PruningMethod.NONE
) -> TrainedLearner:
    ids_N = torch.arange(32)
    return train_learner(
        task(precision, pruning),
        build_model("resnet8", num_classes=3, inputs=DATASET.inputs, seed=0).state_dict(),
        Shard(DATASET.examples(ids_N), DATASET.targets_N[ids_N]),
        device=device,
        allowed_modules=(),
        on_step=lambda *_: None,
        should_stop=lambda: False,
    )


def test_a_float32_learner_equals_the_cpu_s(device: torch.device) -> None:
    found, expected = (learner(where, Precision.FLOAT32) for where in (device, CPU))
    close(found.weights, expected.weights, tolerance=1e-3)


@pytest.mark.parametrize("pruning", list(PruningMethod))
def test_a_learner_is_pruned_on_the_device(device: torch.device, pruning: PruningMethod) -> None:
    found = learner(device, Precision.FLOAT32, pruning)
    assert found.loss == pytest.approx(learner(CPU, Precision.FLOAT32, pruning).loss, rel=1e-2)


@cuda
def test_a_learner_is_trained_in_bfloat16_by_default() -> None:
    device = torch.device("cuda", 0)
    supported = torch.cuda.is_bf16_supported(including_emulation=False)
    assert compute_mode(task(Precision.AUTO, PruningMethod.NONE), device).bfloat16 is supported
    found, expected = learner(device, Precision.AUTO), learner(CPU, Precision.FLOAT32)
    assert found.loss == pytest.approx(expected.loss, rel=0.05)


def trained(device: str, path: Path | None = None, /, **settings: str | float) -> Trained:
    recipe = Recipe.model_validate(
        {"steps": 8, "batch_size": 32, "learning_rate": 0.02, **settings}
    )
    seconds = None if path is None else 0.0
    return fit(
        "resnet8",
        DATASET,
        test=DATASET,
        recipe=recipe,
        device=device,
        checkpoint=path,
        max_seconds=seconds,
    )


@cuda
def test_float32_main_training_is_near_the_cpu_s() -> None:
    found, expected = trained("cuda", precision="float32"), trained("cpu", precision="float32")
    # cuDNN rounds to TF32, and what it sums in any order goes on through eight steps.
    close(found.weights, expected.weights, tolerance=0.05)


@cuda
@pytest.mark.parametrize(
    "settings",
    [{}, {"compile": True}, {"compile": True, "cuda_graphs": True, "drop_last": True}],
    ids=["plain", "compiled", "graphs"],
)
def test_main_training_in_bfloat16_learns(settings: dict[str, bool]) -> None:
    found = trained("cuda", steps=60, augmentation="none", **settings)
    assert all(tensor.isfinite().all() for tensor in found.weights.values())
    assert found.subset_accuracies[-1][1] > 0.5  # random labels of three classes, by heart


@cuda
def test_main_training_resumes_on_the_device(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for step in (3, 6):
        with pytest.raises(TrainingPaused) as paused:
            trained("cuda", path, precision="float32")
        assert paused.value.progress.step == step
    ended = trained("cuda", path, precision="float32")
    close(ended.weights, trained("cuda", precision="float32").weights, tolerance=0.05)


EXAMPLES = made_up_dataset(120)
EVERY = torch.arange(120)


def weights_of(seed: int) -> Weights:
    return made_up_network(seed=seed).state_dict()


def evaluator(device: torch.device) -> Evaluator:
    return Evaluator(
        [made_up_network().to(device)],
        inputs=IMAGE,
        device=device,
        examples_N=EXAMPLES.examples(EVERY),
        target=SingleLabel(3),
        targets_N=EXAMPLES.labels_N,
        batch_norm_examples_M=EXAMPLES.examples(EVERY[:64]),
        batch_size=32,
    )


def soup(device: torch.device, *, greedy: bool) -> Soup:
    learners = [lambda seed=seed: weights_of(seed) for seed in range(4)]
    if greedy:
        return greedy_soup(learners, evaluator(device), num_alphas=4, on_progress=lambda *_: None)
    return weighted_soup(learners, None, evaluator(device), on_progress=lambda *_: None)


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "uniform"])
def test_a_soup_equals_the_cpu_s(device: torch.device, *, greedy: bool) -> None:
    first, again, expected = (soup(where, greedy=greedy) for where in (device, device, CPU))
    assert first.accuracy == again.accuracy
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)
    # An example or two of 120 may lie on the edge.
    assert first.accuracy == pytest.approx(expected.accuracy, abs=0.02)
    assert {tensor.device.type for tensor in first.weights.values()} == {"cpu"}


def test_batch_norm_statistics_equal_the_cpu_s(device: torch.device) -> None:
    weights = weights_of(2)
    found, expected = (evaluator(where).score(weights).statistics for where in (device, CPU))
    assert found
    close(found, expected)


def test_theta_star_is_near_the_cpu_s_and_reproducible(device: torch.device) -> None:
    def trained(where: torch.device) -> Weights:
        model = build_model("resnet8", num_classes=3, inputs=EXAMPLES.inputs, seed=0)
        return initialize(
            lay_out(model, "resnet8", where),
            EXAMPLES,
            EVERY,
            InitializationConfig(steps=2, batch_size=30, learning_rate=0.01),
            IMAGE,
            seed=1,
            device=where,
            cpu_threads=1,
            on_progress=lambda *_: None,
        )

    found, again, expected = trained(device), trained(device), trained(CPU)
    assert all(torch.equal(found[key], again[key]) for key in found)
    close(found, expected, tolerance=1e-3)


CASES = [
    pytest.param(strategy, options, id="-".join([name, *map(str, options.values())]))
    for name, strategy in STRATEGIES.items()
    for options in variants(strategy)
]


@pytest.mark.parametrize(("strategy", "options"), CASES)
def test_subset_equals_the_cpu_s(
    device: torch.device, strategy: Strategy, options: Options
) -> None:
    # What is pretended takes its time at every operation.
    signals = full_signals(LABELS if device.type == "cuda" else LABELS[:40])
    balanced = strategy.resolve_balance(None)
    expected, found = (
        choose(strategy, given, 11, balanced=balanced, options=options)
        for given in (signals, moved(signals, device))
    )
    assert found.indices_K.tolist() == expected.indices_K.tolist()
    weights_K = found.weights_K.cpu()
    torch.testing.assert_close(weights_K, expected.weights_K, rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
def test_everything_is_computed_on_the_device(cluster: Cluster) -> None:
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
