import math
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, RandAugment
from torchvision.transforms.autoaugment import _apply_op

from lipt.common.config.run_config import (
    AugmentationConfig,
    AugmentationMethod,
    LearnersConfig,
    PruningMethod,
)
from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError, DataError
from lipt.core.pretraining import learner as making
from lipt.core.pretraining.augmentation import (
    NUM_MAGNITUDE_BINS,
    OPERATIONS,
    augment,
    draw_operations,
    randaugment,
)
from lipt.core.pretraining.learner import Examples, minibatches
from lipt.core.pretraining.pruning import (
    is_pruned_from,
    masks_of_largest,
    prunable_parameters,
    prune,
)
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.model_input import images_in
from tests.clock import Clock
from tests.image_files import FORMAT, encoded, files_of, made_up
from tests.worker.fake_client import TASK

CPU = torch.device("cpu")
NUMBER = 10
METHODS = list(AugmentationMethod)


def make_task(method: AugmentationMethod = AugmentationMethod.RANDAUGMENT) -> LearnerTask:
    return replace(
        TASK,
        image=FORMAT,
        # The last of each pass has 2.
        learners=LearnersConfig(num_minibatches=2, num_steps=3, batch_size=4),
        augmentation=AugmentationConfig(method=method),
    )


def by_hand(task: LearnerTask, images_NCHW: Tensor) -> list[tuple[Tensor, list[int]]]:
    made = []
    for step in range(3):
        order_N = torch.randperm(
            NUMBER, generator=derive_generator(task.seed, "learner-order", step)
        )
        draws = derive_generator(task.seed, "learner-augmentation", step)
        for rows_B in (order_N[:4], order_N[4:8], order_N[8:]):
            batch_BCHW = augment(images_NCHW[rows_B], task.augmentation, draws)
            made.append((images_in(batch_BCHW), rows_B.tolist()))
    return made


@pytest.mark.parametrize("as_files", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_minibatches_equal_a_plain_loop(method: AugmentationMethod, *, as_files: bool) -> None:
    task, images_NCHW = make_task(method), made_up(NUMBER)
    examples: Examples = encoded(files_of(images_NCHW)) if as_files else images_NCHW
    with minibatches(task, examples, torch.arange(NUMBER), CPU) as batches:
        found = [(images_in(one.examples_B), one.targets_B.tolist()) for one in batches]
    expected = by_hand(task, images_NCHW)
    assert [rows for _, rows in found] == [rows for _, rows in expected]
    for (found_BCHW, _), (expected_BCHW, _) in zip(found, expected, strict=True):
        assert torch.equal(found_BCHW, expected_BCHW)


@pytest.mark.parametrize("as_files", [False, True])
@pytest.mark.parametrize("method", [AugmentationMethod.NONE, AugmentationMethod.CROP_FLIP])
def test_minibatches_with_work_are_made_in_a_thread(
    method: AugmentationMethod, *, as_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def watched(images: Tensor, *_: object) -> Tensor:
        threads.add(threading.current_thread().name)
        return images

    monkeypatch.setattr(making, "augment", watched)
    images_NCHW = made_up(NUMBER)
    examples: Examples = encoded(files_of(images_NCHW)) if as_files else images_NCHW
    with minibatches(make_task(method), examples, torch.arange(NUMBER), CPU) as batches:
        assert len(list(batches)) == 9
    (name,) = threads
    ahead = as_files or method is AugmentationMethod.CROP_FLIP
    assert name.startswith("decode") is ahead


def test_an_accelerator_s_files_are_decoded_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its tensors have no values, but they have a device; none of CUDA's is at hand.
    accelerator = torch.device("meta")
    pinning, augmenting = list[tuple[str, str]](), list[tuple[str, str]]()

    def pin(images: Tensor) -> Tensor:
        pinning.append((threading.current_thread().name[:6], images.device.type))
        return images

    def watched(images: Tensor, *_: object) -> Tensor:
        augmenting.append((threading.current_thread().name[:6], images.device.type))
        return images

    monkeypatch.setattr(making, "pinned", pin)
    monkeypatch.setattr(making, "augment", watched)
    targets_N = torch.arange(NUMBER, device=accelerator)
    examples = encoded(files_of(made_up(NUMBER)))
    with minibatches(make_task(), examples, targets_N, accelerator) as batches:
        found = list(batches)
    assert [one.examples_B.device for one in found if isinstance(one.examples_B, Tensor)] == [
        accelerator
    ] * 9
    assert [len(one.targets_B) for one in found] == [4, 4, 2] * 3
    assert pinning == [("decode", "cpu")] * 9
    assert augmenting == [(threading.current_thread().name[:6], "meta")] * 9


def test_lazily_made_minibatches_are_timed_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def slow(images: Tensor, *_: object) -> Tensor:
        clock.now += 5.0
        return images

    monkeypatch.setattr(making, "augment", slow)
    monkeypatch.setattr(making, "perf_counter", clock)
    task = make_task(AugmentationMethod.NONE)
    waited = []
    with minibatches(task, made_up(NUMBER), torch.arange(NUMBER), CPU) as batches:
        for one in batches:
            waited.append(one.waited_seconds)
            clock.now += 2.0
    assert waited == [5.0] * 9


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images() -> torch.Tensor:
    return torch.randint(256, (20, 3, 8, 8), generator=seeded()).to(torch.uint8)


@pytest.mark.parametrize("method", AugmentationMethod)
@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        (torch.zeros(2, 3, 8, 8), "torch.float32"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), "(3, 8, 8)"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), "(2, 4, 8, 8)"),
    ],
)
def test_other_images_refused(method: AugmentationMethod, wrong: torch.Tensor, value: str) -> None:
    with pytest.raises(DataError) as raised:
        augment(wrong, AugmentationConfig(method=method), seeded())
    assert value in str(raised.value)
    assert "Convert the images" in str(raised.value)


