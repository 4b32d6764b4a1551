"""Files that are decoded when their pixels are asked for."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

from lipt.common.data import shard
from lipt.common.data.shard import EncodedImages
from lipt.common.errors import DataError
from lipt.common.images.formats import decode_image
from tests.image_files import FORMAT, encoded, files_of, made_up


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that were decoded, in order."""
    seen: list[bytes] = []

    def watched(file: bytes, shape: tuple[int, int, int]) -> Tensor:
        seen.append(file)
        return decode_image(file, shape)

    monkeypatch.setattr(shard, "decode_image", watched)
    return seen


def test_rows_come_in_the_order_in_which_they_are_asked_for() -> None:
    images_NCHW = made_up(5)
    found = encoded(files_of(images_NCHW))
    assert len(found) == 5
    rows_B = torch.tensor([3, 0, 3])
    assert torch.equal(found.rows(rows_B), images_NCHW[rows_B])
    assert torch.equal(found.all(), images_NCHW)


def test_each_is_decoded_once_and_not_before_it_is_asked_for(decoded: list[bytes]) -> None:
    files = files_of(made_up(4))
    found = encoded(files)
    assert decoded == []
    found.rows(torch.tensor([2, 1]))
    found.rows(torch.tensor([1, 3, 2]))
    assert decoded == [files[2], files[1], files[3]]
    found.all()
    found.all()
    assert decoded == [files[2], files[1], files[3], files[0]]


def test_a_change_of_rows_changes_nothing_that_is_kept() -> None:
    images_NCHW = made_up(2)
    found = encoded(files_of(images_NCHW))
    found.rows(torch.arange(2)).zero_()
    assert torch.equal(found.all(), images_NCHW)


def test_files_are_let_go_of_with_the_last_one() -> None:
    files = files_of(made_up(2))
    offsets = list(itertools.accumulate(map(len, files), initial=0))
    content = np.frombuffer(b"".join(files), np.uint8)
    alive = weakref.ref(content)
    found = EncodedImages(content, offsets, FORMAT)
    del content
    found.rows(torch.tensor([0]))
    gc.collect()
    assert alive() is not None
    found.rows(torch.tensor([1]))
    gc.collect()
    assert alive() is None


def test_a_broken_file_is_named_by_its_place_whenever_it_is_asked_for() -> None:
    files = files_of(made_up(3))
    found = encoded([files[0], files[1][:-40], files[2]])
    assert len(found.rows(torch.tensor([2, 0]))) == 2
    for _ in range(2):
        with pytest.raises(DataError, match="image 1 of the shard cannot be used: it is not a"):
            found.rows(torch.tensor([0, 1]))
