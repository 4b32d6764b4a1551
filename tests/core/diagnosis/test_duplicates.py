from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import StateError
from lipt.core.diagnosis import duplicates
from lipt.core.diagnosis.duplicates import (
    DuplicateGroups,
    Matches,
    PairFilter,
    Pictures,
    aligned_correlation,
    are_pictures,
    find_duplicates,
    find_matches,
)
from lipt.data.inputs.specs import ImageSpec
from tests.core.selection.builders import at_angles


class Points(Pictures):
    """Points are alike from a cosine of 0.8 on, and looked at from 0.6 on."""

    def alike(self, standing_P: Tensor, later_P: Tensor) -> Tensor:
        unit_NP = self.thumbnails_NP
        return (unit_NP[standing_P] * unit_NP[later_P]).sum(dim=1) >= self.threshold

    def bound(self, later_B: Tensor) -> PairFilter:
        return lambda rows_P, standing_P: torch.ones(len(rows_P), dtype=torch.bool)


def found_in(points_ND: Tensor) -> Matches:
    unit_ND = functional.normalize(points_ND, dim=1)
    digests = [b"%d" % number for number in range(len(points_ND))]
    points = Points(lambda ids: ids, digests, unit_ND, unit_ND, threshold=0.8, near=0.6)
    return find_matches(digests, points)


def test_near_duplicate_groups_do_not_chain() -> None:
    # 30 degrees apart: cosine 0.87; 60 apart: 0.5.
    assert found_in(at_angles(0, 30, 60)).duplicate_group_N.tolist() == [0, 0, 2]
    # Where the middle one comes first, both are like it.
    assert found_in(at_angles(30, 0, 60)).duplicate_group_N.tolist() == [0, 0, 0]


@pytest.mark.parametrize("block", [4, 64, 512])
def test_near_duplicates_equal_all_pairs(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(duplicates, "_BLOCK", block)
    monkeypatch.setattr(duplicates, "_TILE", 32)
    generator = torch.Generator().manual_seed(2)
    originals = torch.randn(60, 40, generator=generator)
    which = torch.randint(60, (300,), generator=generator)
    points_ND = originals[which] + 0.35 * torch.randn(300, 40, generator=generator)
    found = found_in(points_ND)
    assert found.duplicate_group_N.tolist() == slowly(points_ND)
    assert 60 < len(found.duplicate_group_N.unique()) < 100
    assert bool((which == which[found.duplicate_group_N]).all())


def slowly(points_ND: Tensor) -> list[int]:
    unit = functional.normalize(points_ND.double(), dim=1)
    pictures: list[int] = []
    for one in range(len(unit)):
        standing = [other for other in sorted(set(pictures)) if pictures[other] == other]
        alike = [other for other in standing if float(unit[one] @ unit[other]) >= 0.8]
        pictures.append(alike[0] if alike else one)
    return pictures


def test_images_shifted_by_a_pixel_are_near_duplicates() -> None:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(40, 3, 8, 8, generator=generator) * 150
    pixels = functional.interpolate(coarse, (34, 34), mode="bilinear")
    originals = pixels[:, :, 1:33, 1:33]
    moved = pixels[:, :, 2:34, :32] * 1.2
    noisy = originals + 4 * torch.randn(originals.shape, generator=generator)
    images = torch.cat((originals, moved, noisy, originals)).clamp(0, 255).to(torch.uint8)
    pictures = Pictures.of(lambda ids: images[ids], len(images))
    found = find_matches(pictures.digests, pictures)
    assert found.duplicate_group_N.tolist() == list(range(40)) * 4
    assert found.exact_N.tolist() == [*range(120), *range(40)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 20), (1, 64, 48)])
