import dataclasses
import threading
from typing import Any

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
from lipt.common.errors import (
    ConfigError,
    DataError,
    DivergedError,
    LearnerStoppedError,
    SignalsError,
)
from lipt.common.states import DivergedQuantity, Divergence
from lipt.common.tensor_files import Weights, specs_of
from lipt.core.pretraining.learner import (
    TrainedLearner,
    compute_mode,
    train_learner,
    train_on_shard,
)
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.specs import ImageFormat, spec_of
from lipt.data.shard import Shard
from lipt.models.registry import build_model
from tests.image_files import encoded, files_of

CPU = torch.device("cpu")
IMAGE = ImageFormat(1, 8, 8, mean=(0.3,), std=(0.4,))
OWN = "tests.core.pretraining.test_learner"


class NaNOnWhite(nn.Module):
    def forward(self, images_BCHW: Tensor) -> Tensor:
        rows_BD = images_BCHW.flatten(1)
        return rows_BD * torch.where(rows_BD.mean(dim=1) > 1.0, float("nan"), 1.0)[:, None]


def breaks_on_white(num_classes: int) -> nn.Module:
    return nn.Sequential(NaNOnWhite(), nn.Linear(64, num_classes))


def dropout(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))


class Tied(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        hidden_BD = self.second(self.first(images_BCHW.flatten(1)).relu())
        return self.fc(hidden_BD.relu())  # type: ignore[no-any-return]


def make_task(
    *,
    model: str = "resnet8",
    learners: LearnersConfig | None = None,
    pruning_method: PruningMethod = PruningMethod.MAGNITUDE,
    density: float = 0.9,
    seed: int = 5,
) -> LearnerTask:
    return LearnerTask(
        model=model,
        num_classes=10,
        image=IMAGE,
        learners=learners or LearnersConfig(num_minibatches=2, num_steps=3, batch_size=8),
        augmentation=AugmentationConfig(),
        pruning_method=pruning_method,
        density=density,
        seed=seed,
    )


def made_up() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (16, 1, 8, 8), generator=generator).to(torch.uint8)


def make_shard() -> Shard:
    return Shard(made_up(), torch.arange(16) % 10)


def theta_star(task: LearnerTask) -> Weights:
    inputs, allowed = spec_of(task.inputs), (OWN,)
    model = build_model(
        task.model, num_classes=task.num_classes, inputs=inputs, seed=77, allowed_modules=allowed
    )
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def make_files(*, broken: int | None = None) -> Shard:
    """The examples of `make_shard` as files; one of them cut off."""
    files = files_of(made_up())
    if broken is not None:
        files[broken] = files[broken][:-40]
    return Shard(encoded(files, IMAGE), torch.arange(16) % 10)


def train(
    task: LearnerTask,
    *,
    initial: Weights | None = None,
    shard: Shard | None = None,
    losses: dict[int, float] | None = None,
) -> TrainedLearner:
    seen: dict[int, float] = {} if losses is None else losses
    return train_learner(
        task,
        theta_star(task) if initial is None else initial,
        make_shard() if shard is None else shard,
        device=CPU,
        allowed_modules=(OWN,),
        on_step=seen.__setitem__,
        should_stop=lambda: False,
    )


def reading_threads() -> list[str]:
    names = [one.name for one in threading.enumerate()]
    return [name for name in names if name.startswith("decode")]


def same(first: TrainedLearner, second: TrainedLearner) -> bool:
    return first.loss == second.loss and all(
        torch.equal(tensor, second.weights[name]) for name, tensor in first.weights.items()
    )


def test_the_result_is_the_whole_state_on_the_cpu() -> None:
    task = make_task()
    initial = theta_star(task)
    before = {name: tensor.clone() for name, tensor in initial.items()}
    losses: dict[int, float] = {}
    result = train(task, initial=initial, losses=losses)
    assert specs_of(result.weights) == specs_of(initial)
    assert all(tensor.is_contiguous() for tensor in result.weights.values())
    assert not any(tensor.requires_grad for tensor in result.weights.values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in initial.items())
    assert not torch.equal(result.weights["conv1.weight"], initial["conv1.weight"])
    # 3 passes over 2 minibatches.
    assert result.weights["bn1.num_batches_tracked"] == 6
    assert list(losses) == [1, 2, 3]
    assert losses[3] == result.loss
    assert result.train_seconds > 0


