import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod, LearnersConfig
from lipt.common.determinism import derive_generator
from lipt.core.pretraining import learner as making
from lipt.core.pretraining.augmentation import augment
from lipt.core.pretraining.learner import Examples, minibatches
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
