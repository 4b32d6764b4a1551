from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lipt.common.data import open_dataset
from lipt.common.data.loading import decode_all, load
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.errors import ConfigError, DataError
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec
from tests.common.data.columns import SIZES, TOKENS, column_rows
from tests.tar_shards import samples, write_shard


def test_a_data_set_of_columns_gives_examples_by_their_ids() -> None:
    data = load(column_rows())
    assert data.inputs == ColumnsSpec((TOKENS, SIZES))
    stored = data.examples(torch.tensor([2, 0]))
    assert isinstance(stored, dict)
    assert stored["tokens"].tolist() == [[5, 0], [1, 2]]
    assert stored["sizes"].tolist() == [6.0, 1.0]
    assert {name: torch.as_tensor(value).tolist() for name, value in data[1].items()} == {
        "tokens": [3, 4],
        "sizes": 2.0,
        "label": 1,
    }
    with pytest.raises(IndexError, match="no row 3"):
        data.examples(torch.tensor([3]))


def test_columns_have_no_images() -> None:
    data = load(column_rows())
    with pytest.raises(DataError, match=r"made holds no images, but tokens int16\[2\], sizes"):
        data.images(torch.tensor([0]))
    with pytest.raises(ConfigError, match="Leave the image size out"):
        load(column_rows(), image_size=32)


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("sizes", [1.0, math.nan, math.inf], "row 1 has a value that is not finite in column 's"),
        ("tokens", [[1, 2], [3, 4], [9, 0]], r"row 2 has a value outside 0\.\.8 in column 'tokens"),
        ("tokens", [[1, -1], [3, 4], [5, 0]], r"row 0 has a value outside 0\.\.8"),
    ],
)
def test_a_value_that_no_model_can_be_given_is_named_by_its_row(
    name: str, values: list[float], sentence: str
) -> None:
    dtype = torch.int16 if name == "tokens" else torch.float32
    rows = column_rows(**{name: torch.tensor(values, dtype=dtype)})
    with pytest.raises(DataError, match=sentence):
        load(rows)


Encode = Callable[..., bytes]
IN_MEMORY, ON_DISK = 2**30, 0


def break_files(folder: Path, encode: Encode, *, num_whole: int, num_broken: int) -> None:
    """The first ones in order are broken."""
    for name in ("a", "b"):
        (folder / name).mkdir()
    for number in range(num_broken):
        (folder / "a" / f"{number:03}.png").write_bytes(b"no image")
    for number in range(num_whole):
        (folder / "b" / f"{number:03}.png").write_bytes(encode(number))


@pytest.mark.parametrize("budget", [IN_MEMORY, ON_DISK])
def test_every_broken_image_is_named(tmp_path: Path, encode: Encode, budget: int) -> None:
    break_files(tmp_path, encode, num_whole=3, num_broken=2)
    with pytest.raises(DataError) as refused:
        open_dataset(f"imagefolder:{tmp_path}", memory_budget_bytes=budget)
    head, *lines = str(refused.value).splitlines()
    assert head == (
        f"2 of 5 images of imagefolder:{tmp_path} cannot be used. Replace them, or remove them "
        "and open the data again:"
    )
    assert [line.partition(": ")[0] for line in lines] == [
        f"image {row} ({tmp_path}/a/{row:03}.png)" for row in range(2)
    ]
    assert all("it is not a whole image" in line for line in lines)


