from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.config.run_config import (
    AugmentationConfig,
    AugmentationMethod,
    LearnersConfig,
    Precision,
    PruningMethod,
)
from lipt.common.config.tasks import LearnerTask
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.core.learner import minibatches
from lipt.core.learner.learner import compute_mode, train_on_shard

CPU = torch.device("cpu")


def make_task(learners: LearnersConfig, *, model: str = "resnet8") -> LearnerTask:
    return LearnerTask(
        model=model,
        num_classes=10,
        image=ImageFormat(1, 8, 8, mean=(0.3,), std=(0.4,)),
        learners=learners,
        augmentation=AugmentationConfig(method=AugmentationMethod.NONE),
        pruning_method=PruningMethod.NONE,
        density=1.0,
        seed=5,
    )


def linear_model() -> tuple[nn.Module, nn.Linear]:
    head = nn.Linear(64, 10)
    return nn.Sequential(nn.Flatten(), head), head


def train(task: LearnerTask, model: nn.Module, images_NCHW: Tensor, labels_N: Tensor) -> float:
    loss, _ = train_on_shard(
        model,
        task,
        images_NCHW,
        labels_N,
        compute_mode(task, CPU),
        on_step=lambda step, loss: None,
        should_stop=lambda: False,
    )
    return loss


def test_steps_are_sgd_with_momentum_and_weight_decay() -> None:
    generator = torch.Generator().manual_seed(0)
    images_NCHW = torch.randint(256, (16, 1, 8, 8), generator=generator).to(torch.uint8)
    labels_N = torch.arange(16) % 10
    model, head = linear_model()
    weight_CD, bias_C = head.weight.detach().double(), head.bias.detach().double()
    task = make_task(
        LearnersConfig(num_minibatches=1, num_steps=3, batch_size=16, learning_rate=0.3)
    )
    loss = train(task, model, images_NCHW, labels_N)

    inputs_ND = ((images_NCHW.double() / 255 - 0.3) / 0.4).flatten(1)
    onehot_NC = functional.one_hot(labels_N, 10).double()
    momentum_CD, momentum_C = torch.zeros_like(weight_CD), torch.zeros_like(bias_C)
    softmax_NC = onehot_NC
    for _ in range(3):
        softmax_NC = (inputs_ND @ weight_CD.T + bias_C).softmax(1)
        errors_NC = (softmax_NC - onehot_NC) / 16
        momentum_CD = 0.9 * momentum_CD + errors_NC.T @ inputs_ND + 5e-4 * weight_CD
        momentum_C = 0.9 * momentum_C + errors_NC.sum(0) + 5e-4 * bias_C
        weight_CD, bias_C = weight_CD - 0.3 * momentum_CD, bias_C - 0.3 * momentum_C
    assert torch.allclose(head.weight.double(), weight_CD, atol=1e-5)
    assert torch.allclose(head.bias.double(), bias_C, atol=1e-5)
    # The loss is that of the last pass, before its update.
    expected_loss = -(onehot_NC * softmax_NC.log()).sum(1).mean()
    assert loss == pytest.approx(float(expected_loss), abs=1e-5)


def test_each_step_passes_over_the_shard_once_in_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[list[int]] = []

    def recording(
        images_BCHW: Tensor, config: AugmentationConfig, generator: torch.Generator
    ) -> Tensor:
        batches.append(images_BCHW[:, 0, 0, 0].tolist())
        return images_BCHW

    monkeypatch.setattr(minibatches, "augment", recording)
    numbered = torch.arange(16, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    task = make_task(LearnersConfig(num_minibatches=2, num_steps=3, batch_size=8))
    train(task, linear_model()[0], numbered, torch.arange(16) % 10)
    assert [len(batch) for batch in batches] == [8] * 6
    passes = [batches[2 * step] + batches[2 * step + 1] for step in range(3)]
    assert all(sorted(numbers) == list(range(16)) for numbers in passes)
    assert len({tuple(numbers) for numbers in passes}) == 3


@pytest.mark.parametrize(
    ("precision", "device", "supported", "bfloat16"),
    [
        (Precision.AUTO, "cpu", True, False),
        (Precision.FLOAT32, "cpu", True, False),
        (Precision.BFLOAT16, "cpu", False, True),
        (Precision.AUTO, "cuda:0", True, True),
        (Precision.AUTO, "cuda:0", False, False),
        (Precision.FLOAT32, "cuda:0", True, False),
        (Precision.BFLOAT16, "cuda:0", True, True),
    ],
)
def test_precision_follows_the_device(
    precision: Precision,
    device: str,
    *,
    supported: bool,
    bfloat16: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    task = make_task(LearnersConfig(precision=precision))
    assert compute_mode(task, torch.device(device)).bfloat16 is bfloat16


def test_bfloat16_on_a_gpu_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    task = make_task(LearnersConfig(precision=Precision.BFLOAT16))
    with pytest.raises(ConfigError, match="Old GPU does not compute in it") as raised:
        compute_mode(task, torch.device("cuda", 0))
    assert "Set learners.precision to auto or float32" in str(raised.value)


@pytest.mark.parametrize(
    ("model", "memory_format"),
    [
        ("resnet8", torch.channels_last),
        ("torchvision:resnet18", torch.channels_last),
        ("own:factory", torch.contiguous_format),
    ],
)
def test_only_known_models_run_channels_last(
    model: str, memory_format: torch.memory_format
) -> None:
    mode = compute_mode(make_task(LearnersConfig(), model=model), CPU)
    assert mode.memory_format is memory_format
