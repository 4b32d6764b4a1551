from __future__ import annotations

import torch

from lipt.trainer.distillation.siamese import Augmentation
from tests.trainer.distillation.conftest import small


def test_all_images_are_shifted_alike_with_black_coming_in() -> None:
    images_BCHW = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 6.0], [7.0, 8.0]]]])
    # The crop begins a row above the image, in the column where the image does.
    found = Augmentation(padding=1, top=0, left=1, mirrored=False)(images_BCHW)
    assert found.tolist() == [[[[0.0, 0.0], [1.0, 2.0]]], [[[0.0, 0.0], [5.0, 6.0]]]]
    mirrored = Augmentation(padding=1, top=0, left=1, mirrored=True)(images_BCHW)
    assert mirrored[0, 0].tolist() == [[0.0, 0.0], [2.0, 1.0]]


def test_what_is_drawn_is_what_the_settings_allow() -> None:
    drawn = {
        how: [
            Augmentation.drawn(
                small(augmentation=how, padding=2), torch.Generator().manual_seed(seed)
            )
            for seed in range(200)
        ]
        for how in ("none", "crop", "crop_flip")
    }
    assert set(drawn["none"]) == {Augmentation(0, 0, 0, mirrored=False)}
    for how, mirrors in (("crop", {False}), ("crop_flip", {False, True})):
        assert {one.top for one in drawn[how]} == {one.left for one in drawn[how]} == set(range(5))
        assert {one.mirrored for one in drawn[how]} == mirrors


def test_a_pixels_gradient_comes_back_to_it() -> None:
    images = torch.ones(1, 1, 2, 2, requires_grad=True)
    Augmentation(padding=1, top=2, left=1, mirrored=False)(images).sum().backward()
    assert images.grad is not None
    # The first row is shifted out.
    assert images.grad[0, 0].tolist() == [[0.0, 0.0], [1.0, 1.0]]