def test_snip_only_changes_pruned_weights() -> None:
    dense = train(make_task(pruning_method=PruningMethod.NONE))
    pruned = train(make_task(pruning_method=PruningMethod.SNIP))
    assert pruned.loss == dense.loss
    for name, tensor in pruned.weights.items():
        changed = tensor != dense.weights[name]
        assert (tensor[changed] == 0).all()
        assert tensor.ndim >= 2 or not changed.any(), name


def test_tensor_with_two_names_is_pruned_under_both() -> None:
    task = make_task(model=f"{OWN}:Tied", density=0.5)
    weights = train(task).weights
    assert torch.equal(weights["first.weight"], weights["second.weight"])
    kept = int(weights["first.weight"].count_nonzero() + weights["fc.weight"].count_nonzero())
    assert kept == (64 * 64 + 64 * 10) // 2


def test_a_learner_does_not_depend_on_the_process_s_threads() -> None:
    task = make_task()
    expected = train(task)
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            assert same(train(task), expected)
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)


def test_a_broken_image_fails_the_learner_and_its_threads_end() -> None:
    task = make_task()
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(DataError) as raised:
        train(task, shard=make_files(broken=3))
    assert "image 3 of the shard cannot be used: it is not a whole image" in str(raised.value)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not reading_threads()


def test_snapshots_are_the_states_after_their_steps_and_change_nothing() -> None:
    learners = LearnersConfig(num_minibatches=2, num_steps=4, batch_size=8, num_snapshots=2)
    task = make_task(learners=learners)
    watched = train(task)
    # After steps 2 and 4, of 2 minibatches each.
    seen = [int(state["bn1.num_batches_tracked"]) for state in watched.snapshots]
    assert seen == [4, 8]
    without = LearnersConfig(num_minibatches=2, num_steps=4, batch_size=8)
    assert same(watched, train(make_task(learners=without)))
    for num_steps, snapshot in zip((2, 4), watched.snapshots, strict=True):
        shorter = LearnersConfig(num_minibatches=2, num_steps=num_steps, batch_size=8)
        expected = train(make_task(learners=shorter, pruning_method=PruningMethod.NONE)).weights
        assert specs_of(snapshot) == specs_of(expected)
        assert all(torch.equal(snapshot[name], expected[name]) for name in expected)


def test_dropout_is_reproducible_and_the_global_generator_unchanged() -> None:
    task = make_task(model=f"{OWN}:dropout")
    expected = train(task)
    torch.rand(3)
    state = torch.get_rng_state()
    assert same(train(task), expected)
    assert torch.equal(torch.get_rng_state(), state)
    other = dataclasses.replace(task, seed=6)
    assert not same(train(other), expected)


def test_should_stop_is_asked_before_each_minibatch() -> None:
    answers = iter([False, False, False, True])
    steps: list[int] = []
    task = make_task()
    with pytest.raises(LearnerStoppedError) as raised:
        train_learner(
            task,
            theta_star(task),
            make_files(),
            device=CPU,
            on_step=lambda step, loss: steps.append(step),
            should_stop=lambda: next(answers),
        )
    # The fourth minibatch is the second of the second pass.
    assert steps == [1]
    assert "stopped in step 2 of 3" in str(raised.value)
    assert not reading_threads()


def test_divergence_is_reported_with_step_and_remedy() -> None:
    plain = LearnersConfig(num_minibatches=2, num_steps=5, batch_size=8, learning_rate=1e30)
    words = r"loss not finite after step 1 of 5, .* rate 1e\+30.*Lower learners\.learning_rate"
    with pytest.raises(DivergedError, match=words):
        train(make_task(learners=plain))
    # The only loss is that of theta*; the update after it overflows.
    last = LearnersConfig(
        num_minibatches=1, num_steps=1, batch_size=16, learning_rate=3e38, weight_decay=1e3
    )
    with pytest.raises(DivergedError, match="weights not finite after step 1 of 1") as raised:
        train(make_task(learners=last))
    assert raised.value.divergence == Divergence(DivergedQuantity.WEIGHTS, 1, 1)


