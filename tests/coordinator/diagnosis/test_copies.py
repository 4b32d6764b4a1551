from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import StateError
from lipt.coordinator.diagnosis import copies
from lipt.coordinator.diagnosis.copies import (
    Copies,
    find_copies,
    likeness_of_features,
    likeness_of_pictures,
)
from lipt.coordinator.diagnosis.pictures import look_at


def found_in(
    features_ND: Tensor, *, digests: list[bytes] | None = None, threshold: float = 0.8
) -> Copies:
    likeness = likeness_of_features(
        features_ND, generator=torch.Generator().manual_seed(0), threshold=threshold
    )
    return find_copies(digests or distinct(len(features_ND)), likeness)


def distinct(count: int) -> list[bytes]:
    return [number.to_bytes(4, "little") for number in range(count)]


def on_a_circle(*degrees: float) -> Tensor:
    """Points and their opposites: centred, and of equal deviations where they are balanced."""
    angles = torch.tensor(degrees).deg2rad()
    points = torch.stack((angles.cos(), angles.sin()), dim=1)
    turned = torch.stack((-points[:, 1], points[:, 0]), dim=1)
    return torch.cat((points, -points, turned, -turned))


def test_the_first_of_those_that_are_the_same_stands_for_them() -> None:
    found = found_in(torch.eye(5), digests=[b"a", b"b", b"a", b"a", b"c"])
    assert found.pictures_N.tolist() == found.exact_N.tolist() == [0, 1, 0, 0, 4]
    assert found.threshold == 0.8


def test_copies_do_not_chain() -> None:
    # 30 degrees apart: cosine 0.87; 60 apart: 0.5.
    assert found_in(on_a_circle(0, 30, 60)).pictures_N[:3].tolist() == [0, 0, 2]
    # Where the middle one comes first, both are like it.
    assert found_in(on_a_circle(30, 0, 60)).pictures_N[:3].tolist() == [0, 0, 0]


def test_a_copy_is_of_the_first_picture_that_it_is_like() -> None:
    # 28 is like both 0 and 45; 0 and 45 (cosine 0.71) are not alike.
    assert found_in(on_a_circle(0, 45, 28)).pictures_N[:3].tolist() == [0, 1, 0]
    assert found_in(on_a_circle(45, 0, 28)).pictures_N[:3].tolist() == [0, 1, 0]


def test_what_is_average_in_all_is_like_nothing() -> None:
    features_ND = torch.cat((on_a_circle(0, 40), torch.zeros(2, 2)))
    assert found_in(features_ND).pictures_N.tolist() == list(range(10))


@pytest.mark.parametrize("block", [4, 64, 512])
@pytest.mark.parametrize("num_features", [40, 300])
def test_the_same_are_found_as_by_comparing_all_pairs(
    monkeypatch: pytest.MonkeyPatch, block: int, num_features: int
) -> None:
    monkeypatch.setattr(copies, "_BLOCK", block)
    monkeypatch.setattr(copies, "_TILE", 32)
    generator = torch.Generator().manual_seed(2)
    originals = torch.randn(60, num_features, generator=generator)
    which = torch.randint(60, (300,), generator=generator)
    noise = 0.35 * torch.randn(300, num_features, generator=generator)
    features_ND = 3 + 5 * (originals[which] + noise)
    found = found_in(features_ND)
    assert found.pictures_N.tolist() == slowly(features_ND, 0.8)
    assert len(found.pictures_N.unique()) < 100
    # Whatever the projection does not show it does not invent either.
    assert bool((which == which[found.pictures_N]).all())


def slowly(features_ND: Tensor, threshold: float) -> list[int]:
    scaled = (features_ND - features_ND.mean(dim=0)) / features_ND.std(dim=0, correction=0)
    unit = functional.normalize(scaled.double(), dim=1)
    pictures: list[int] = []
    for one in range(len(unit)):
        standing = [other for other in sorted(set(pictures)) if pictures[other] == other]
        alike = [other for other in standing if float(unit[one] @ unit[other]) >= threshold]
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
    features_ND = torch.cat((on_a_circle(0, 45, 10), on_a_circle(0)[:1]))
    digests = distinct(13)
    digests[12] = digests[0]
    found = found_in(features_ND, digests=digests)
    assert found.pictures_N[[0, 2, 12]].tolist() == [0, 0, 0]
    assert found.exact_N[[0, 2, 12]].tolist() == [0, 2, 0]


def test_half_precision_features_serve() -> None:
    generator = torch.Generator().manual_seed(4)
    features_ND = torch.randn(20, 200, generator=generator).half()
    found = found_in(torch.cat((features_ND, features_ND)))
    assert found.pictures_N.tolist() == list(range(20)) * 2


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
