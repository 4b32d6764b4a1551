import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, random_split
from torchvision import datasets as vision
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import RandomErasing, ToTensor

import lipt
from lipt.common.errors import ConfigError, DataError
from lipt.data.loading import open_data
from lipt.data.sources.map_style import require_repeatable, without_transforms

# An image and a vector whose mirror image differs.
PIXELS = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
VECTOR = np.arange(4.0)


class Rows:
    """Rows with what else a test gives the data set."""

    def __init__(self, examples: Any, labels: Any, **attributes: Any) -> None:
        self.examples, self.labels = examples, labels
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.examples[row], self.labels[row]


class Transformed(Rows):
    """A data set in torchvision's style."""

    transform: Callable[[Any], Any] | None = None
    target_transform: Callable[[Any], Any] | None = None
    transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        example, label = super().__getitem__(row)
        if self.transform is not None:
            example = self.transform(example)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return (example, label) if self.transforms is None else self.transforms(example, label)


def folder(path: Path, *names: str, each: int = 3) -> Path:
    for place, name in enumerate(names):
        (path / name).mkdir(parents=True)
        for number in range(each):
            Image.fromarray(PIXELS + 10 * place + number).save(path / name / f"{number}.png")
    return path


@pytest.mark.parametrize("example", [PIXELS, VECTOR], ids=["image", "vector"])
def test_the_labels_that_rows_return_are_taken_and_said(
    example: Any, caplog: pytest.LogCaptureFixture
) -> None:
    labels = [0, 1, 2, 0, 1, 2]
    for targets, words in (
        ([0, 1, 2, 0, 2, 2], "returns other labels than its `targets` in rows 4"),
        ([0, 1], "has 2 `targets` for 6 rows"),
        (3, "has 0 `targets` for 6 rows"),
    ):
        caplog.clear()
        data = open_data(Rows([example] * 6, labels, targets=targets, classes=["a", "b", "c"]))
        assert data.labels_N.tolist() == labels
        assert data.class_names == ("a", "b", "c")
        assert words in caplog.text
    caplog.clear()
    open_data(Rows([example] * 6, labels, targets=torch.tensor(labels)))
    assert not caplog.text


@pytest.mark.parametrize("example", [PIXELS, VECTOR], ids=["image", "vector"])
@pytest.mark.parametrize(
    "given",
    [
        {"target_transform": lambda label: label % 2},
        {"transforms": lambda example, label: (example, label % 2)},
        {"transforms": StandardTransform(None, lambda label: label % 2)},
        {"transform": lambda example: 255 - example, "target_transform": lambda label: label % 2},
    ],
    ids=["target", "joint", "standard", "both"],
)
def test_transforms_of_labels_are_applied(example: Any, given: dict[str, Any]) -> None:
    numbers = [0, 1, 2, 3, 3, 2]
    rows = Transformed([example] * 6, numbers, targets=numbers, classes=list("abcd"), **given)
    data = open_data(rows)
    assert data.labels_N.tolist() == [0, 1, 0, 1, 1, 0]
    # Names of the untransformed classes.
    assert data.class_names == ("0", "1")
    subset = lipt.select(rows, fraction=0.5, strategy="uniform", progress=False)
    assert len(subset.apply(rows)) == 3  # type: ignore[arg-type]
    # Examples are not transformed: workers augment.
    plain = open_data(Rows([example] * 6, [0, 1, 0, 1, 1, 0]))
    assert data.fingerprint == plain.fingerprint


def test_a_transform_of_rare_labels_alone_is_noticed() -> None:
    numbers = [0] * 499 + [1] + [0] * 500
    rows = Transformed(
        [PIXELS] * 1000,
        numbers,
        targets=numbers,
        transforms=lambda example, label: (example, 2 if label == 1 else label),
    )
    # Row 499 is none of 64 evenly spaced rows, but the first one of its class.
    assert open_data(rows).labels_N[499] == 2


