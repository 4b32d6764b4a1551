"""Both storages behave as one, and the inputs' figures are exact.

Shapes: N examples, B ids, C channels.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.data.dataset import Dataset, IdMapping, input_format, without_quarantined
from lipt.data.images.formats import decode_image
from lipt.data.inputs.model_input import to_model_input
from lipt.data.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnType,
    ImageFormat,
    ImageSpec,
)
from lipt.data.loading import default_side, load, open_dataset
from lipt.data.sources.rows import ArrayRows, ColumnRows, EncodedRows
from tests.data.columns import SIZES, TOKENS, column_rows, counted, write_folder

SIDE = default_side()

Encode = Callable[..., bytes]


def array_set(images_NCHW: np.ndarray) -> Dataset:
    labels_N = torch.arange(len(images_NCHW)) % 2
    return load(ArrayRows("made", ("a", "b"), labels_N, images_NCHW))


@pytest.fixture(params=[2**30, 0], ids=["in memory", "encoded"])
def pets(request: pytest.FixtureRequest, image_folder: Path) -> Dataset:
    return open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=request.param)


def test_small_sets_are_kept_as_pixels_and_large_sets_as_files(image_folder: Path) -> None:
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


def test_images_have_the_requested_order(pets: Dataset, image_folder: Path) -> None:
    files = [*sorted((image_folder / "cat").iterdir()), *sorted((image_folder / "dog").iterdir())]
    ids = [4, 0, 0, 3, 1]
    images_BCHW = pets.images(torch.tensor(ids))
    assert images_BCHW.dtype == torch.uint8
    for image, row in zip(images_BCHW, ids, strict=True):
        assert torch.equal(image, decode_image(files[row].read_bytes(), (3, 12, 10)))
        assert int(pets[row]["label"]) == int(row >= 3)
    assert torch.equal(replace(pets, num_threads=4).images(torch.tensor(ids)), images_BCHW)
    assert pets.images(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 12, 10)
    for row in (-1, 5):
        with pytest.raises(IndexError, match=rf"no row {row} in imagefolder:.* with 5 rows"):
            pets.images(torch.tensor([0, row]))
        with pytest.raises(IndexError):
            pets[row]
        with pytest.raises(IndexError):
            pets.raw_bytes(row)


IN_MEMORY, ON_DISK = 2**30, 0
budgets = pytest.mark.parametrize("budget", [IN_MEMORY, ON_DISK])


@budgets
@pytest.mark.parametrize(
    ("sizes", "image_size", "expected"),
    [
        ([(64, 64), (64, 64)], None, (64, 64)),
        ([(65, 64), (65, 64)], None, (SIDE, SIDE)),
        ([(20, 30), (30, 20)], None, (SIDE, SIDE)),
        ([(20, 30), (30, 20)], 16, (16, 16)),
    ],
)
def test_images_have_the_model_s_size(
    tmp_path: Path,
    encode: Encode,
    sizes: list[tuple[int, int]],
    image_size: int | None,
    expected: tuple[int, int],
    budget: int,
) -> None:
    write_folder(
        tmp_path,
        {f"{name}/0.png": encode(size=size) for name, size in zip("ab", sizes, strict=True)},
    )
    source = f"imagefolder:{tmp_path}"
    data = open_dataset(source, image_size=image_size, memory_budget_bytes=budget)
    assert data.inputs == ImageSpec(3, *expected)
    assert data.images(torch.tensor([1, 0])).shape == (2, 3, *expected)


def normalization(data: Dataset, seed: int) -> ImageFormat:
    found = input_format(data, torch.arange(len(data)), seed)
    assert isinstance(found, ImageFormat)
    return found


def test_normalization_equals_a_slow_oracle_and_samples_by_seed() -> None:
    images = np.random.default_rng(1).integers(0, 256, (250, 3, 4, 5), np.uint8)
    found = normalization(array_set(images), seed=0)
    for channel in range(3):
        values = [value / 255 for value in images[:, channel].ravel().tolist()]
        assert found.mean[channel] == pytest.approx(statistics.fmean(values), rel=1e-12)
        assert found.std[channel] == pytest.approx(statistics.pstdev(values), rel=1e-12)
    # Of more, 2,000 rows are sampled by the seed.
    images = np.zeros((2500, 1, 1, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(2500) % 256
    data = array_set(images)
    first = normalization(data, seed=1)
    assert first == normalization(data, seed=1)
    assert first != normalization(data, seed=2)
    # A mean of 2,000 integers over 255: anything else was not 2,000 rows.
    total = first.mean[0] * 255 * 2000
    assert total == pytest.approx(round(total), abs=1e-6)


def test_statistics_are_per_entry_or_channel_of_the_training_examples() -> None:
    data = load(column_rows())
    found = input_format(data, torch.tensor([2, 0]), seed=0)
    # Of 1 and 6: the mean is 3.5, the population's deviation 2.5.
    expected = ColumnsFormat((ColumnFormat(TOKENS), ColumnFormat(SIZES, (3.5,), (2.5,))))
    assert found == expected
    rows = column_rows()
    column = Column("sizes", ColumnType.FLOAT32, (2, 2), standardized=True)
    values = torch.tensor([[[0.0, 7.0], [2.0, 7.0]]] * 2 + [[[4.0, 7.0], [6.0, 7.0]]])
    rows = type(rows)("made", None, rows.labels_N, (column,), {"sizes": values})
    found = input_format(load(rows), torch.arange(3), seed=0)
    assert isinstance(found, ColumnsFormat)
    # 0, 2, 0, 2, 4, 6 in one place, and 7 in the other, whose deviation of 0 becomes 1.
    mean, squares = 14 / 6, (0 + 4 + 0 + 4 + 16 + 36) / 6
    assert found.columns[0].mean == pytest.approx((mean, 7.0))
    assert found.columns[0].std == pytest.approx((math.sqrt(squares - mean**2), 1.0))


def test_an_extreme_value_is_clipped_and_leaves_the_statistics_usable() -> None:
    values_N = torch.tensor([*map(float, range(9)), 1e12])
    rows = ColumnRows("made", None, torch.arange(10) % 2, (SIZES,), {"sizes": values_N})
    found = input_format(load(rows), torch.arange(10), seed=0)
    assert isinstance(found, ColumnsFormat)
    # Quartiles 2.25 and 6.75: the upper fence is 6.75 + 5 * 4.5.
    cut_N = [*range(9), 29.25]
    mean = sum(cut_N) / 10
    assert found.columns[0].mean == pytest.approx((mean,))
    deviation = math.sqrt(sum((value - mean) ** 2 for value in cut_N) / 10)
    assert found.columns[0].std == pytest.approx((deviation,))
    inputs = to_model_input({"sizes": values_N}, found, "cpu")
    assert isinstance(inputs, dict)
    assert inputs["sizes"][-1] == 10
    assert inputs["sizes"][0] == pytest.approx(-mean / deviation)


def test_a_column_that_is_mostly_zero_keeps_its_rare_values() -> None:
    values_N = torch.tensor([0.0] * 9 + [5.0])
    rows = ColumnRows("made", None, torch.arange(10) % 2, (SIZES,), {"sizes": values_N})
    found = input_format(load(rows), torch.arange(10), seed=0)
    assert found == ColumnsFormat((ColumnFormat(SIZES, (0.5,), (1.5,)),))


@budgets
def test_replaced_files_are_detected(image_folder: Path, budget: int) -> None:
    dataset = open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=budget)
    assert not dataset.has_changed()
    path = image_folder / "cat" / "1.png"
    path.write_bytes((image_folder / "cat" / "0.png").read_bytes())
    assert dataset.has_changed()
    again = open_dataset(f"imagefolder:{image_folder}")
    assert not again.has_changed()
    # It can go to another process.
    assert ForkingPickler.dumps(again)


FACTORY = """
import numpy as np

