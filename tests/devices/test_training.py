"""A learner, and main training, on a device."""

from pathlib import Path

import pytest
import torch

from lipt.common.config.run_config import (
    AugmentationConfig,
    LearnersConfig,
    Precision,
    PruningMethod,
)
from lipt.common.config.tasks import LearnerTask
from lipt.common.data.shard import Shard
from lipt.common.models import build_model
from lipt.core.learner.learner import LearnerResult, compute_mode, train_learner
from lipt.trainer.main_training import Recipe, Trained, TrainingPaused, fit
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset
from tests.devices.comparing import close

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
) -> LearnerResult:
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


def test_a_learner_in_float32_is_the_cpus(device: torch.device) -> None:
    found, expected = (learner(where, Precision.FLOAT32) for where in (device, CPU))
    close(found.weights, expected.weights, tolerance=1e-3)


@pytest.mark.parametrize("pruning", list(PruningMethod))
def test_a_learner_is_pruned_there(device: torch.device, pruning: PruningMethod) -> None:
    found = learner(device, Precision.FLOAT32, pruning)
    assert found.loss == pytest.approx(learner(CPU, Precision.FLOAT32, pruning).loss, rel=1e-2)


@cuda
def test_a_learner_is_trained_in_bfloat16_unasked() -> None:
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
def test_main_training_in_float32_comes_near_the_cpus() -> None:
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
def test_main_training_goes_on_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for step in (3, 6):
        with pytest.raises(TrainingPaused) as paused:
            trained("cuda", path, precision="float32")
        assert paused.value.progress.step == step
    ended = trained("cuda", path, precision="float32")
    close(ended.weights, trained("cuda", precision="float32").weights, tolerance=0.05)
