import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.computation import computation
from lipt.common.determinism import derive_generator
from lipt.core.proxies import untrained as module
from lipt.core.proxies.untrained import (
    PATCH_SIDE,
    PatchFilters,
    column_values,
    draw_filters,
    is_projected,
    patch_features,
    side_for,
)
from lipt.data.inputs.specs import Column, ColumnType


def made_up(num_images: int, channels: int = 3, side: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (num_images, channels, side, side)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def filters_of(images_NCHW: Tensor, num_filters: int = 16) -> PatchFilters:
    generator = torch.Generator().manual_seed(1)
    return draw_filters(images_NCHW, generator=generator, num_filters=num_filters)


def convolved(images_NCHW: Tensor, filters: PatchFilters) -> Tensor:
    channels = images_NCHW.shape[1]
    kernels = filters.weights_PF.double().T.reshape(-1, channels, PATCH_SIDE, PATCH_SIDE)
    pixels_NCHW = images_NCHW.double() / 255
    responses = functional.conv2d(pixels_NCHW, kernels, filters.biases_F.double(), stride=2)
    responses /= responses.flatten(start_dim=1).std(dim=1, correction=0)[:, None, None, None]
    signs = torch.stack([(responses - 0.25).relu(), (-responses - 0.25).relu()], dim=1)
    pooled = functional.adaptive_avg_pool2d(signs.flatten(0, 1), 2).sqrt()
    # N x signs x F x 2 x 2, to the order of the features: sign, row, column, filter.
    of_images = pooled.view(len(images_NCHW), 2, -1, 2, 2)
    return of_images.permute(0, 1, 3, 4, 2).flatten(start_dim=1).float()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [32, 64])
def test_patch_features_equal_convolution_and_pooling(channels: int, side: int) -> None:
    images_NCHW = made_up(11, channels, side)
    filters = filters_of(images_NCHW)
    found_ND = patch_features(images_NCHW, filters)
    assert found_ND.shape == (11, 8 * 16)
    torch.testing.assert_close(found_ND, convolved(images_NCHW, filters), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", [32, 64])
def test_mirrored_features_average_an_image_and_its_mirror(side: int) -> None:
    images_NCHW = made_up(5, side=side)
    filters = filters_of(images_NCHW)
    found_ND = patch_features(images_NCHW, replace(filters, mirrored=True))
    each_2ND = torch.stack(
        [convolved(images, filters) for images in (images_NCHW, images_NCHW.flip(3))]
    )
    torch.testing.assert_close(found_ND, each_2ND.square().mean(dim=0).sqrt(), rtol=1e-4, atol=1e-4)
    of_mirror_ND = patch_features(images_NCHW.flip(3), replace(filters, mirrored=True))
    torch.testing.assert_close(found_ND, of_mirror_ND, rtol=1e-4, atol=1e-4)


def test_each_part_of_the_images_has_a_thread_and_its_own_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images_NCHW = made_up(50)
    filters = draw_filters(images_NCHW, generator=torch.Generator().manual_seed(0))
    shares, used = module._shares, list[tuple[int, int]]()

    def counted(*arguments: Tensor) -> Tensor:
        used.append((threading.get_ident(), torch.get_num_threads()))
        return shares(*arguments)

    monkeypatch.setattr(module, "_shares", counted)
    found = []
    for num_threads in (1, 2):
        with computation(num_threads):
            found.append(patch_features(images_NCHW, filters))
            assert torch.get_num_threads() == num_threads
    assert torch.equal(*found)
    # 50 images in parts of 16, twice; no operation is shared by threads.
    assert [threads for _, threads in used] == [1] * 8
    assert threading.get_ident() not in dict(used)


def test_filters_are_whitened_patches_of_unit_length() -> None:
    # Pixels without correlation, all of variance v: whitening divides by sqrt(v + 0.01).
    images_NCHW = made_up(400)
    filters = filters_of(images_NCHW, num_filters=64)
    assert filters.weights_PF.shape == (3 * 36, 64)
    variance = float((images_NCHW / 255).var())
    lengths_F = filters.weights_PF.norm(dim=0) * (variance + 0.01) ** 0.5
    torch.testing.assert_close(lengths_F, torch.ones(64), rtol=0.2, atol=0)
    torch.testing.assert_close(
        filters.biases_F,
        -(images_NCHW / 255).mean() * filters.weights_PF.sum(dim=0),
        rtol=0,
        atol=0.1,
    )
    # The pixel at row r and column c is 32 r + c, modulo 256: it says where a patch is from.
    places_HW = torch.arange(32 * 32).view(1, 1, 32, 32) % 256
    images_NCHW = places_HW.to(torch.uint8).repeat(3, 1, 1, 1)
    found_RP = module._random_patches(images_NCHW, 32, torch.Generator().manual_seed(0))
    offsets_P = (32 * torch.arange(6)[:, None] + torch.arange(6)).flatten()
    values_RP = (found_RP * 255).round().long()
    assert torch.equal(values_RP, (values_RP[:, :1] + offsets_P) % 256)
    assert len(values_RP[:, 0].unique()) > 12


@pytest.mark.parametrize(
    ("shape", "side"), [((1, 8, 8), 32), ((3, 32, 32), 32), ((3, 33, 20), 64), ((3, 224, 224), 64)]
)
def test_images_are_scaled_to_one_of_two_sizes(shape: tuple[int, int, int], side: int) -> None:
    assert side_for(shape) == side
    images_NCHW = torch.zeros(2, *shape, dtype=torch.uint8)
    assert patch_features(images_NCHW, filters_of(images_NCHW)).shape == (2, 8 * 16)


def of_column(column: Column, values: torch.Tensor) -> torch.Tensor:
    tensors = {column.name: values}
    return column_values([column], tensors, seed=3)(tensors)


@pytest.mark.parametrize(
    ("shape", "num_values", "projected"),
    [((), None, False), ((1024,), None, False), ((1025,), None, True), ((64,), 2000, True)],
)
def test_only_wide_columns_are_projected(
    shape: tuple[int, ...], num_values: int | None, projected: bool
) -> None:
    kind = ColumnType.FLOAT32 if num_values is None else ColumnType.INT64
    values_N = torch.zeros(2, *shape, dtype=kind.dtype)
    column = Column("x", kind, shape, num_values or 0)
    assert is_projected(column, values_N) == projected
    assert (of_column(column, values_N).shape[1] == 512) == projected


@pytest.mark.parametrize(
    ("kind", "shape", "num_values", "values", "expected"),
    [
        (
            "float64",
            (2, 2),
            0,
            [[[0.0, 1], [2, 3]], [[4, 5], [6, 7]]],
            [[0, 1, 2, 3], [4, 5, 6, 7]],
        ),
        ("int64", (3,), 2, [[1, 0, 1]], [[1, 0, 1]]),
        ("bool", (), 0, [True], [[1]]),
        # Categories count at their place: of place 0 the value 2, of place 1 the value 0. How many
        # there are follows from the data where the column does not say.
        ("int64", (2,), 3, [[2, 0]] * 2, [[0, 0, 1, 1, 0, 0]] * 2),
        ("int64", (2,), 0, [[2, 0]] * 2, [[0, 0, 1, 1, 0, 0]] * 2),
        # Of one row alone are the value 0 of place 0 and the value 2 of place 1.
        (
            *("int64", (2,), 3, [[1, 2], [1, 1], [0, 1]]),
            [[0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0]],
        ),
    ],
    ids=["numbers", "flags", "a-flag", "categories", "counted-categories", "of-one-row"],
)
def test_columns_by_hand(
    kind: str, shape: tuple[int, ...], num_values: int, values: Any, expected: list[list[int]]
) -> None:
    column = Column("x", ColumnType(kind), shape, num_values=num_values)
    assert of_column(column, torch.tensor(values)).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [-999.0, 3e4, -1e9])