class Rows:
    targets, value, broken = [0, 1, 0, 1], 7, False

    def __len__(self):
        return 4

    def __getitem__(self, row):
        if self.broken:
            raise OSError("gone")
        return np.full((6, 6), self.value * row, np.uint8), row % 2

rows = Rows()

def data():
    return rows
"""


def test_lazily_read_user_rows_are_read_again(write_module: Callable[[str, str], None]) -> None:
    write_module("lazy", FACTORY)
    dataset = open_dataset("lazy:data", allowed_modules=["lazy"], memory_budget_bytes=0)
    import lazy  # type: ignore[import-not-found]

    assert not dataset.has_changed()
    lazy.rows.value = 8
    assert dataset.has_changed()
    lazy.rows.value, lazy.rows.broken = 7, True
    assert dataset.has_changed()


@st.composite
def id_mappings(draw: st.DrawFn) -> tuple[int, IdMapping]:
    size = draw(st.integers(1, 40))
    excluded = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    return size, IdMapping(tuple(sorted(excluded)))


@given(id_mappings())
def test_positions_count_only_ids_that_are_not_excluded(drawn: tuple[int, IdMapping]) -> None:
    size, id_mapping = drawn
    ids = [row for row in range(size) if row not in id_mapping.excluded]
    places = torch.arange(len(ids))
    assert id_mapping.ids(places).tolist() == ids
    assert id_mapping.positions(torch.tensor(ids)).tolist() == places.tolist()
    values_N2 = torch.arange(size)[:, None] * torch.tensor([1.0, 10.0])
    kept = id_mapping.by_position(values_N2)
    assert kept[:, 0].tolist() == ids
    spread = id_mapping.by_id(kept, -1.0)
    assert [row for row in range(size) if spread[row, 0] == -1] == list(id_mapping.excluded)
    spread[list(id_mapping.excluded)] = values_N2[list(id_mapping.excluded)]
    assert torch.equal(spread, values_N2)


# In the folder below: the first of a, one in the middle of b's, the last of c.
BROKEN = (0, 5, 9)


@pytest.fixture
def folder(tmp_path: Path, encode: Encode) -> Path:
    """Ten images of three classes, of which three are broken, each in a way of its own."""
    names = ["a/0", "a/1", "a/2", "b/0", "b/1", "b/2", "b/3", "c/0", "c/1", "c/2"]
    images = [encode(number, (40, 40), kind="JPEG") for number in range(10)]
    write_folder(tmp_path / "all", {f"{n}.jpg": i for n, i in zip(names, images, strict=True)})
    empty, garbled, cut = (tmp_path / "all" / f"{names[row]}.jpg" for row in BROKEN)
    empty.write_bytes(b"")
    content = bytearray(garbled.read_bytes())
    # Header and end are whole, which a look at them cannot tell.
    content[len(content) // 2 : -2] = bytes(len(content) - 2 - len(content) // 2)
    del content[len(content) // 3 : -2]
    garbled.write_bytes(bytes(content))
    cut.write_bytes(cut.read_bytes()[:300])
    return tmp_path / "all"


@budgets
def test_broken_images_are_named_and_excluded(
    folder: Path, budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    def opening() -> Dataset:
        caplog.clear()
        opened = open_dataset(f"imagefolder:{folder}", memory_budget_bytes=budget, max_corrupt=3)
        assert (len(opened), opened.quarantined) == (10, BROKEN)
        assert "3 of 10 images of" in caplog.text
        assert "are left out: 0, 5, 9" in caplog.text
        return opened

    opening()
    opened = opening()
    dataset = without_quarantined(opened)
    ids = IdMapping(BROKEN).ids(torch.arange(7))
    assert (len(dataset), ids.tolist()) == (7, [1, 2, 3, 4, 6, 7, 8])
    assert dataset.labels_N.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert torch.equal(dataset.images(torch.arange(7)), opened.images(ids))
    assert [dataset.raw_bytes(place) for place in range(7)] == [
        opened.raw_bytes(row) for row in ids.tolist()
    ]
    assert dataset.fingerprint == opened.fingerprint
    assert not dataset.has_changed()


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        # Known to be broken: not looked at. Row 1 says the size, then all.
        ("check", {"quarantined": BROKEN}, [1, 1, 2, 3, 4, 6, 7, 8, 1]),
        # Some may be broken: each is decoded, and that is kept.
        ("read", {"max_corrupt": 3}, list(range(10))),
    ],
)
def test_every_image_is_validated_once(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    options: dict[str, Any],
    expected: list[int],
) -> None:
    looked = counted(monkeypatch, EncodedRows, method)
    for _ in range(2):
        open_dataset(f"imagefolder:{folder}", memory_budget_bytes=ON_DISK, **options)
    assert looked == expected
