"""Decoding all: every image that cannot be used is listed, also what a look at its ends passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data import open_dataset
from lipt.common.data.registry import UnusableImage, decode_all
from lipt.common.errors import DataError
from tests.tar_shards import samples, write_shard

Encode = Callable[..., bytes]
Write = Callable[[Path, list[bytes], list[int]], str]
LABELS = [0, 0, 0, 1, 1]


def holed(image: bytes) -> bytes:
    """Its header and its end are whole, and 40 bytes in its middle are missing."""
    half = len(image) // 2
    return image[: half - 20] + image[half + 20 :]


def folder(path: Path, images: list[bytes], labels: list[int]) -> str:
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


@pytest.mark.parametrize("write", [folder, tar, parquet])
def test_all_that_cannot_be_used_are_listed_by_the_ids_that_they_have(
    tmp_path: Path, encode: Encode, write: Write
) -> None:
    images = [encode(0), holed(encode(1)), b"", b"no image", encode(4)]
    found = decode_all(write(tmp_path, images, LABELS))
    assert found.num_images == 5
    assert [image.id for image in found.unusable] == [1, 2, 3]
    assert all(image.problem for image in found.unusable)


@pytest.mark.parametrize("write", [folder, tar, parquet])
def test_what_is_broken_in_its_middle_is_found_though_the_set_can_be_opened(
    tmp_path: Path, encode: Encode, write: Write
) -> None:
    images = [encode(0), encode(1), encode(2), holed(encode(3)), encode(4)]
    source = write(tmp_path, images, LABELS)
    assert len(open_dataset(source, memory_budget_bytes=0)) == 5
    assert [image.id for image in decode_all(source).unusable] == [3]


def test_a_jpeg_that_is_cut_off_is_listed(tmp_path: Path, encode: Encode) -> None:
    images = [encode(seed, kind="JPEG") for seed in range(5)]
    images[2] = images[2][: len(images[2]) // 2]
    assert [image.id for image in decode_all(tar(tmp_path, images, LABELS)).unusable] == [2]


def test_an_image_is_named_by_its_file(tmp_path: Path, encode: Encode) -> None:
    source = folder(tmp_path, [encode(0), b"no image", encode(2), encode(3), encode(4)], LABELS)
    (image,) = decode_all(source).unusable
    assert image == UnusableImage(1, f"{tmp_path}/class-0/1.png", image.problem)
    assert "it is not a whole image" in image.problem


def test_more_than_a_refusal_names_are_listed(tmp_path: Path) -> None:
    source = folder(tmp_path, [b"no image"] * 30, [0] * 15 + [1] * 15)
    found = decode_all(source)
    assert sorted(image.id for image in found.unusable) == list(range(30))


def test_of_a_whole_set_nothing_is_listed_and_progress_is_told(
    tmp_path: Path, encode: Encode
) -> None:
    told: list[tuple[int, int]] = []
    source = folder(tmp_path, [encode(seed) for seed in range(5)], LABELS)
    found = decode_all(source, progress=lambda done, total: told.append((done, total)))
    assert found.unusable == ()
    assert told[-1] == (5, 5)


@pytest.mark.parametrize("source", ["digits", "wine-train"])
def test_what_is_no_image_file_is_refused(source: str) -> None:
    with pytest.raises(DataError, match="holds no image files"):
        decode_all(source)