def test_a_few_wrong_numbers_do_not_hide_the_others(dtype: torch.dtype, wrong: float) -> None:
    values_N2 = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    values_N2[:4, 0] = wrong
    column = Column("x", ColumnType.of(dtype), (2,), standardized=True)
    features_N2 = of_column(column, values_N2)
    assert features_N2[:, 0].std() < 3 * features_N2[4:, 0].std()
    assert torch.corrcoef(torch.stack([features_N2[4:, 0], values_N2[4:, 0].float()]))[0, 1] > 0.99


def test_an_id_of_each_row_is_no_feature_however_many_rows() -> None:
    column = Column("x", ColumnType.INT64, (), num_values=5000)
    assert is_projected(column, torch.arange(5000))
    assert of_column(column, torch.arange(5000)).abs().max() == 0
    assert of_column(column, torch.arange(5000).clamp(max=4998))[:4998].abs().max() == 0


def test_word_features_ignore_positions() -> None:
    places = module._MAX_PLACES + 1
    column = Column("x", ColumnType.INT64, (places,), num_values=4)
    words = torch.zeros(1, places, dtype=torch.int64)
    words[0, [3, 30]] = 2
    assert of_column(column, words).tolist() == [[places - 2, 0, 2, 0]]
    kinds, places = 5000, 40
    column = Column("x", ColumnType.INT64, (places,), num_values=kinds)
    words = torch.randint(kinds, (3, places), generator=torch.Generator().manual_seed(0))
    counts = torch.stack([row.bincount(minlength=kinds) for row in words]).float()
    drawn = torch.randn(kinds, 512, generator=derive_generator(3, "column x")) / 512**0.5
    torch.testing.assert_close(of_column(column, words), counts @ drawn)
