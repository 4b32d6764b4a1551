import hashlib
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from lipt.common.errors import ConfigError, DataError, MissingExtraError
from lipt.data.inputs.specs import ColumnsSpec, ImageSpec
from lipt.data.loading import decode_all, default_side, load, open_dataset
from lipt.data.sources.rows import EncodedRows
from tests.data.columns import SIZES, TOKENS, column_rows, counted, write_folder


def test_column_examples_are_read_by_id() -> None:
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
def test_an_impossible_value_names_its_row(name: str, values: list[float], sentence: str) -> None:
    dtype = torch.int16 if name == "tokens" else torch.float32
    rows = column_rows(**{name: torch.tensor(values, dtype=dtype)})
    with pytest.raises(DataError, match=sentence):
        load(rows)


Encode = Callable[..., bytes]
IN_MEMORY, ON_DISK = 2**30, 0


@pytest.mark.parametrize("budget", [IN_MEMORY, ON_DISK])
def test_the_first_20_broken_images_are_named(tmp_path: Path, encode: Encode, budget: int) -> None:
    broken = {f"a/{number + 10}.png": b"no image" for number in range(22)}
    write_folder(tmp_path, {"a/0.png": encode(), "b/0.png": encode(), **broken})
    with pytest.raises(DataError) as refused:
        open_dataset(f"imagefolder:{tmp_path}", memory_budget_bytes=budget)
    head, *lines = str(refused.value).splitlines()
    assert head == (
        f"22 of 24 images of imagefolder:{tmp_path} cannot be used. Replace them, or remove them "
        "and open the data again:"
    )
    assert [line.partition(": ")[0] for line in lines[:20]] == [
        f"image {row} ({tmp_path}/a/{row + 9}.png)" for row in range(1, 21)
    ]
    assert "it is not a whole image" in lines[0]
    assert lines[20:] == ["and 2 more: lipt check --data lists all"]


def test_encoded_images_are_validated_again_only_after_a_change(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch, encode: Encode
) -> None:
    checked = counted(monkeypatch, EncodedRows, "check")
    source = f"imagefolder:{image_folder}"
    first = open_dataset(source, memory_budget_bytes=0)
    # Row 0 says the size, then all.
    assert checked == [0, 0, 1, 2, 3, 4]
    checked.clear()
    second = open_dataset(source, memory_budget_bytes=0)
    assert checked == [0]
    assert (second.inputs, second.note) == (first.inputs, first.note)
    assert torch.equal(second.images(torch.arange(5)), first.images(torch.arange(5)))
    checked.clear()
    (image_folder / "cat" / "1.png").write_bytes(encode(1, (30, 40)))
    side = default_side()
    assert open_dataset(source, memory_budget_bytes=0).inputs == ImageSpec(3, side, side)
    assert set(checked) == {0, 1, 2, 3, 4}


# 3 x 224 x 224 = 150,528 bytes; 224^2 / 64^2 = 12.25.
LARGE = "; a training step takes about 12 times that of --image-size 64"


@pytest.mark.parametrize(
    ("size", "each", "total", "more"),
    [(224, "150.5 kB", "301.1 kB", LARGE), (8, "192 B", "384 B", "")],
)
def test_scaling_cost_is_noted(
    tmp_path: Path, encode: Encode, size: int, each: str, total: str, more: str
) -> None:
    write_folder(tmp_path, {"a/0.png": encode(0, (20, 40)), "b/0.png": encode(0, (30, 30))})
    data = open_dataset(f"imagefolder:{tmp_path}", image_size=size, memory_budget_bytes=0)
    assert data.note == (
        f"its images have sizes from 20 x 30 to 30 x 40 and are scaled to {size} x {size}: "
        f"{each} each, {total} in all, decoded anew whenever they are needed{more}"
    )


def holed(image: bytes) -> bytes:
    """Its header and its end are whole, and 40 bytes in its middle are missing."""
    half = len(image) // 2
    return image[: half - 20] + image[half + 20 :]


def test_all_unusable_images_are_listed_by_their_ids(tmp_path: Path, encode: Encode) -> None:
    images = [encode(0), holed(encode(1)), b"", b"no image", encode(4)]
    write_folder(tmp_path, {f"{at > 2}/{at}.png": image for at, image in enumerate(images)})
    told: list[tuple[int, int]] = []
    found = decode_all(f"imagefolder:{tmp_path}", progress=lambda *call: told.append(call))
    assert (found.num_examples, told[-1]) == (5, (5, 5))
    assert [image.id for image in found.unusable] == [1, 2, 3]
    assert str(found.unusable[0]).startswith(f"image 1 ({tmp_path}/False/1.png): it is not a")
    with pytest.raises(DataError, match="holds no files"):
        decode_all("digits")


