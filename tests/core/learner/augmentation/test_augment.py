from __future__ import annotations

import pytest
import torch

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod
from lipt.common.errors import DataError
from lipt.common.images.crop_flip import crop_flip
from lipt.common.inputs.model_input import images_in
from lipt.core.learner.augmentation import METHODS, augment, randaugment


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def images() -> torch.Tensor:
    return torch.randint(256, (20, 3, 8, 8), generator=seeded()).to(torch.uint8)


def test_every_method_of_the_configuration_is_registered() -> None:
    assert set(METHODS) == set(AugmentationMethod)


def test_configuration_chooses_method_and_strength() -> None:
    strong = AugmentationConfig(method=AugmentationMethod.RANDAUGMENT, num_ops=3, magnitude=20)
    mild = AugmentationConfig(method=AugmentationMethod.CROP_FLIP)
    none = AugmentationConfig(method=AugmentationMethod.NONE)
    assert torch.equal(
        images_in(augment(images(), strong, seeded())),
        randaugment(images(), num_ops=3, magnitude=20, generator=seeded()),
    )
    found = images_in(augment(images(), mild, seeded()))
    assert torch.equal(found, crop_flip(images(), generator=seeded()))
    assert torch.equal(images_in(augment(images(), none, seeded())), images())


@pytest.mark.parametrize("method", AugmentationMethod)
@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        (torch.zeros(2, 3, 8, 8), "torch.float32"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), "(3, 8, 8)"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), "(2, 4, 8, 8)"),
    ],
)
def test_images_of_another_form_are_refused(
    method: AugmentationMethod, wrong: torch.Tensor, value: str
) -> None:
    with pytest.raises(DataError) as raised:
        augment(wrong, AugmentationConfig(method=method), seeded())
    assert value in str(raised.value)
    assert "Convert the images" in str(raised.value)