def test_a_data_set_that_needs_its_transform_keeps_it() -> None:
    class Needing(Transformed):
        def __getitem__(self, row: int) -> tuple[Any, Any]:
            assert self.transform is not None
            return self.transform(self.examples[row]), self.labels[row]

    rows = Needing([PIXELS] * 4, [0, 1, 0, 1], transform=ToTensor())
    assert without_transforms(rows) is rows
    assert open_data(rows).inputs.num_bytes == PIXELS.size


def test_an_image_folder_keeps_names_through_subsets_and_transforms(tmp_path: Path) -> None:
    images = vision.ImageFolder(folder(tmp_path / "a", "ant", "bee", "cat"))
    generator = torch.Generator().manual_seed(0)
    train, test = random_split(images, [5, 4], generator)
    nested = open_data(Subset(train, [3, 0, 1]))
    assert nested.class_names == ("ant", "bee", "cat")
    assert nested.labels_N.tolist() == [images.targets[train.indices[row]] for row in (3, 0, 1)]
    both = open_data(ConcatDataset([train, test]))
    assert both.class_names == ("ant", "bee", "cat")
    other = vision.ImageFolder(folder(tmp_path / "b", "bee", "dog"))
    with pytest.raises(ConfigError, match="parts of a ConcatDataset have the classes"):
        open_data(ConcatDataset([images, other]))
    with pytest.raises(DataError, match=r"the test set \(test data\) has dog, which the training"):
        lipt.fit("resnet8", train, test=Subset(other, range(6)), recipe={"steps": 1})
    turned = vision.ImageFolder(tmp_path / "a", target_transform=lambda label: 2 - label)
    assert open_data(turned).class_names == ("0", "1", "2")
    assert open_data(turned).labels_N.tolist() == [2] * 3 + [1] * 3 + [0] * 3
    assert open_data(Subset(turned, [0, 8])).labels_N.tolist() == [2, 0]


class Flipped(Rows):
    """Mirror images with a probability, drawn by `draw`."""

    probability, draw = 0.5, staticmethod(random.random)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        example, label = super().__getitem__(row)
        return (example[..., ::-1].copy() if self.draw() < self.probability else example), label