def test_the_mislabelled_digits_have_5_percent_wrong_labels() -> None:
    right, given = open_dataset("digits-train"), open_dataset("digits-mislabelled")
    every = torch.arange(len(right))
    assert torch.equal(given.images(every), right.images(every))
    assert given.fingerprint != right.fingerprint
    wrong_N = given.labels_N != right.labels_N
    assert int(wrong_N.sum()) == 72  # 5% of 1,442, rounded
    assert set(given.labels_N[wrong_N].tolist()) == set(range(10))
    assert torch.equal(open_dataset("digits-mislabelled").labels_N, given.labels_N)


def test_digits_equal_scikit_learn_s_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    loaded, digits = datasets.load_digits(), open_dataset("digits")
    expected_NHW = np.rint(loaded.images * 255 / 16).astype(np.uint8)
    assert np.array_equal(digits.images(torch.arange(1797))[:, 0].numpy(), expected_NHW)
    assert np.array_equal(digits.labels_N.numpy(), loaded.target)
    script = "import sys; from lipt.data.loading import open_dataset; open_dataset('digits'); "
    script += "print({'sklearn', 'scipy', 'pandas'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", script], timeout=60) == b"set()\n"
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[demo\]'"):
        open_dataset("digits")


def write_cifar10(folder: Path, files: dict[str, list[int]], patch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    written = []
    for seed, (file, labels) in enumerate(files.items(), start=1):
        data = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), np.uint8)
        content = pickle.dumps({"data": data, "labels": labels})
        (folder / file).write_bytes(content)
        written.append((file, hashlib.md5(content).hexdigest()))
    names = pickle.dumps({"label_names": [f"class {number}" for number in range(10)]})
    (folder / "batches.meta").write_bytes(names)
    patch.setattr(datasets.CIFAR10, "train_list", written[:-1])
    patch.setattr(datasets.CIFAR10, "test_list", written[-1:])
    patch.setitem(datasets.CIFAR10.meta, "md5", hashlib.md5(names).hexdigest())


def test_cifar10_reads_published_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"data_batch_{i}": [i, 1, 0] for i in range(1, 6)} | {"test_batch": [7]}
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder, files, monkeypatch)
    data = open_dataset(f"cifar10:{tmp_path}")
    assert data.inputs == ImageSpec(3, 32, 32)
    assert data.labels_N.tolist() == [1, 1, 0, 2, 1, 0, 3, 1, 0, 4, 1, 0, 5, 1, 0]
    assert data.class_names[3] == "class 3"
    assert open_dataset(f"cifar10-test:{tmp_path}").labels_N.tolist() == [7]
    second = np.random.default_rng(2).integers(0, 256, (3, 3072), np.uint8)
    images = data.images(torch.tensor([3, 4, 5]))
    assert torch.equal(images, torch.from_numpy(second).reshape(3, 3, 32, 32))
    path = folder / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"not the published ones .*Download https://.*python"):
        open_dataset(f"cifar10:{tmp_path}")


def test_missing_or_empty_image_folder_is_refused(tmp_path: Path, encode: Encode) -> None:
    with pytest.raises(DataError, match=r"No such file .*absent'\. It has to hold a directory"):
        open_dataset(f"imagefolder:{tmp_path / 'absent'}")
    with pytest.raises(DataError, match="has to hold a directory for each class"):
        open_dataset(f"imagefolder:{tmp_path}")
    write_folder(tmp_path, {"cat/0.png": encode()})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"^1 of 2 classes .* are empty. Replace .*:\nno image in"):
        open_dataset(f"imagefolder:{tmp_path}")


def test_reports_progress_from_start_to_end(image_folder: Path, monkeypatch: Any) -> None:
    calls: list[tuple[int, int]] = []
    seconds = iter(range(100))
    monkeypatch.setattr("lipt.data.parallel.time.monotonic", lambda: next(seconds))
    open_dataset(f"imagefolder:{image_folder}", progress=lambda *call: calls.append(call))
    assert calls == [(done, 5) for done in (0, 1, 2, 3, 4, 5, 5)]
