"""Both storages behave as one, and the pixels' statistics are exact.

Shapes: N examples, B ids, C channels.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lipt.common.data import Dataset, decode_image, normalization, open_dataset
from lipt.common.data.loading import load
from lipt.common.data.parallel import map_rows, threads_for
from lipt.common.data.sources.rows import ArrayRows
from lipt.common.inputs.specs import ImageSpec

Encode = Callable[..., bytes]


def array_set(images_NCHW: np.ndarray, **overrides: int) -> Dataset:
    labels_N = torch.arange(len(images_NCHW)) % 2
    rows = ArrayRows("made", ("a", "b"), labels_N, images_NCHW)
    options = {"image_size": None, "memory_budget_bytes": 2**30} | overrides
    return load(rows, **options, progress=None)  # type: ignore[arg-type]


@pytest.fixture(params=[2**30, 0], ids=["in memory", "encoded"])
def pets(request: pytest.FixtureRequest, image_folder: Path) -> Dataset:
    return open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=request.param)


def test_small_sets_are_pixels_and_large_ones_files(image_folder: Path) -> None:
    source = f"imagefolder:{image_folder}"
    needed = 5 * 3 * 12 * 10
    memory = open_dataset(source, memory_budget_bytes=needed)
    files = open_dataset(source, memory_budget_bytes=needed - 1)
    assert isinstance(memory.rows, ArrayRows)
    assert not memory.encoded
    assert files.encoded
    assert files.raw_bytes(3) == (image_folder / "dog" / "0.jpg").read_bytes()
    assert files[3]["image"] == files.raw_bytes(3)
    assert torch.equal(torch.as_tensor(memory[3]["image"]), files.images(torch.tensor([3]))[0])
    assert memory.raw_bytes(3) == files.images(torch.tensor([3])).numpy().tobytes()
    assert memory.inputs == files.inputs == ImageSpec(3, 12, 10)
    assert torch.equal(memory.labels_N, files.labels_N)


def test_images_come_in_the_order_asked_for(pets: Dataset, image_folder: Path) -> None:
    files = [*sorted((image_folder / "cat").iterdir()), *sorted((image_folder / "dog").iterdir())]
    ids = [4, 0, 0, 3, 1]
    images_BCHW = pets.images(torch.tensor(ids))
    assert images_BCHW.dtype == torch.uint8
    for image, row in zip(images_BCHW, ids, strict=True):
        assert torch.equal(image, decode_image(files[row].read_bytes(), (3, 12, 10)))
        assert int(pets[row]["label"]) == int(row >= 3)
    assert pets.images(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 12, 10)


@pytest.mark.parametrize("row", [-1, 5])
def test_rows_out_of_range_are_refused(pets: Dataset, row: int) -> None:
    with pytest.raises(IndexError, match=rf"no row {row} in imagefolder:.* with 5 rows"):
        pets.images(torch.tensor([0, row]))
    with pytest.raises(IndexError):
        pets[row]
    with pytest.raises(IndexError):
        pets.raw_bytes(row)


def test_changing_a_batch_leaves_the_set_alone(pets: Dataset) -> None:
    ids = torch.arange(5)
    before = pets.images(ids).clone()
    pets.images(ids).zero_()
    assert torch.equal(pets.images(ids), before)


@pytest.mark.parametrize(
    ("sizes", "image_size", "expected"),
    [
        ([(20, 30), (20, 30)], None, (20, 30)),
        ([(64, 64), (64, 64)], None, (64, 64)),
        ([(65, 64), (65, 64)], None, (224, 224)),
        ([(20, 30), (30, 20)], None, (224, 224)),
        ([(20, 30), (300, 200)], None, (224, 224)),
        ([(20, 30), (30, 20)], 16, (16, 16)),
    ],
)
@pytest.mark.parametrize("budget", [2**30, 0])
def test_size_seen_by_the_model(
    tmp_path: Path,
    encode: Encode,
    *,
    sizes: list[tuple[int, int]],
    image_size: int | None,
    expected: tuple[int, int],
    budget: int,
) -> None:
    for name, size in zip("ab", sizes, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode(size=size))
    source = f"imagefolder:{tmp_path}"
    data = open_dataset(source, image_size=image_size, memory_budget_bytes=budget)
    assert data.inputs == ImageSpec(3, *expected)
    assert data.images(torch.tensor([1, 0])).shape == (2, 3, *expected)


def test_arrays_too_large_when_enlarged_are_enlarged_on_demand() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8)
    stored = array_set(images, image_size=16)
    demanded = array_set(images, image_size=16, memory_budget_bytes=100)
    assert isinstance(stored.rows, ArrayRows)
    assert stored.rows.images_NCHW.shape == (4, 3, 16, 16)
    assert isinstance(demanded.rows, ArrayRows)
    assert demanded.rows.images_NCHW.shape == (4, 3, 8, 8)
    assert not demanded.encoded
    ids = torch.tensor([3, 1])
    assert torch.equal(stored.images(ids), demanded.images(ids))


def test_threads_give_the_same_pixels_in_the_same_places(tmp_path: Path, encode: Encode) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(20):
            path = tmp_path / name / f"{number}.png"
            path.write_bytes(encode(number, size=(110, 120)))
    source = f"imagefolder:{tmp_path}"
    data = open_dataset(source, image_size=12, memory_budget_bytes=0)
    assert data.num_threads == threads_for(110 * 120)
    single = Dataset(data.rows, data.fingerprint, data.inputs, num_threads=1)
    many = Dataset(data.rows, data.fingerprint, data.inputs, num_threads=4)
    ids = torch.arange(40).flip(0)
    assert torch.equal(single.images(ids), many.images(ids))


def test_small_images_are_decoded_in_the_callers_thread() -> None:
    assert threads_for(32 * 32) == 1
    assert threads_for(224 * 224) >= 1
    names = set(map_rows(lambda _: threading.current_thread().name, range(5), num_threads=1))
    assert names == {threading.current_thread().name}


@pytest.mark.parametrize("num_threads", [1, 3])
def test_results_come_in_order_and_the_first_failure_wins(num_threads: int) -> None:
    assert list(map_rows(lambda row: row * row, range(600), num_threads=num_threads)) == [
        row * row for row in range(600)
    ]

    def fail(row: int) -> int:
        if row in {7, 300}:
            raise ValueError(row)
        return row

    results: list[int] = []
    with pytest.raises(ValueError, match=r"^7$"):
        results.extend(map_rows(fail, range(600), num_threads=num_threads))


def test_normalization_of_known_pixels() -> None:
    # Channel 0: 0 and 255 in equal parts; channel 1: always 51; channel 2: 0, 0, 0, 255.
    images = np.zeros((2, 3, 1, 2), np.uint8)
    images[1, 0] = 255
    images[:, 1] = 51
    images[1, 2, 0, 1] = 255
    mean, std = normalization(array_set(images), torch.arange(2), seed=0)
    assert mean == pytest.approx((0.5, 0.2, 0.25))
    assert std == pytest.approx((0.5, 1.0, (0.25 * 0.75) ** 0.5))


def test_normalization_looks_at_the_given_ids_only() -> None:
    images = np.zeros((3, 1, 1, 1), np.uint8)
    images[2] = 255
    data = array_set(images)
    assert normalization(data, torch.tensor([0, 1]), seed=0) == ((0.0,), (1.0,))
    assert normalization(data, torch.tensor([1, 2]), seed=0) == ((0.5,), (0.5,))


def test_normalization_agrees_with_a_slow_oracle() -> None:
    images = np.random.default_rng(1).integers(0, 256, (250, 3, 4, 5), np.uint8)
    mean, std = normalization(array_set(images), torch.arange(250), seed=0)
    for channel in range(3):
        values = [value / 255 for value in images[:, channel].ravel().tolist()]
        assert mean[channel] == pytest.approx(statistics.fmean(values), rel=1e-12)
        assert std[channel] == pytest.approx(statistics.pstdev(values), rel=1e-12)


def test_normalization_samples_2000_rows_by_seed() -> None:
    images = np.zeros((2500, 1, 1, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(2500) % 256
    data = array_set(images)
    ids = torch.arange(2500)
    first = normalization(data, ids, seed=1)
    assert first == normalization(data, ids, seed=1)
    assert first != normalization(data, ids, seed=2)
    # A mean of 2,000 integers over 255: anything else was not 2,000 rows.
    assert first[0][0] * 255 * 2000 == pytest.approx(round(first[0][0] * 255 * 2000), abs=1e-6)