@pytest.mark.parametrize("example", [PIXELS[..., 0], VECTOR], ids=["image", "vector"])
@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: float(torch.rand(()))])
@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_random_rows_are_always_refused(
    example: Any, draw: Callable[[], float], probability: float
) -> None:
    for seed in range(5):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - of the user
        torch.manual_seed(seed)
        for size in (4, 100):
            # Half of them are symmetric, which hides a flip.
            examples = [example, np.zeros_like(example)] * (size // 2)
            rows = Flipped(examples, [0, 1] * (size // 2))
            rows.probability, rows.draw = probability, draw  # type: ignore[method-assign]
            with pytest.raises(DataError, match=r"differs between two reads\. Leave out random tr"):
                open_data(rows)


def test_random_erasing_and_random_labels_are_refused() -> None:
    erased = RandomErasing(p=0.1)
    whole = torch.from_numpy(PIXELS).permute(2, 0, 1) / 255
    erasing: Any = Transformed([whole] * 80, [0, 1] * 40, transform=erased)
    rows = Subset(erasing, range(80))
    with pytest.raises(DataError, match="differs between two reads"):
        open_data(rows)
    noisy = Transformed(
        [PIXELS] * 80, [0, 1] * 40, target_transform=lambda label: label ^ (random.random() < 0.1)
    )
    with pytest.raises(DataError, match="differs between two reads"):
        open_data(noisy)


def test_256_reads_find_what_one_read_in_ten_changes() -> None:
    # 64 rows, 4 reads each: 1 - 0.9^256 = 1 - 2e-12.
    reads: list[int] = []
    require_repeatable("data", 1000, lambda row: (reads.append(row) or b"", 0))
    assert len(reads) == 256
    assert len(set(reads)) == 64


def test_the_callers_generators_are_neither_used_nor_moved() -> None:
    class Seeding(Rows):
        def __getitem__(self, row: int) -> tuple[Any, Any]:
            random.seed(row)
            np.random.seed(row)  # noqa: NPY002
            torch.manual_seed(row)
            return self.examples[row] + np.uint8(random.random() * 100), self.labels[row]

    def states() -> list[Any]:
        return [
            random.getstate(),
            np.random.get_state(legacy=False)["state"]["key"].tolist(),  # type: ignore[call-overload] # noqa: NPY002
            torch.get_rng_state().tolist(),
        ]

    rows = Seeding([PIXELS] * 6, [0, 1, 2] * 2)
    before = states()
    subset = lipt.select(rows, fraction=0.5, strategy="uniform", progress=False)
    assert states() == before
    subset.apply(rows)  # type: ignore[arg-type]
    assert states() == before
    torch.manual_seed(7)
    assert open_data(rows).fingerprint == subset.fingerprint


class Broken(Rows):
    def __len__(self) -> int:
        raise OSError("gone")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


X, Y = np.eye(4), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "data is a NoneType, which is no map-style data set. Give "),
        (
            {"train": (X, Y), "test": (X, Y)},
            r"is a dict of 'train', 'test'\. .* as data\['train'\],",
        ),
        (
            {"X": X, "y": Y},
            r"is a dict of 'X', 'y'\. Give one of its values, .* or two as \(X, y\)",
        ),
        (
            (zip(X, Y, strict=True)),
            "data is a zip, which can only be iterated over. Materialize it: list",
        ),
        (Stream(), "data is a Stream, which can only be iterated over"),
        (
            DataLoader(cast("Any", Rows(X, Y))),
            r"is a DataLoader of batches\. Give its data set: loader\.dataset",
        ),
        ([], "data is empty. Give at least one example of each class"),
        ((X[:0], Y[:0]), "data is empty"),
        (Broken(X, Y), r"len\(\) of a Broken failed with OSError: gone\. Give \(X, y\), or"),
        (Rows, "data is a type, which is no map-style"),
        (b"digits", "data is a bytes, which is no map-style"),
        (X, r'a ndarray without a label\. .*give \(X, y\); without labels .*labels="none"'),
        (((X, Y), (X, Y)), r"data is a tuple of 2 data sets\. Give one alone, and a test set"),
        ((Stream(), Stream()), "data is a tuple of 2 data sets"),
    ],
    # Some values have an address in their text.
    ids=map(str, itertools.count()),
)
def test_other_forms_of_data_are_named_with_what_to_give(data: Any, words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words) as refused:
        open_data(data)
    assert len(str(refused.value)) <= 200


def test_splits_of_hugging_face_are_named() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": [[1.0], [2.0]], "label": [0, 1]})
    with pytest.raises(ConfigError, match=r"is a DatasetDict of 'train', 'test'\. Give one of its"):
        open_data(datasets.DatasetDict(train=table, test=table))
    with pytest.raises(ConfigError, match="data is a IterableDataset, which can only be iterated"):
        open_data(table.to_iterable_dataset())
    with pytest.raises(ConfigError, match="data is a tuple of 2 data sets"):
        open_data((table, table))


def test_labels_of_a_hugging_face_transform_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    datasets = pytest.importorskip("datasets")
    for columns in ({"x": [1.0, 2.0, 3.0, 4.0]}, {"x": [[1.0], [2.0], [3.0], [4.0]]}):
        names = datasets.ClassLabel(names=["ant", "bee", "cat"])
        table = datasets.Dataset.from_dict({**columns, "label": [0, 1, 2, 2]})
        table = table.cast_column("label", names)
        assert open_data(table).class_names == ("ant", "bee", "cat")
        turned = table.with_transform(
            lambda batch: {**batch, "label": [2 - label for label in batch["label"]]}
        )
        data = open_data(turned)
        assert data.labels_N.tolist() == [2, 1, 0, 0]
        assert data.class_names == ("0", "1", "2")
        assert "the labels that the transform of the rows returns are taken" in caplog.text


