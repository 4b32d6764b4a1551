from __future__ import annotations

import torch

from lipt.common.data import open_dataset
from lipt.common.images.formats import data_url
from lipt.trainer.report.pictures import are_small, coarse_values, pictures_of

DIGITS = open_dataset("digits-test")


def test_pictures_come_in_the_order_of_their_rows() -> None:
    found = pictures_of(DIGITS, [7, 2], 64)
    assert found == [data_url(DIGITS.images(torch.tensor([row]))[0], 64) for row in (7, 2)]
    assert pictures_of(DIGITS, [], 64) == []
    assert are_small(DIGITS)


def test_coarse_pixels_are_no_finer_than_the_image() -> None:
    found = coarse_values(DIGITS, torch.arange(3))
    assert torch.equal(found, DIGITS.images(torch.arange(3)).flatten(start_dim=1).float())