def test_of_many_the_first_20_are_named_and_the_rest_counted(
    tmp_path: Path, encode: Encode
) -> None:
    break_files(tmp_path, encode, num_whole=3, num_broken=23)
    with pytest.raises(DataError) as refused:
        open_dataset(f"imagefolder:{tmp_path}")
    head, *lines = str(refused.value).splitlines()
    assert head.startswith("23 of 26 images of ")
    assert len(lines) == 21
    assert lines[19].startswith("image 19 ")
    assert lines[20] == "and 3 more: lipt check --data lists all"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose images were looked at."""
    rows: list[int] = []
    check = EncodedRows.check

    def counted(self: EncodedRows, row: int) -> object:
        rows.append(row)
        return check(self, row)

    monkeypatch.setattr(EncodedRows, "check", counted)
    return rows


def test_images_that_stay_encoded_are_looked_at_once(
    image_folder: Path, checked: list[int]
) -> None:
    source = f"imagefolder:{image_folder}"
    first = open_dataset(source, memory_budget_bytes=0)
    # Row 0 says the size, then all.
    assert checked == [0, 0, 1, 2, 3, 4]
    checked.clear()
    second = open_dataset(source, memory_budget_bytes=0)
    assert checked == [0]
    assert (second.inputs, second.scaling) == (first.inputs, first.scaling)
    assert torch.equal(second.images(torch.arange(5)), first.images(torch.arange(5)))


def test_images_are_looked_at_again_where_one_has_changed(
    image_folder: Path, checked: list[int], encode: Encode
) -> None:
    source = f"imagefolder:{image_folder}"
    open_dataset(source, memory_budget_bytes=0)
    checked.clear()
    (image_folder / "cat" / "1.png").write_bytes(encode(1, (30, 40)))
    assert open_dataset(source, memory_budget_bytes=0).inputs == ImageSpec(3, 224, 224)
    assert set(checked) == {0, 1, 2, 3, 4}


SCALED = "its images have sizes from 20 x 30 to 30 x 40 and are scaled to"
AGAIN = "in all, decoded anew whenever they are needed"
# 3 x 224 x 224 = 150,528 bytes; 224^2 / 64^2 = 12.25.
LARGE = "; a training step takes about 12 times that of --image-size 64"


@pytest.mark.parametrize(
    ("size", "note"),
    [
        (None, f"{SCALED} 224 x 224: 150.5 kB each, 301.1 kB {AGAIN}{LARGE}"),
        (8, f"{SCALED} 8 x 8: 192 B each, 384 B {AGAIN}"),
    ],
)
def test_the_cost_of_scaling_is_told(
    tmp_path: Path, encode: Encode, size: int | None, note: str
) -> None:
    for name, shape in (("a", (20, 40)), ("b", (30, 30))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode(0, shape))
    source = f"imagefolder:{tmp_path}"
    assert open_dataset(source, image_size=size, memory_budget_bytes=0).scaling == note


Write = Callable[[Path, list[bytes], list[int]], str]
LABELS = [0, 0, 0, 1, 1]


def holed(image: bytes) -> bytes:
    """Its header and its end are whole, and 40 bytes in its middle are missing."""
    half = len(image) // 2
    return image[: half - 20] + image[half + 20 :]


def image_folder_of(path: Path, images: list[bytes], labels: list[int]) -> str:
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = path / f"class-{label}" / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(image)
    return f"imagefolder:{path}"


def tar(path: Path, images: list[bytes], labels: list[int]) -> str:
    return f"webdataset:{write_shard(path / 'a.tar', samples(images, labels))}"


def parquet(path: Path, images: list[bytes], labels: list[int]) -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"bytes": image, "path": f"{row}.png"} for row, image in enumerate(images)]
    pq.write_table(pa.table({"img": rows, "label": labels}), path / "a.parquet", row_group_size=2)
    return f"parquet:{path / 'a.parquet'}"


@pytest.mark.parametrize("write", [image_folder_of, tar, parquet])
def test_all_that_cannot_be_used_are_listed_by_the_ids_that_they_have(
    tmp_path: Path, encode: Encode, write: Write
) -> None:
    images = [encode(0), holed(encode(1)), b"", b"no image", encode(4)]
    found = decode_all(write(tmp_path, images, LABELS))
    assert found.num_images == 5
    assert [image.id for image in found.unusable] == [1, 2, 3]
    assert all(image.problem for image in found.unusable)


def test_of_a_whole_set_nothing_is_listed_and_progress_is_told(
    tmp_path: Path, encode: Encode
) -> None:
    told: list[tuple[int, int]] = []
    source = image_folder_of(tmp_path, [encode(seed) for seed in range(5)], LABELS)
    found = decode_all(source, progress=lambda done, total: told.append((done, total)))
    assert found.unusable == ()
    assert told[-1] == (5, 5)


@pytest.mark.parametrize("source", ["digits", "wine-train"])
def test_what_is_no_image_file_is_refused(source: str) -> None:
    with pytest.raises(DataError, match="holds no image files"):
        decode_all(source)
