from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from lipt.common.data import known_sources, open_dataset
from lipt.common.data.sources.rows import ArrayRows
from lipt.common.errors import ConfigError, DataError, MissingExtraError, UnknownNameError
from lipt.common.inputs.specs import ImageSpec
from tests.cifar_batches import write_cifar

Encode = Callable[..., bytes]


def test_lists_the_sources() -> None:
    assert known_sources() == (
        "digits",
        "digits-train",
        "digits-test",
        "digits-mislabelled",
        "breast_cancer",
        "breast_cancer-train",
        "breast_cancer-test",
        "wine",
        "wine-train",
        "wine-test",
        "pydocs",
        "pydocs-train",
        "pydocs-test",
        "cifar10:PATH",
        "cifar10-test:PATH",
        "cifar100:PATH",
        "cifar100-test:PATH",
        "imagefolder:PATH",
        "csv:PATH",
        "jsonl:PATH",
        "features:PATH",
        "distilled:PATH",
        "parquet:PATH",
        "webdataset:PATH",
        "pairs:PATH?image_tower=package.module:factory&text_tower=package.module:factory",
        "package.module:factory",
    )


@pytest.mark.parametrize("source", ["mnist", "", "MNIST:", "s3://bucket/x", "/data/images"])
def test_unknown_source_is_answered_with_the_list(source: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        open_dataset(source)
    assert str(caught.value) == (
        f"there is no data set {source!r}. There are: {', '.join(known_sources())}."
    )


@pytest.mark.parametrize("source", ["cifar10", "parquet:", "imagefolder"])
def test_a_source_without_its_path_is_told_how_to_name_it(source: str) -> None:
    name = source.rstrip(":")
    with pytest.raises(ConfigError, match=rf"Write {name}:PATH"):
        open_dataset(source)


def test_the_parts_of_digits_are_disjoint_and_of_every_class() -> None:
    everything, train, test = (
        open_dataset(name) for name in ("digits", "digits-train", "digits-test")
    )
    assert (len(train), len(test)) == (1442, 355)
    assert set(test.labels_N.tolist()) == set(range(10))
    rows = sorted(
        part.images(torch.tensor([row])).numpy().tobytes()
        for part in (train, test)
        for row in range(len(part))
    )
    whole = sorted(
        everything.images(torch.tensor([row])).numpy().tobytes() for row in range(len(everything))
    )
    assert rows == whole
    assert len({train.fingerprint, test.fingerprint, everything.fingerprint}) == 3


def test_one_in_twenty_of_the_mislabelled_digits_has_another_class() -> None:
    right, given = open_dataset("digits-train"), open_dataset("digits-mislabelled")
    every = torch.arange(len(right))
    assert torch.equal(given.images(every), right.images(every))
    assert given.fingerprint != right.fingerprint
    wrong_N = given.labels_N != right.labels_N
    assert int(wrong_N.sum()) == 72  # 5% of 1,442, rounded
    assert set(given.labels_N[wrong_N].tolist()) == set(range(10))
    assert torch.equal(open_dataset("digits-mislabelled").labels_N, given.labels_N)


def test_digits_take_no_path() -> None:
    with pytest.raises(ConfigError, match=r"digits takes no path, not 'x'\. Write digits\."):
        open_dataset("digits:x")


@pytest.mark.parametrize("size", [0, -1, 5000])
def test_refuses_sizes_out_of_range(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"the image size {size} is outside 1\.\.4096"):
        open_dataset("digits", image_size=size)


def test_digits_are_scaled_to_bytes() -> None:
    pytest.importorskip("sklearn")
    digits = open_dataset("digits")
    assert len(digits) == 1797
    assert digits.inputs == ImageSpec(1, 8, 8)
    assert digits.class_names == tuple("0123456789")
    # The first row of the file, times 255 / 16: 5, 13, 9, 1 become 79.7, 207.2, 143.4, 15.9.
    assert digits.images(torch.tensor([0]))[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    assert digits.labels_N[:5].tolist() == [0, 1, 2, 3, 4]
    assert digits.labels_N.dtype == torch.int64


def test_digits_are_what_scikit_learn_loads_and_cost_no_import_of_it() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    loaded, digits = datasets.load_digits(), open_dataset("digits")
    expected_NHW = np.rint(loaded.images * 255 / 16).astype(np.uint8)
    assert np.array_equal(digits.images(torch.arange(1797))[:, 0].numpy(), expected_NHW)
    assert np.array_equal(digits.labels_N.numpy(), loaded.target)
    script = "import sys; from lipt.common.data import open_dataset; open_dataset('digits'); "
    script += "print({'sklearn', 'scipy', 'pandas'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"


def test_digits_can_be_enlarged() -> None:
    pytest.importorskip("sklearn")
    digits = open_dataset("digits", image_size=32)
    assert digits.inputs == ImageSpec(1, 32, 32)
    assert digits.fingerprint == open_dataset("digits").fingerprint


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lipt\[demo\]'"):
        open_dataset("digits")


@pytest.fixture
def cifar10_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {f"data_batch_{i}": [i, 1, 0] for i in range(1, 6)} | {"test_batch": [7]}
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(monkeypatch, folder, "CIFAR10", files, num_classes=10, meta="batches.meta")
    return tmp_path


def test_cifar10_reads_the_training_batches_in_order(cifar10_folder: Path) -> None:
    data = open_dataset(f"cifar10:{cifar10_folder}")
    assert len(data) == 15
    assert data.inputs == ImageSpec(3, 32, 32)
    assert data.labels_N.tolist() == [1, 1, 0, 2, 1, 0, 3, 1, 0, 4, 1, 0, 5, 1, 0]
    assert data.class_names[3] == "class 3"
    assert open_dataset(f"cifar10-test:{cifar10_folder}").labels_N.tolist() == [7]
    second = np.random.default_rng(2).integers(0, 256, (3, 3072), np.uint8)
    images = data.images(torch.tensor([3, 4, 5]))
    assert torch.equal(images, torch.from_numpy(second).reshape(3, 3, 32, 32))


def test_cifar10_also_takes_the_directory_of_batches(cifar10_folder: Path) -> None:
    inner = open_dataset(f"cifar10:{cifar10_folder / 'cifar-10-batches-py'}")
    assert inner.fingerprint == open_dataset(f"cifar10:{cifar10_folder}").fingerprint


def test_cifar10_refuses_an_altered_batch(cifar10_folder: Path) -> None:
    path = cifar10_folder / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"not the published ones .*Download https://.*python"):
        open_dataset(f"cifar10:{cifar10_folder}")


@pytest.mark.parametrize(
    ("source", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")]
)
def test_cifar_names_what_is_missing(tmp_path: Path, source: str, folder: str) -> None:
    with pytest.raises(DataError, match=rf"{folder} is missing, .*unpack it in"):
        open_dataset(f"{source}:{tmp_path}")


def test_cifar100_reads_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"train": [99, 0, 7], "test": [5]}
    folder = tmp_path / "cifar-100-python"
    write_cifar(monkeypatch, folder, "CIFAR100", files, num_classes=100, meta="meta")
    data = open_dataset(f"cifar100:{tmp_path}")
    assert data.labels_N.tolist() == [99, 0, 7]
    assert len(data.class_names) == 100
    assert open_dataset(f"cifar100-test:{tmp_path}").labels_N.tolist() == [5]


def test_image_folder_sorts_classes_and_files(image_folder: Path, encode: Encode) -> None:
    (image_folder / "cat" / "notes.txt").write_text("passed over")
    data = open_dataset(f"imagefolder:{image_folder}")
    assert data.class_names == ("cat", "dog")
    assert data.labels_N.tolist() == [0, 0, 0, 1, 1]
    assert data.inputs == ImageSpec(3, 12, 10)
    assert isinstance(data.rows, ArrayRows)
    expected = np.random.default_rng(8).integers(0, 256, (12, 10, 3), np.uint8)
    assert torch.equal(
        data.images(torch.tensor([2]))[0], torch.from_numpy(expected).permute(2, 0, 1)
    )


def test_image_folder_has_the_ids_of_torchvision(image_folder: Path, encode: Encode) -> None:
    from torchvision.datasets import ImageFolder

    (image_folder / "cat" / "sub").mkdir()
    (image_folder / "cat" / "sub" / "a.PNG").write_bytes(encode(50))
    theirs = ImageFolder(str(image_folder))
    ours = open_dataset(f"imagefolder:{image_folder}")
    assert len(ours) == len(theirs) == 6
    for row in range(6):
        image, label = theirs[row]
        example = ours[row]
        assert int(example["label"]) == label
        assert np.array_equal(torch.as_tensor(example["image"]).permute(1, 2, 0), np.asarray(image))


def test_image_folder_of_gray_images_has_one_channel(tmp_path: Path, encode: Encode) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode(mode="L"))
    assert open_dataset(f"imagefolder:{tmp_path}").inputs == ImageSpec(1, 12, 10)
    (tmp_path / "b" / "1.png").write_bytes(encode(mode="RGB"))
    assert open_dataset(f"imagefolder:{tmp_path}").inputs == ImageSpec(3, 12, 10)


