from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import StateError
from lipt.core.diagnosis import copies
from lipt.core.diagnosis.copies import (
    Copies,
    Likeness,
    find_copies,
    likeness_of_pictures,
)
from lipt.core.diagnosis.pictures import look_at


def found_in(points_ND: Tensor, *, digests: list[bytes] | None = None) -> Copies:
    """Points are alike from a cosine of 0.8 on, and looked at from 0.6 on."""
    unit_ND = functional.normalize(points_ND, dim=1)

    def alike(left_P: Tensor, right_P: Tensor) -> Tensor:
        return (unit_ND[left_P] * unit_ND[right_P]).sum(dim=1) >= 0.8

    likeness = Likeness(lambda ids_B: unit_ND[ids_B], 0.6, alike, 0.8)
    return find_copies(digests or distinct(len(points_ND)), likeness)


def distinct(count: int) -> list[bytes]:
    return [number.to_bytes(4, "little") for number in range(count)]


def on_a_circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def test_the_first_of_those_that_are_the_same_stands_for_them() -> None:
    found = found_in(torch.eye(5), digests=[b"a", b"b", b"a", b"a", b"c"])
    assert found.pictures_N.tolist() == found.exact_N.tolist() == [0, 1, 0, 0, 4]
    assert found.threshold == 0.8


def test_copies_do_not_chain() -> None:
    # 30 degrees apart: cosine 0.87; 60 apart: 0.5.
    assert found_in(on_a_circle(0, 30, 60)).pictures_N.tolist() == [0, 0, 2]
    # Where the middle one comes first, both are like it.
    assert found_in(on_a_circle(30, 0, 60)).pictures_N.tolist() == [0, 0, 0]


def test_a_copy_is_of_the_first_picture_that_it_is_like() -> None:
    # 28 is like both 0 and 45; 0 and 45 (cosine 0.71) are not alike.
    assert found_in(on_a_circle(0, 45, 28)).pictures_N.tolist() == [0, 1, 0]
    assert found_in(on_a_circle(45, 0, 28)).pictures_N.tolist() == [0, 1, 0]


def test_what_has_no_direction_is_like_nothing() -> None:
    points_ND = torch.cat((on_a_circle(0, 40), torch.zeros(2, 2)))
    assert found_in(points_ND).pictures_N.tolist() == [0, 1, 2, 3]


def test_without_a_likeness_only_equal_ones_are_copies() -> None:
    found = find_copies([b"a", b"b", b"a", b"c", b"b"], None)
    assert found.pictures_N.tolist() == found.exact_N.tolist() == [0, 1, 0, 3, 1]
    assert found.threshold == 1.0


@pytest.mark.parametrize("block", [4, 64, 512])
def test_the_same_are_found_as_by_comparing_all_pairs(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(copies, "_BLOCK", block)
    monkeypatch.setattr(copies, "_TILE", 32)
    generator = torch.Generator().manual_seed(2)
    originals = torch.randn(60, 40, generator=generator)
    which = torch.randint(60, (300,), generator=generator)
    points_ND = originals[which] + 0.35 * torch.randn(300, 40, generator=generator)
    found = found_in(points_ND)
    assert found.pictures_N.tolist() == slowly(points_ND)
    assert 60 < len(found.pictures_N.unique()) < 100
    assert bool((which == which[found.pictures_N]).all())


def slowly(points_ND: Tensor) -> list[int]:
    unit = functional.normalize(points_ND.double(), dim=1)
    pictures: list[int] = []
    for one in range(len(unit)):
        standing = [other for other in sorted(set(pictures)) if pictures[other] == other]
        alike = [other for other in standing if float(unit[one] @ unit[other]) >= 0.8]
        pictures.append(alike[0] if alike else one)
    return pictures


def test_pictures_are_alike_by_their_pixels_a_pixel_apart() -> None:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(40, 3, 8, 8, generator=generator) * 150
    pixels = functional.interpolate(coarse, (34, 34), mode="bilinear")
    originals = pixels[:, :, 1:33, 1:33]
    moved = pixels[:, :, 2:34, :32] * 1.2
    noisy = originals + 4 * torch.randn(originals.shape, generator=generator)
    images = torch.cat((originals, moved, noisy, originals)).clamp(0, 255).to(torch.uint8)
    pictures = look_at(lambda ids: images[ids], len(images))
    likeness = likeness_of_pictures(pictures, lambda ids: images[ids])
    found = find_copies(pictures.digests, likeness)
    assert found.pictures_N.tolist() == list(range(40)) * 4
    assert found.exact_N.tolist() == [*range(120), *range(40)]


def test_exact_and_near_copies_share_a_picture() -> None:
    found = found_in(on_a_circle(0, 45, 10, 0), digests=[b"a", b"b", b"c", b"a"])
    assert found.pictures_N.tolist() == [0, 1, 0, 0]
    assert found.exact_N.tolist() == [0, 1, 2, 0]


def test_one_example_is_a_picture() -> None:
    assert found_in(torch.ones(1, 3)).pictures_N.tolist() == [0]


def test_what_was_saved_is_loaded_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "copies.safetensors"
    saved = Copies(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2]), 0.96)
    saved.save(path)
    loaded = Copies.load(path)
    assert torch.equal(loaded.pictures_N, saved.pictures_N)
    assert torch.equal(loaded.exact_N, saved.exact_N)
    assert loaded.threshold == 0.96
    path.write_bytes(b"no tensors")
    with pytest.raises(StateError, match="does not hold copies"):
        Copies.load(path)
