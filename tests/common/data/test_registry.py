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
from lipt.common.errors import ConfigError, DataError, MissingExtraError, UnknownNameError
from lipt.common.imports import SCHEMES
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


def test_one_in_twenty_of_the_mislabelled_digits_has_another_class() -> None:
    right, given = open_dataset("digits-train"), open_dataset("digits-mislabelled")
    every = torch.arange(len(right))
    assert torch.equal(given.images(every), right.images(every))
    assert given.fingerprint != right.fingerprint
    wrong_N = given.labels_N != right.labels_N
    assert int(wrong_N.sum()) == 72  # 5% of 1,442, rounded
    assert set(given.labels_N[wrong_N].tolist()) == set(range(10))
    assert torch.equal(open_dataset("digits-mislabelled").labels_N, given.labels_N)


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


@pytest.mark.parametrize("budget", [2**30, 0])
def test_a_corrupt_image_is_named_by_path_and_id(image_folder: Path, budget: int) -> None:
    path = image_folder / "dog" / "0.jpg"
    path.write_bytes(path.read_bytes()[:-20])
    sentence = rf"1 of 5 images of imagefolder:.* cannot be used.*\nimage 3 \({path}\): it is not a"
    with pytest.raises(DataError, match=sentence):
        open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=budget)


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


def test_every_name_with_a_path_is_known_not_to_be_a_module() -> None:
    with_path = {source.partition(":")[0] for source in known_sources() if ":" in source}
    assert with_path - {"package.module"} <= SCHEMES | {"cifar10-test", "cifar100-test"}


@pytest.mark.parametrize(
    ("source", "image_size", "words"),
    [
        ("digits:x", None, r"digits takes no path, not 'x'\. Write digits\."),
        ("digits", 0, r"the image size 0 is outside 1\.\.4096"),
        ("digits", 5000, r"the image size 5000 is outside 1\.\.4096"),
    ],
)
def test_paths_and_sizes_that_cannot_be_used_are_refused(
    source: str, image_size: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        open_dataset(source, image_size=image_size)
