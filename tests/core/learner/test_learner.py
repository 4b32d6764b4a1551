from __future__ import annotations

import dataclasses
import math
import threading
from contextlib import nullcontext
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
from lipt.common.data import Shard, open_dataset
from lipt.common.data.shard import EncodedShard
from lipt.common.errors import (
    ConfigError,
    DataError,
    FactoryNotAllowedError,
    LearnerDivergedError,
    LearnerStoppedError,
    WeightsError,
)
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import images_in
from lipt.common.inputs.specs import spec_of
from lipt.common.models import build_model
from lipt.common.weights.specs import Weights, specs_of
from lipt.core.learner import minibatches
from lipt.core.learner.learner import LearnerResult, train_learner
from tests.image_files import encoded, files_of

CPU = torch.device("cpu")
OWN_MODELS = """
from torch import nn

def dropout(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))

class Viewing(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, num_classes)

    def forward(self, x):
        x = self.conv(x)
        return self.fc(x.view(x.size(0), -1))

class Tied(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(self.second(self.first(x.flatten(1)).relu()).relu())
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_models_of_learner_test.py").write_text(OWN_MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_models_of_learner_test"


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
        image=ImageFormat(1, 8, 8, mean=(0.3,), std=(0.4,)),
        learners=learners or LearnersConfig(num_minibatches=2, num_steps=3, batch_size=8),
        augmentation=AugmentationConfig(),
        pruning_method=pruning_method,
        density=density,
        seed=seed,
    )


def make_shard(num_examples: int = 16) -> Shard:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (num_examples, 1, 8, 8), generator=generator).to(torch.uint8)
    return Shard(images, torch.arange(num_examples) % 10)


def theta_star(task: LearnerTask, *allowed_modules: str) -> Weights:
    model = build_model(
        task.model,
        num_classes=task.num_classes,
        inputs=spec_of(task.inputs),
        seed=77,
        allowed_modules=allowed_modules,
    )
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def make_files(*, broken: int | None = None) -> EncodedShard:
    """The examples of `make_shard` as files; one of them cut off."""
    shard = make_shard()
    files = files_of(images_in(shard.examples))
    if broken is not None:
        files[broken] = files[broken][:-40]
    image = ImageFormat(1, 8, 8, mean=(0.3,), std=(0.4,))
    return EncodedShard(encoded(files, image), shard.targets_N)


def train(
    task: LearnerTask,
    *,
    initial: Weights | None = None,
    shard: Shard | EncodedShard | None = None,
    allowed_modules: tuple[str, ...] = (),
    losses: dict[int, float] | None = None,
) -> LearnerResult:
    seen: dict[int, float] = {} if losses is None else losses
    return train_learner(
        task,
        theta_star(task, *allowed_modules) if initial is None else initial,
        make_shard() if shard is None else shard,
        device=CPU,
        allowed_modules=allowed_modules,
        on_step=seen.__setitem__,
        should_stop=lambda: False,
    )


def reading_threads() -> list[str]:
    names = [one.name for one in threading.enumerate()]
    return [name for name in names if name.startswith("decode")]


def same(first: LearnerResult, second: LearnerResult) -> bool:
    return first.loss == second.loss and all(
        torch.equal(tensor, second.weights[name]) for name, tensor in first.weights.items()
    )


def test_result_is_the_whole_state_on_the_cpu_and_initial_weights_stay() -> None:
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


@pytest.mark.parametrize("method", [m for m in PruningMethod if m is not PruningMethod.NONE])
def test_exact_share_of_filters_and_matrices_is_kept(method: PruningMethod) -> None:
    task = make_task(pruning_method=method, density=0.7)
    weights = train(task).weights
    prunable = [
        tensor for tensor in weights.values() if tensor.is_floating_point() and tensor.ndim >= 2
    ]
    total = sum(tensor.numel() for tensor in prunable)
    assert sum(int(tensor.count_nonzero()) for tensor in prunable) == round(0.7 * total)


def test_snip_changes_nothing_but_what_it_prunes() -> None:
    dense = train(make_task(pruning_method=PruningMethod.NONE))
    pruned = train(make_task(pruning_method=PruningMethod.SNIP))
    assert pruned.loss == dense.loss
    for name, tensor in pruned.weights.items():
        changed = tensor != dense.weights[name]
        assert (tensor[changed] == 0).all()
        assert tensor.ndim >= 2 or not changed.any(), name


def test_tensor_with_two_names_is_pruned_under_both(own_models: str) -> None:
    task = make_task(model=f"{own_models}:Tied", density=0.5)
    weights = train(task, allowed_modules=(own_models,)).weights
    assert torch.equal(weights["first.weight"], weights["second.weight"])
    kept = int(weights["first.weight"].count_nonzero() + weights["fc.weight"].count_nonzero())
    assert kept == (64 * 64 + 64 * 10) // 2


def test_learner_is_the_same_whatever_the_process_threads() -> None:
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


def test_learner_is_the_same_in_another_thread() -> None:
    task = make_task()
    results: list[LearnerResult] = []
    thread = threading.Thread(target=lambda: results.append(train(task)))
    thread.start()
    thread.join()
    assert same(results[0], train(task))


@pytest.mark.parametrize("method", [PruningMethod.MAGNITUDE, PruningMethod.SNIP])
@pytest.mark.parametrize("threads", [1, 2])
def test_learner_of_files_is_that_of_their_pixels(method: PruningMethod, threads: int) -> None:
    learners = LearnersConfig(num_minibatches=2, num_steps=3, batch_size=8, cpu_threads=threads)
    task = make_task(learners=learners, pruning_method=method)
    assert same(train(task, shard=make_files()), train(task))


def test_learner_is_the_same_without_reading_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    expected = train(task, shard=make_files())
    monkeypatch.setattr(
        minibatches, "reading_ahead", lambda read, parts: nullcontext(map(read, parts))
    )
    assert same(train(task, shard=make_files()), expected)


def test_file_that_is_no_image_fails_the_learner_and_leaves_nothing_behind() -> None:
    task = make_task()
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(DataError) as raised:
        train(task, shard=make_files(broken=3))
    assert "image 3 of the shard cannot be used: it is not a whole image" in str(raised.value)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not reading_threads()


def test_learner_that_is_stopped_leaves_no_thread_behind() -> None:
    task = make_task()
    seen: list[int] = []

    def should_stop() -> bool:
        seen.append(len(reading_threads()))
        return len(seen) == 3

    with pytest.raises(LearnerStoppedError):
        train_learner(
            task,
            theta_star(task),
            make_files(),
            device=CPU,
            on_step=lambda step, loss: None,
            should_stop=should_stop,
        )
    assert seen == [1, 1, 1]
    assert not reading_threads()


def test_waiting_is_a_part_of_training() -> None:
    result = train(make_task(), shard=make_files())
    # The first minibatch has to be decoded before anything can be trained.
    assert 0 < result.waited_seconds < result.train_seconds


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


def test_learner_without_snapshots_has_none() -> None:
    assert train(make_task()).snapshots == ()


def test_learner_depends_on_its_seed() -> None:
    assert not same(train(make_task(seed=1)), train(make_task(seed=2)))


def test_dropout_repeats_and_the_global_generator_stays(own_models: str) -> None:
    task = make_task(model=f"{own_models}:dropout")
    expected = train(task, allowed_modules=(own_models,))
    torch.rand(3)
    state = torch.get_rng_state()
    assert same(train(task, allowed_modules=(own_models,)), expected)
    assert torch.equal(torch.get_rng_state(), state)
    other = dataclasses.replace(task, seed=6)
    assert not same(train(other, allowed_modules=(own_models,)), expected)


def test_should_stop_is_asked_before_each_minibatch() -> None:
    answers = iter([False, False, False, True])
    steps: list[int] = []
    task = make_task()
    with pytest.raises(LearnerStoppedError) as raised:
        train_learner(
            task,
            theta_star(task),
            make_shard(),
            device=CPU,
            on_step=lambda step, loss: steps.append(step),
            should_stop=lambda: next(answers),
        )
    # The fourth minibatch is the second of the second pass.
    assert steps == [1]
    assert "stopped in step 2 of 3" in str(raised.value)
    assert "done again" in str(raised.value)


def test_settings_of_the_process_are_put_back_after_an_error() -> None:
    task = make_task()
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(LearnerStoppedError):
        train_learner(
            task,
            theta_star(task),
            make_shard(),
            device=CPU,
            on_step=lambda step, loss: None,
            should_stop=lambda: True,
        )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_diverged_loss_is_reported_with_step_and_remedy() -> None:
    learners = LearnersConfig(num_minibatches=2, num_steps=5, batch_size=8, learning_rate=1e30)
    with pytest.raises(LearnerDivergedError) as raised:
        train(make_task(learners=learners))
    assert "the loss is nan after step 1 of 5, with learning rate 1e+30" in str(raised.value)
    assert "Lower learners.learning_rate" in str(raised.value)


def test_weights_that_diverge_in_the_last_update_are_reported() -> None:
    # The only loss is that of theta*; the update after it overflows.
    learners = LearnersConfig(
        num_minibatches=1, num_steps=1, batch_size=16, learning_rate=3e38, weight_decay=1e3
    )
    with pytest.raises(LearnerDivergedError, match="weights not finite after step 1 of 1"):
        train(make_task(learners=learners))


def test_weights_that_diverge_before_a_snapshot_are_reported_with_its_step() -> None:
    learners = LearnersConfig(
        num_minibatches=1,
        num_steps=2,
        num_snapshots=2,
        batch_size=16,
        learning_rate=3e38,
        weight_decay=1e3,
    )
    with pytest.raises(LearnerDivergedError, match="weights not finite after step 1 of 2"):
        train(make_task(learners=learners))


def test_weights_of_another_model_are_refused() -> None:
    task = make_task()
    initial = theta_star(task)
    del initial["fc.bias"]
    with pytest.raises(WeightsError, match=r"fc\.bias"):
        train(task, initial=initial)


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        (
            make_shard(15),
            "15 examples and 15 targets, but the learner trains on 2 minibatches of 8",
        ),
        (Shard(make_shard().examples, torch.arange(9)), "16 examples and 9 targets"),
        (Shard(make_shard().examples, torch.arange(16)), "labels are 0..15"),
        (Shard(make_shard().examples, torch.arange(16) % 10 - 1), "labels are -1..8"),
        (Shard(torch.zeros(16, 3, 8, 8, dtype=torch.uint8), torch.arange(16) % 10), "3, 8, 8"),
    ],
)
def test_shard_that_is_not_the_tasks_is_refused(shard: Shard, words: str) -> None:
    with pytest.raises(DataError) as raised:
        train(make_task(), shard=shard)
    assert words in str(raised.value)


def test_factory_that_is_not_allowed_is_refused(own_models: str) -> None:
    task = make_task(model=f"{own_models}:dropout")
    with pytest.raises(FactoryNotAllowedError):
        train(task, initial={})


def test_density_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"density 90\.0 is outside"):
        train(make_task(density=90.0))


def test_users_model_may_call_view_on_its_activations(own_models: str) -> None:
    task = make_task(model=f"{own_models}:Viewing")
    assert math.isfinite(train(task, allowed_modules=(own_models,)).loss)


def test_bfloat16_trains_float32_weights_on_the_cpu() -> None:
    learners = LearnersConfig(
        num_minibatches=2, num_steps=3, batch_size=8, precision=Precision.BFLOAT16
    )
    result = train(make_task(learners=learners))
    assert result.weights["fc.weight"].dtype == torch.float32
    assert math.isfinite(result.loss)
    assert result.loss != train(make_task()).loss


def test_learner_learns_real_digits() -> None:
    pytest.importorskip("sklearn")
    dataset = open_dataset("digits")
    rows = torch.arange(128)
    task = make_task(learners=LearnersConfig(batch_size=128, learning_rate=0.2))
    losses: dict[int, float] = {}
    train(task, shard=Shard(dataset.images(rows), dataset.labels_N[rows]), losses=losses)
    # Chance is log(10) = 2.30; measured over 8 shards: 0.86 in the last of the 10 steps.
    assert losses[1] > 2.0
    assert losses[10] < 1.5


def freezing(*patterns: str, num_snapshots: int = 0) -> LearnersConfig:
    return LearnersConfig(
        num_minibatches=2, num_steps=3, batch_size=8, num_snapshots=num_snapshots, frozen=patterns
    )


@pytest.mark.parametrize("method", list(PruningMethod))
def test_only_what_trains_is_handed_in_and_pruned(method: PruningMethod) -> None:
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


def test_a_frozen_layer_stays_as_it_is_and_changes_what_the_others_become() -> None:
    task = make_task(learners=freezing("blocks.*"), pruning_method=PruningMethod.NONE)
    initial = theta_star(task)
    result = train(task, initial=initial)
    assert set(result.weights) == {name for name in initial if not name.startswith("blocks.")}
    assert result.weights["bn1.num_batches_tracked"] == 6
    whole = dataclasses.replace(task, learners=freezing())
    unfrozen = train(whole, initial=initial)
    assert not torch.equal(unfrozen.weights["fc.weight"], result.weights["fc.weight"])


def test_biases_alone_are_trained_where_all_else_is_frozen() -> None:
    task = make_task(
        learners=freezing("*weight", "bn*", "blocks.*"),
        pruning_method=PruningMethod.SNIP,
    )
    assert set(train(task).weights) == {"fc.bias"}