def test_image_folder_that_is_missing_or_holds_nothing(tmp_path: Path, encode: Encode) -> None:
    with pytest.raises(DataError, match=r"no directory .*absent\. Name one that holds a directory"):
        open_dataset(f"imagefolder:{tmp_path / 'absent'}")
    with pytest.raises(DataError, match="has to hold a directory for each class"):
        open_dataset(f"imagefolder:{tmp_path}")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(encode())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty.*at least one image in it"):
        open_dataset(f"imagefolder:{tmp_path}")


def test_refuses_a_single_class(tmp_path: Path, encode: Encode) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(encode())
    with pytest.raises(DataError, match="holds 1 class; a classifier needs at least 2"):
        open_dataset(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize("budget", [2**30, 0])
def test_a_corrupt_image_is_named_by_path_and_id(image_folder: Path, budget: int) -> None:
    path = image_folder / "dog" / "0.jpg"
    path.write_bytes(path.read_bytes()[:-20])
    sentence = rf"image 3 of imagefolder:.* \({path}\) cannot be used: .*Replace it, or remove it"
    with pytest.raises(DataError, match=sentence):
        open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=budget)


def test_a_file_that_vanished_is_named(image_folder: Path) -> None:
    data = open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=0)
    (image_folder / "cat" / "1.png").unlink()
    with pytest.raises(DataError, match=r"image 1 of .*1\.png\) cannot be used: .*No such file"):
        data.images(torch.tensor([1]))