ONE_HOT = [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
SEVERAL = [[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]]


def forms(rows: list[list[int]]) -> dict[str, Any]:
    pandas = pytest.importorskip("pandas")
    array, vectors = np.array(rows), np.eye(4)
    frame = pandas.DataFrame(array, columns=["ant", "bee", "cat"])
    return {
        **{kind: (vectors, array.astype(kind)) for kind in ("int64", "uint8", "bool", "float32")},
        "list": (vectors, rows),
        "tensor": (torch.from_numpy(vectors), torch.from_numpy(array).half()),
        "frame": (vectors, frame),
        "frames": (pandas.DataFrame(vectors), frame),
        "texts": (["one two three", "four five six", "seven eight nine", "ten"], array),
        "dictionary": ({"a": vectors}, array),
        "rows": Rows(vectors, list(torch.from_numpy(array))),
        "images": Rows([PIXELS] * 4, [[float(cell) for cell in row] for row in rows]),
        "names": Rows(
            vectors, [[name for name, cell in zip("abc", row, strict=True) if cell] for row in rows]
        ),
    }


@pytest.mark.parametrize("form", forms(ONE_HOT))
def test_one_label_in_every_row_is_its_class(form: str, caplog: pytest.LogCaptureFixture) -> None:
    data = open_data(forms(ONE_HOT)[form])
    assert data.labels_N.tolist() == [1, 0, 2, 1]
    assert str(data.target) == "3 classes"
    assert "every row has exactly one of 3 labels, taken for its class. For several" in caplog.text
    if form in ("frame", "frames"):
        assert data.class_names == ("ant", "bee", "cat")
    assert str(open_data(forms(SEVERAL)[form]).target) == "3 labels"
    if form not in ("rows", "images", "names"):
        assert str(open_data(forms(ONE_HOT)[form], target="multi-label").target) == "3 labels"


def test_the_last_classes_of_one_hot_vectors_may_be_missing() -> None:
    data = open_data((np.eye(4)[:2], [[0, 1, 0], [1, 0, 0]]))
    assert data.class_names == ("0", "1", "2")


def test_an_attribute_keeps_several_labels_and_numbers() -> None:
    rows = Rows(np.eye(4), ONE_HOT, target="multi-label")
    assert str(open_data(rows).target) == "3 labels"
    # An attribute of that name may be something else.
    assert str(open_data(Rows(np.eye(4), ONE_HOT, target=np.array(ONE_HOT))).target) == "3 classes"
    assert str(open_data((np.eye(4), ONE_HOT), target="number").target) == "3 numbers"


def test_probabilities_are_refused_unless_they_are_numbers_to_predict() -> None:
    soft = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0]])
    for values in (soft, soft.astype(np.float16), torch.from_numpy(soft)):
        with pytest.raises(DataError, match=r"are probabilities of 2 classes\. Give each row's cl"):
            open_data((np.eye(3), values))
    assert str(open_data((np.eye(3), soft), target="number").target) == "2 numbers"
    assert str(open_data((np.eye(3), soft + 1)).target) == "2 numbers"


def test_one_hot_columns_of_a_file_are_a_class(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,ant,bee\n1,0,1\n2,1,0\n3,0,1\n")
    data = lipt.open_dataset(f"csv:{tmp_path}/a.csv?labels=ant,bee")
    assert data.labels_N.tolist() == [1, 0, 1]
    assert data.class_names == ("ant", "bee")


def test_wrong_one_hot_labels_are_found_as_those_of_classes() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 3
    points = 6 * np.eye(3)[labels] + generator.normal(size=(120, 3))
    wrong = labels.copy()
    wrong[:6] = (labels[:6] + 1) % 3
    found = [
        [issue.id for issue in lipt.diagnose((points, given), progress=False).label_issues()]
        for given in (wrong, np.eye(3)[wrong])
    ]
    assert found[0] == found[1]
    assert set(range(6)) <= set(found[1])
