from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.coordinator.diagnosis import duplicates
from lipt.coordinator.diagnosis.duplicates import (
    Duplicates,
    find_duplicates,
    likeness_of_features,
    likeness_of_pictures,
)
from lipt.coordinator.diagnosis.pictures import look_at


def found_in(
    features_ND: Tensor,
    *,
    labels: list[int] | None = None,
    quality: list[float] | None = None,
    digests: list[bytes] | None = None,
    threshold: float = 0.8,
) -> Duplicates:
    count = len(features_ND)
    return find_duplicates(
        torch.tensor(labels or [0] * count),
        torch.tensor(quality or [1.0] * count),
        digests or distinct(count),
        likeness_of_features(
            features_ND, generator=torch.Generator().manual_seed(0), threshold=threshold
        ),
    )


def distinct(count: int) -> list[bytes]:
    return [number.to_bytes(4, "little") for number in range(count)]


def on_a_circle(*degrees: float) -> Tensor:
    """Points and their opposites: centred, and of equal deviations where they are balanced."""
    angles = torch.tensor(degrees).deg2rad()
    points = torch.stack((angles.cos(), angles.sin()), dim=1)
    turned = torch.stack((-points[:, 1], points[:, 0]), dim=1)
    return torch.cat((points, -points, turned, -turned))


def test_exact_duplicates_go_to_the_best_label() -> None:
    found = found_in(
        torch.eye(5),
        quality=[0.5, 0.9, 0.2, 0.9, 0.5],
        digests=[b"a", b"b", b"a", b"a", b"c"],
        labels=[0, 1, 0, 1, 2],
    )
    assert found.kept_N.tolist() == [3, 1, 3, 3, 4]
    assert (found.exact_groups, found.near_groups, found.surplus) == (1, 0, 2)
    assert found.conflicting == 1
    assert found.groups() == [[3, 0, 2]]


def test_of_equal_labels_the_lowest_id_is_kept() -> None:
    found = found_in(torch.eye(3), digests=[b"a", b"a", b"a"])
    assert found.kept_N.tolist() == [0, 0, 0]
    assert found.conflicting == 0


def test_duplicates_do_not_chain() -> None:
    # 30 degrees apart: cosine 0.87; 60 apart: 0.5.
    features_ND = on_a_circle(0, 30, 60)
    assert found_in(features_ND).kept_N[:3].tolist() == [0, 0, 2]
    # Where the middle one is the best, both are like it.
    quality = [0.5, 0.9, 0.5, *[0.1] * 9]
    assert found_in(features_ND, quality=quality).kept_N[:3].tolist() == [1, 1, 1]


def test_a_duplicate_goes_to_the_first_that_was_kept() -> None:
    # 28 is like both 0 and 45; 0 and 45 (cosine 0.71) are not alike.
    quality = [0.8, 0.9, 0.5, *[0.1] * 9]
    found = found_in(on_a_circle(0, 45, 28), quality=quality)
    assert found.kept_N[:3].tolist() == [0, 1, 1]


def test_what_is_average_in_all_is_like_nothing() -> None:
    features_ND = torch.cat((on_a_circle(0, 40), torch.zeros(2, 2)))
    assert found_in(features_ND).kept_N.tolist() == list(range(10))


@pytest.mark.parametrize("block", [4, 64, 512])
@pytest.mark.parametrize("num_features", [40, 300])
def test_the_same_are_found_as_by_comparing_all_pairs(
    monkeypatch: pytest.MonkeyPatch, block: int, num_features: int
) -> None:
    monkeypatch.setattr(duplicates, "_BLOCK", block)
    monkeypatch.setattr(duplicates, "_TILE", 32)
    generator = torch.Generator().manual_seed(2)
    originals = torch.randn(60, num_features, generator=generator)
    which = torch.randint(60, (300,), generator=generator)
    noise = 0.35 * torch.randn(300, num_features, generator=generator)
    features_ND = 3 + 5 * (originals[which] + noise)
    quality_N = torch.rand(300, generator=generator)
    found = found_in(features_ND, quality=quality_N.tolist(), labels=(which % 7).tolist())
    assert found.kept_N.tolist() == slowly(features_ND, quality_N, 0.8)
    assert found.surplus > 200
    # Whatever the projection does not show it does not invent either.
    assert bool((which == which[found.kept_N]).all())


def slowly(features_ND: Tensor, quality_N: Tensor, threshold: float) -> list[int]:
    scaled = (features_ND - features_ND.mean(dim=0)) / features_ND.std(dim=0, correction=0)
    unit = functional.normalize(scaled.double(), dim=1)
    kept: list[int] = []
    stands_for = {}
    for one in quality_N.argsort(descending=True, stable=True).tolist():
        alike = [other for other in kept if float(unit[one] @ unit[other]) >= threshold]
        stands_for[one] = alike[0] if alike else one
        if not alike:
            kept.append(one)
    return [stands_for[one] for one in range(len(features_ND))]


def test_pictures_are_alike_by_their_pixels_a_pixel_apart() -> None:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(40, 3, 8, 8, generator=generator) * 150
    pixels = functional.interpolate(coarse, (34, 34), mode="bilinear")
    originals = pixels[:, :, 1:33, 1:33]
    moved = pixels[:, :, 2:34, :32] * 1.2
    noisy = originals + 4 * torch.randn(originals.shape, generator=generator)
    images = torch.cat((originals, moved, noisy, originals)).clamp(0, 255).to(torch.uint8)
    pictures = look_at(lambda ids: images[ids], len(images))
    found = find_duplicates(
        torch.tensor([0] * 40 + [1] * 40 + [0] * 80),
        torch.ones(160),
        pictures.digests,
        likeness_of_pictures(pictures, lambda ids: images[ids]),
    )
    assert found.kept_N.tolist() == list(range(40)) * 4
    assert (found.exact_groups, found.near_groups, found.surplus) == (40, 40, 120)
    assert found.conflicting == 40


def test_exact_and_near_duplicates_share_a_group() -> None:
    features_ND = torch.cat((on_a_circle(0, 45, 10), on_a_circle(0)[:1]))
    digests = distinct(13)
    digests[12] = digests[0]
    found = found_in(features_ND, digests=digests)
    assert found.kept_N[[0, 2, 12]].tolist() == [0, 0, 0]
    assert found.exact_groups == 1
    assert found.near_groups == 4
    assert found.groups()[0] == [0, 2, 12]


def test_half_precision_features_serve() -> None:
    generator = torch.Generator().manual_seed(4)
    features_ND = torch.randn(20, 200, generator=generator).half()
    found = found_in(torch.cat((features_ND, features_ND)))
    assert found.kept_N.tolist() == list(range(20)) * 2


def test_one_example_is_kept() -> None:
    assert found_in(torch.ones(1, 3)).kept_N.tolist() == [0]