def test_home_directory_is_expanded(image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(image_folder.parent))
    assert len(open_dataset("imagefolder:~/pets")) == 5


def test_same_numbers_on_every_opening(image_folder: Path) -> None:
    first, second = (open_dataset(f"imagefolder:{image_folder}", image_size=8) for _ in range(2))
    ids = torch.arange(5)
    assert torch.equal(first.images(ids), second.images(ids))
    assert first.fingerprint == second.fingerprint


def progress_of(calls: list[tuple[int, int]]) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        calls.append((done, total))

    return progress


def test_reports_progress_from_start_to_end(image_folder: Path, monkeypatch: Any) -> None:
    calls: list[tuple[int, int]] = []
    open_dataset(f"imagefolder:{image_folder}", progress=progress_of(calls))
    assert calls[0] == (0, 5)
    assert calls[-1] == (5, 5)
    seconds = iter(range(100))
    monkeypatch.setattr("lipt.common.data.parallel.time.monotonic", lambda: next(seconds))
    calls.clear()
    open_dataset(f"imagefolder:{image_folder}", progress=progress_of(calls))
    assert [done for done, _ in calls] == [0, 1, 2, 3, 4, 5, 5]


def test_an_image_folder_is_opened_without_torchvision(image_folder: Path) -> None:
    script = (
        "import sys\n"
        "from lipt.common.data import open_dataset\n"
        "assert len(open_dataset(sys.argv[1])) == 5\n"
        "print('torchvision' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, f"imagefolder:{image_folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_image_folder_takes_the_files_that_torchvision_takes(
    image_folder: Path, encode: Encode
) -> None:
    (image_folder / "cat" / "notes.txt").write_text("no image")
    (image_folder / "list.csv").write_text("no class")
    (image_folder / "dog" / "linked").symlink_to(image_folder / "cat")
    (image_folder / "dog" / "B.JPEG").write_bytes(encode(7, kind="JPEG"))
    theirs = datasets.ImageFolder(str(image_folder))
    ours = open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=0)
    assert ours.labels_N.tolist() == theirs.targets
    assert [ours.rows.where(row) for row in range(len(ours))] == [  # type: ignore[attr-defined]
        file for file, _ in theirs.samples
    ]


def test_parquet_with_options_is_a_table(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [1.5, 2.5], "label": ["b", "a"]}), tmp_path / "t.parquet")
    opened = open_dataset(f"parquet:{tmp_path / 't.parquet'}?label=label")
    assert str(opened.inputs) == "float32[1]"
    assert opened.labels_N.tolist() == [1, 0]
    with pytest.raises(DataError, match="has 0 columns of the type struct"):
        open_dataset(f"parquet:{tmp_path / 't.parquet'}")