def test_examples_on_which_theta_star_is_not_finite_are_named() -> None:
    task = make_task(model=f"{OWN}:breaks_on_white")
    white = made_up()
    white[3] = 255
    shard = Shard(white, torch.arange(16) % 10)
    given: dict[str, Any] = {
        "device": CPU,
        "allowed_modules": (OWN,),
        "on_step": lambda *_: None,
        "should_stop": lambda: False,
    }
    initial = theta_star(task)
    named = "not finite for 1 of 16 examples, with ids {}: .*not trained yet"
    with pytest.raises(SignalsError, match=named.format(3)):
        train_learner(task, initial, shard, **given)
    with pytest.raises(SignalsError, match=named.format(103)):
        train_learner(task, initial, shard, ids=torch.arange(100, 116), **given)


def freezing(*patterns: str, num_snapshots: int = 0) -> LearnersConfig:
    return LearnersConfig(
        num_minibatches=2, num_steps=3, batch_size=8, num_snapshots=num_snapshots, frozen=patterns
    )


@pytest.mark.parametrize("method", list(PruningMethod))
def test_only_trained_tensors_are_submitted_and_pruned(method: PruningMethod) -> None:
    learners = freezing("all-but-head", num_snapshots=2)
    task = make_task(learners=learners, pruning_method=method, density=0.5)
    initial = theta_star(task)
    result = train(task, initial=initial)
    assert set(result.weights) == {"fc.weight", "fc.bias"}
    kept = int(result.weights["fc.weight"].count_nonzero())
    whole = initial["fc.weight"].numel()
    assert kept == (whole if method is PruningMethod.NONE else whole // 2)
    assert [set(snapshot) for snapshot in result.snapshots] == [set(result.weights)] * 2
    assert not torch.equal(result.snapshots[-1]["fc.weight"], initial["fc.weight"])


def test_a_frozen_layer_is_unchanged_and_affects_the_others() -> None:
    task = make_task(learners=freezing("blocks.*"), pruning_method=PruningMethod.NONE)
    initial = theta_star(task)
    result = train(task, initial=initial)
    assert set(result.weights) == {name for name in initial if not name.startswith("blocks.")}
    assert result.weights["bn1.num_batches_tracked"] == 6
    whole = dataclasses.replace(task, learners=freezing())
    unfrozen = train(whole, initial=initial)
    assert not torch.equal(unfrozen.weights["fc.weight"], result.weights["fc.weight"])


def task_of(learners: LearnersConfig) -> LearnerTask:
    plain = AugmentationConfig(method=AugmentationMethod.NONE)
    task = make_task(learners=learners, pruning_method=PruningMethod.NONE, density=1.0)
    return dataclasses.replace(task, augmentation=plain)


def test_steps_are_sgd_with_momentum_and_weight_decay() -> None:
    images_NCHW, labels_N = made_up(), torch.arange(16) % 10
    head = nn.Linear(64, 10)
    weight_CD, bias_C = head.weight.detach().double(), head.bias.detach().double()
    task = task_of(LearnersConfig(num_minibatches=1, num_steps=3, batch_size=16, learning_rate=0.3))
    loss, _ = train_on_shard(
        nn.Sequential(nn.Flatten(), head),
        task,
        images_NCHW,
        labels_N,
        compute_mode(task, CPU),
        on_step=lambda step, loss: None,
        should_stop=lambda: False,
    )

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


AUTO, FLOAT32, BFLOAT16 = Precision.AUTO, Precision.FLOAT32, Precision.BFLOAT16


@pytest.mark.parametrize(
    ("precision", "device", "supported", "bfloat16"),
    [
        *(
            (AUTO, "cpu", True, False),
            (FLOAT32, "cpu", True, False),
            (BFLOAT16, "cpu", False, True),
        ),
        *((AUTO, "cuda:0", True, True), (AUTO, "cuda:0", False, False)),
        *((FLOAT32, "cuda:0", True, False), (BFLOAT16, "cuda:0", True, True)),
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
    task = task_of(LearnersConfig(precision=precision))
    assert compute_mode(task, torch.device(device)).bfloat16 is bfloat16


def test_a_precision_that_the_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    words = r"Old GPU does not compute in it\. Set learners\.precision to auto or float32"
    with pytest.raises(ConfigError, match=words):
        compute_mode(task_of(LearnersConfig(precision=BFLOAT16)), torch.device("cuda:0"))