SHAPES = [(3, 32, 32), (1, 8, 8), (1, 28, 28), (3, 33, 20), (3, 2, 5), (3, 1, 1)]


def kinds_of_images(num_channels: int, height: int, width: int) -> Tensor:
    """Noise, smooth ramps, two values, and constants: 12 images."""
    generator = torch.Generator().manual_seed(0)
    shape = (4, num_channels, height, width)
    noise = torch.randint(256, shape, generator=generator)
    ramps = torch.randint(64, shape, generator=generator) + torch.arange(width) * 150 // width
    two_values = torch.randint(2, (1, *shape[1:]), generator=generator) * 255
    constants = torch.tensor([0, 7, 255])[:, None, None, None].expand(3, *shape[1:])
    return torch.cat([noise, ramps, two_values, constants]).to(torch.uint8)


def torchvision_space(magnitude: int, height: int, width: int) -> dict[str, tuple[float, bool]]:
    space = RandAugment(magnitude=magnitude)._augmentation_space(31, (height, width))
    return {
        name: (float(levels[magnitude]) if levels.ndim else 0.0, signed)
        for name, (levels, signed) in space.items()
    }


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (37, 224)])
def test_operations_levels_and_signs_equal_torchvision_s(size: tuple[int, int]) -> None:
    for magnitude in range(NUM_MAGNITUDE_BINS):
        ours = {
            name: (operation.level(magnitude, *size), operation.signed)
            for name, operation in OPERATIONS.items()
        }
        assert ours == torchvision_space(magnitude, *size)
        assert list(ours) == list(torchvision_space(magnitude, *size))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_operations_as_torchvision(name: str, shape: tuple[int, int, int], magnitude: int) -> None:
    level, signed = torchvision_space(magnitude, *shape[1:])[name]
    images_BCHW = kinds_of_images(*shape)
    before = images_BCHW.clone()
    for sign in (1.0, -1.0) if signed else (1.0,):
        expected = torch.stack(
            [
                _apply_op(image, name, sign * level, InterpolationMode.NEAREST, fill=None)
                for image in images_BCHW
            ]
        )
        got = OPERATIONS[name].apply(images_BCHW, sign * level)
        assert got.dtype == torch.uint8
        assert torch.equal(got, expected), (name, sign * level)
    assert torch.equal(images_BCHW, before)


def test_contrast_of_a_large_image_uses_its_exact_mean() -> None:
    # 300 x 300 pixels sum to more than 2**24, where float32 stops counting:
    # one level of 255 in 90,000 pixels of 254 must not move the mean below 254.
    image = torch.full((1, 1, 300, 300), 254, dtype=torch.uint8)
    image[..., 0, 0] = 255
    assert (OPERATIONS["Contrast"].apply(image, -1.0) == 254).all()


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=seeded(1)).to(torch.uint8)


def one_at_a_time(images_BCHW: Tensor, *, num_ops: int, magnitude: int, seed: int) -> Tensor:
    operations_OB, negative_OB = draw_operations(
        len(images_BCHW), num_ops=num_ops, generator=seeded(seed)
    )
    height, width = images_BCHW.shape[-2:]
    done = []
    for index in range(len(images_BCHW)):
        image = images_BCHW[index : index + 1]
        for which, negative in zip(operations_OB[:, index], negative_OB[:, index], strict=True):
            operation = list(OPERATIONS.values())[which]
            level = operation.level(magnitude, height, width)
            image = operation.apply(image, -level if negative and operation.signed else level)
        done.append(image)
    return torch.cat(done)


@pytest.mark.parametrize("num_ops", [0, 1, 2, 3, 10])
@pytest.mark.parametrize("shape", [(97, 3, 16, 12), (64, 1, 8, 8), (1, 3, 8, 8)], ids=str)
def test_groups_equal_single_images(num_ops: int, shape: tuple[int, int, int, int]) -> None:
    images_BCHW = noise(*shape)
    before = images_BCHW.clone()
    got = randaugment(images_BCHW, num_ops=num_ops, magnitude=9, generator=seeded(5))
    assert torch.equal(got, one_at_a_time(images_BCHW, num_ops=num_ops, magnitude=9, seed=5))
    assert torch.equal(images_BCHW, before)