def test_bounds_exclude_most_pairs_and_no_near_duplicate(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(4)
    drawn = torch.rand(12, shape[0], 4, 4, generator=generator) * 200
    originals = functional.interpolate(drawn, shape[1:], mode="bilinear").repeat(5, 1, 1, 1)
    noise = torch.randn(originals.shape, generator=generator)
    # From copies to what is hardly alike, on one background; and a picture of one colour.
    spread = torch.linspace(1, 40, len(originals)).view(-1, 1, 1, 1)
    images = (originals + spread * noise).clamp(0, 255).to(torch.uint8)
    images[5] = 7
    pictures = replace(Pictures.of(lambda ids: images[ids], len(images)), threshold=0.9, near=-1.0)
    ids = torch.arange(len(images))
    standing, later = (pairs.flatten() for pairs in torch.meshgrid(ids, ids, indexing="xy"))
    may_be = pictures.bound(ids)(later, standing)
    alike = pictures.alike(standing, later)
    assert not bool((alike & ~may_be).any())
    assert int(alike.sum()) < int(may_be.sum()) < 0.5 * len(may_be)
    # Sketches bound the thumbnails' cosines, for three channels by fewer numbers.
    sketches = pictures.sketches()
    cosines = pictures.thumbnails_NP @ pictures.thumbnails_NP.T
    assert bool((sketches @ sketches.T >= cosines - 1e-4).all())
    assert sketches.shape[1] == {1: 64, 3: 41}[shape[0]]
    # 60 images in parts of seven have the same.
    monkeypatch.setattr(duplicates, "_IMAGES_IN_CACHE", 7)
    torch.testing.assert_close(pictures.sketches(), sketches, rtol=0, atol=1e-6)
    assert torch.equal(pictures.bound(ids)(later, standing), may_be)


def test_saved_matches_are_loaded_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "duplicates.safetensors"
    saved = Matches(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2]), 0.96)
    saved.save(path)
    loaded = Matches.load(path)
    assert torch.equal(loaded.duplicate_group_N, saved.duplicate_group_N)
    assert torch.equal(loaded.exact_N, saved.exact_N)
    assert loaded.threshold == 0.96
    path.write_bytes(b"no tensors")
    with pytest.raises(StateError, match="Delete it: it is computed again"):
        Matches.load(path)


def duplicates_in(
    pictures: list[int], exact: list[int], labels: list[int], quality: list[float]
) -> DuplicateGroups:
    copies = Matches(torch.tensor(pictures), torch.tensor(exact), threshold=0.75)
    return find_duplicates(torch.tensor(labels), torch.tensor(quality), copies)


def test_the_example_with_the_best_label_is_kept() -> None:
    # The three of one picture have the labels 0, 0 and 1: they conflict once.
    quality = [0.5, 0.9, 0.2, 0.9, 0.5]
    found = duplicates_in([0, 1, 0, 0, 4], [0, 1, 2, 3, 4], [0, 1, 0, 1, 2], quality)
    assert found.kept_N.tolist() == [3, 1, 3, 3, 4]
    assert (found.surplus, found.conflicting, found.threshold) == (2, 1, 0.75)
    assert found.groups() == [[3, 0, 2]]
    # 0, 1 and 2 are one picture to the pixel; 3 and 4 nearly; of 5, 6 and 7 two to the pixel.
    pictures, exact = [0, 0, 0, 3, 3, 5, 5, 5], [0, 0, 0, 3, 4, 5, 5, 7]
    found = duplicates_in(pictures, exact, [0] * 8, [1.0] * 8)
    assert (found.exact_groups, found.near_groups, found.surplus) == (2, 2, 5)
    assert found.conflicting == 0


def test_thumbnails_are_centred_and_of_unit_length() -> None:
    images = torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    images[0, :, :, 8:] = 200
    found = Pictures.of(lambda ids: images[ids], 2)
    # Half of 64 cells above the mean: each an eighth away from it; one colour is nothing.
    assert found.thumbnails_NP[0].view(8, 8)[:, 0].tolist() == pytest.approx([-1 / 8] * 8)
    assert found.thumbnails_NP[1].abs().sum() == 0


def test_shifts_of_a_pixel_and_brightness_are_ignored() -> None:
    generator = torch.Generator().manual_seed(0)
    large = torch.randint(100, (1, 3, 12, 12), generator=generator, dtype=torch.uint8)
    places = [(top, left) for top in range(3) for left in range(3)]
    moved = torch.cat([2 * large[:, :, a : a + 10, b : b + 10] for a, b in places])
    middle = large[:, :, 1:11, 1:11].expand(9, -1, -1, -1)
    assert aligned_correlation(middle, moved).tolist() == pytest.approx([1.0] * 9, abs=1e-5)
    # Two pixels are another picture here, where pixels have nothing to do with each other.
    two = aligned_correlation(large[:, :, :8, :8], large[:, :, 2:10, 2:10])
    assert float(two) < 0.5


@pytest.mark.parametrize(
    ("shape", "are"),
    [((1, 4, 4), True), ((3, 32, 4), True), ((1, 1, 64), False), ((1, 3, 3), False)],
)
def test_shapes_of_numeric_rows_are_not_pictures(shape: tuple[int, int, int], are: bool) -> None:
    assert are_pictures(ImageSpec(*shape)) == are
