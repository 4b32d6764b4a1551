from __future__ import annotations

from typing import Any

import torch

from lipt.common.data import Dataset
from lipt.trainer.distillation import Distillation, SyntheticSet
from lipt.trainer.distillation.real import RealExamples
from lipt.trainer.distillation.stage import StageResult, make_stage
from tests.trainer.distillation.conftest import small


def made(
    digits: Dataset, networks: Any, synthetic: SyntheticSet | None = None, told: Any = None
) -> StageResult:
    real = RealExamples.of(digits, None, at_least=1)
    synthetic = synthetic or SyntheticSet.empty((1, 8, 8), digits.class_names)
    return make_stage(synthetic, real, networks, told or (lambda *_: None))


def first_images(digits: Dataset, networks_of: Any, settings: Distillation) -> torch.Tensor:
    """What a stage begins with: real images, which a step of nothing leaves as they are."""
    still = settings.model_copy(update={"image_learning_rate": 1e-9})
    return made(digits, networks_of(still)).synthetic.images_NCHW


def test_a_stage_begins_with_real_images_of_its_classes(digits: Dataset, networks_of: Any) -> None:
    images_NCHW = first_images(digits, networks_of, small())
    every = digits.images(torch.arange(len(digits))).flatten(1)
    for label in range(10):
        same = (every == images_NCHW[label].flatten()).all(dim=1)
        assert label in digits.labels_N[same].tolist()


def test_the_first_match_moves_each_pixel_by_the_learning_rate_at_most(
    digits: Dataset, networks_of: Any
) -> None:
    # Adam's first step is the learning rate in the gradient's direction, whatever its length.
    settings = small(networks=1, matches=1, image_learning_rate=0.2, augmentation="none")
    before = first_images(digits, networks_of, settings).int()
    after = made(digits, networks_of(settings)).synthetic.images_NCHW.int()
    moved = (after - before).abs()
    # 0.2 of 255 is 51. What would be darker than black or brighter than white stays at that.
    inside = (after > 0) & (after < 255)
    assert set(moved[inside].tolist()) <= {0, 51}
    assert (moved[inside] == 51).any()
    assert (after == 0).any()
    assert int(moved.max()) == 51


def test_matching_brings_the_gradients_nearer(digits: Dataset, networks_of: Any) -> None:
    # One network and no training: all matches are at one state, with all of the real images.
    settings = small(networks=1, matches=30, steps_between=0, real_batch=999, augmentation="none")
    distances = made(digits, networks_of(settings)).distances
    assert len(distances) == 30
    assert distances[-1] < distances[0] / 2


def test_the_stages_before_stay_as_they_are(digits: Dataset, networks_of: Any) -> None:
    networks = networks_of(small())
    first = made(digits, networks).synthetic
    kept = first.images_NCHW.clone()
    second = made(digits, networks, first).synthetic
    assert torch.equal(first.images_NCHW, kept)
    assert torch.equal(second.images_NCHW[:10], kept)
    assert not torch.equal(second.images_NCHW[10:], kept)
    assert second.stages_N.tolist() == [0] * 10 + [1] * 10


def test_stages_after_the_first_leave_out_the_easiest(digits: Dataset, networks_of: Any) -> None:
    networks = networks_of(small(discard=0.5))
    first = made(digits, networks)
    assert first.num_real == len(digits)
    counts = digits.labels_N.bincount()
    halves = sum(-(-int(count) // 2) for count in counts)
    assert made(digits, networks, first.synthetic).num_real == halves


def test_rounding_to_bytes_hardly_changes_the_distance(digits: Dataset, networks_of: Any) -> None:
    result = made(digits, networks_of(small()))
    assert 0 < abs(result.rounding) < 0.02


def test_every_match_is_told(digits: Dataset, networks_of: Any) -> None:
    told: list[tuple[int, int, float]] = []
    result = made(digits, networks_of(small()), told=lambda *one: told.append(one))
    assert [one[:2] for one in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert tuple(one[2] for one in told) == result.distances