WEIGHTS = {"conv": torch.tensor([[-4.0, 1.0], [0.5, 3.0]]), "head": torch.tensor([[2.0, -0.25]])}
GRADIENTS = {"conv": torch.tensor([[0.1, -5.0], [4.0, 1.0]]), "head": torch.tensor([[0.0, 8.0]])}


def pruned_by(
    method: PruningMethod,
    density: float,
    weights: Mapping[str, Tensor] = WEIGHTS,
    *,
    seed: int = 0,
) -> dict[str, Tensor]:
    return prune(method, weights, density, slopes=GRADIENTS, generator=seeded(seed))


def test_pruning_methods_zero_their_lowest_scores() -> None:
    pruned = pruned_by(PruningMethod.MAGNITUDE, 0.5)
    # |w|: 4, 1, 0.5, 3, 2, 0.25: the largest three are 4, 3 and 2.
    assert pruned["conv"].tolist() == [[-4.0, 0.0], [0.0, 3.0]]
    assert pruned["head"].tolist() == [[2.0, 0.0]]
    # -0.25 is dropped; -0.0 would be equal to zero, and yet a value that is sent.
    assert not any(bool(weight[weight == 0].signbit().any()) for weight in pruned.values())
    pruned = pruned_by(PruningMethod.SNIP, 0.5)
    # |g w|: 0.4, 5, 2, 3, 0, 2: of the two 2s the earlier one stays.
    assert pruned["conv"].tolist() == [[0.0, 1.0], [0.5, 3.0]]
    assert pruned["head"].tolist() == [[0.0, 0.0]]
    pruned = pruned_by(PruningMethod.NONE, 0.1)
    assert all(torch.equal(pruned[name], weight) for name, weight in WEIGHTS.items())
    assert all(pruned[name] is not weight for name, weight in WEIGHTS.items())


def test_random_pruning_depends_only_on_the_generator() -> None:
    ones = {"a": torch.ones(30, 10), "b": torch.ones(50)}
    first, again, other = (
        pruned_by(PruningMethod.RANDOM, 0.5, ones, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first["a"], again["a"])
    assert not torch.equal(first["a"], other["a"])


def test_only_matrices_and_filters_are_prunable() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    assert list(prunable_parameters(model)) == ["0.weight", "3.weight"]


shapes = st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=3), min_size=1, max_size=4)


def drawn_scores(sizes: list[list[int]], seed: int, num_values: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"tensor{index}": torch.randint(num_values, size, generator=generator).float()
        for index, size in enumerate(sizes)
    }


@given(
    sizes=shapes,
    density=st.floats(0.0, 1.0, exclude_min=True),
    seed=st.integers(0, 2**32),
    num_values=st.sampled_from([1, 2, 5, 1000]),
)
def test_pruning_keeps_the_rounded_share_of_a_stable_sort(
    sizes: list[list[int]], density: float, seed: int, num_values: int
) -> None:
    scores = drawn_scores(sizes, seed, num_values)
    masks = masks_of_largest(scores, density)
    assert {name: mask.shape for name, mask in masks.items()} == {
        name: score.shape for name, score in scores.items()
    }
    flat_T = torch.cat([score.flatten() for score in scores.values()])
    kept_T = torch.cat([mask.flatten() for mask in masks.values()])
    count = round(density * len(flat_T))
    best = flat_T.argsort(descending=True, stable=True)[:count]
    assert kept_T.nonzero().flatten().tolist() == sorted(best.tolist())


@pytest.mark.parametrize("density", [0.0, -0.1, 1.0001, 85.0, math.nan, math.inf])
def test_density_outside_the_unit_interval_is_refused(density: float) -> None:
    with pytest.raises(ConfigError) as raised:
        masks_of_largest({"a": torch.ones(3)}, density)
    assert f"density {density} is outside (0, 1]" in str(raised.value)
    assert "KEEPS" in str(raised.value)
    assert masks_of_largest({"a": torch.ones(3)}, 1.0)["a"].all()


STATE = {"w": torch.tensor([[1.0, -2.0], [3.0, 0.0]]), "steps": torch.tensor(7)}


@pytest.mark.parametrize(
    ("kept", "steps", "expected"),
    [
        ([[1.0, -2.0], [3.0, 0.0]], 7, True),
        ([[0.0, -2.0], [3.0, 0.0]], 7, True),
        ([[0.0, 0.0], [0.0, 0.0]], 7, True),
        # A weight has moved, one has grown from nothing, a batch more was seen.
        ([[1.0, -2.0], [3.5, 0.0]], 7, False),
        ([[1.0, -2.0], [3.0, 0.5]], 7, False),
        ([[1.0, -2.0], [3.0, 0.0]], 8, False),
    ],
)
def test_kept_weights_must_be_unchanged(
    kept: list[list[float]], steps: int, *, expected: bool
) -> None:
    result = {"w": torch.tensor(kept), "steps": torch.tensor(steps)}
    assert is_pruned_from(result, STATE) is expected
