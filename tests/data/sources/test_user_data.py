import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from lipt.common.errors import ConfigError, DataError, FactoryNotAllowedError
from lipt.core.selection.select import find_strategy, select
from lipt.core.signals.signals import Signals, features_of_pairs
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.loading import load, open_dataset
from lipt.data.sources.pairs import FoundPairs, Tower, clusters, nearest, open_pairs
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.user_data import FactoryRows, column_rows, rows_of_data
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import SingleLabel
from tests.coloured_shapes import (
    COLOURS,
    IMAGE_TOWER,
    NARROW,
    TOWERS,
    caption_of,
    swapped,
    write_folder,
)

Write = Callable[[str, str], None]
PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


class Pairs:
    """A map-style data set of pairs, with what else a test gives it."""

    def __init__(self, items: Sequence[tuple[object, object]], **attributes: object) -> None:
        self.items = items
        self.reads: list[int] = []
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[object, object]:
        self.reads.append(row)
        return self.items[row]


def opened(data: object, *, image_size: int | None = None, budget: int = 2**30) -> Dataset:
    return load(FactoryRows("mine:data", data), image_size=image_size, memory_budget_bytes=budget)


def test_arrays_tensors_and_pil_images_are_accepted() -> None:
    expected = torch.from_numpy(PIXELS).permute(2, 0, 1)
    for image in (PIXELS, expected, Image.fromarray(PIXELS)):
        data = opened([(image, 0), (image, 1)])
        assert torch.equal(data.images(torch.tensor([1]))[0], expected)
        # The fingerprint is that of the pixels, whatever holds them.
        assert data.fingerprint == opened([(PIXELS, 0), (PIXELS, 1)]).fingerprint
    for labels in ([2, 0, 1], np.array([2, 0, 1], np.uint8), torch.tensor([2, 0, 1])):
        rows = [(PIXELS, label) for label in labels]
        data = opened(Pairs(rows, targets=labels, classes=["a", "b", "c"]))
        assert data.labels_N.tolist() == [2, 0, 1]
        assert data.class_names == ("a", "b", "c")


def labelled(labels: Any, **attributes: object) -> Dataset:
    rows = [([float(row)], label) for row, label in enumerate(labels)]
    return load(column_rows("mine:data", Pairs(rows, **attributes)))


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ([-1, 1, -1], ("-1", "1"), [0, 1, 0]),
        ([0, 1000, 1000], ("0", "1000"), [0, 1, 1]),
        # A gap is a class that this file may lack.
        ([0, 3, 1], ("0", "1", "2", "3"), [0, 3, 1]),
        (np.array([[2], [0], [1]]), ("0", "1", "2"), [2, 0, 1]),
        ([0.0, 1.0] * 10, ("0", "1"), [0, 1] * 10),
        (np.array([[5.0], [-1.0]] * 10, np.float32), ("-1", "5"), [1, 0] * 10),
    ],
    ids=str,
)
def test_whole_numbers_are_classes_numbered_by_value(
    labels: Any, names: tuple[str, ...], expected: list[int]
) -> None:
    data = labelled(labels)
    assert data.target == SingleLabel(len(names))
    assert data.class_names == names
    assert data.labels_N.tolist() == expected


@pytest.mark.parametrize(
    "labels",
    [
        [0.0, 1.0] * 9 + [0.0],  # too few of each
        [float(row % 21) for row in range(420)],  # too many values
        [0.5, 1.0] * 10,
        [[0.5], [1.0], [2.5]],
        [0.0, 1e30] * 10,
    ],
    ids=["few", "many", "fractions", "column", "large"],
)
def test_fractional_targets_are_numbers(labels: Any) -> None:
    data = labelled(labels)
    assert data.target.kind is TargetKind.NUMBER
    assert data.target.num_outputs == 1


def test_whole_numbers_are_numbers_if_the_data_says_so(caplog: pytest.LogCaptureFixture) -> None:
    labelled(np.array([[0], [1]]))
    assert "its targets are a column, taken for one class each" in caplog.text
    for labels in ([0.0, 1.0] * 10, [3, 5, 9]):
        data = labelled(labels, target="number")
        assert data.target.kind is TargetKind.NUMBER
        assert data.targets_N[:, 0].tolist() == labels
    assert "taken for classes" not in caplog.text
    labelled([0.0, 1.0] * 10)
    assert "floats of 2 whole values, taken for classes. For regression, set" in caplog.text
    caplog.set_level(logging.INFO)
    labelled([-1, 1])
    assert "2 values from -1 to 1, numbered by value" in caplog.text
    caplog.clear()
    labelled(list(range(300)) * 2)
    assert caplog.text == ""
    labelled([*range(301), *range(299)])
    assert "301 whole values in 600 rows, taken for classes. For regression, set" in caplog.text
    # A list of images has its labels in memory, too.
    assert opened([(PIXELS, -1), (PIXELS, 1)]).class_names == ("-1", "1")


def test_a_large_set_is_read_once_for_its_fingerprint_and_then_on_demand() -> None:
    pairs = Pairs([(PIXELS + i, i) for i in range(3)])
    data = opened(pairs, budget=0)
    assert not data.encoded
    # Row 0 for its size, all rows, 86 times each for the comparison, and for the fingerprint.
    assert pairs.reads == [0, *range(3), *([0] * 86 + [1] * 86 + [2] * 86), *range(3)]
    pairs.reads.clear()
    images = data.images(torch.tensor([2, 0, 2]))
    assert pairs.reads == [0, 2, 2]
    assert images[:, 0, 0, 0].tolist() == [2, 0, 2]
    assert data.raw_bytes(1) == (PIXELS + 1).transpose(2, 0, 1).tobytes()
    assert torch.equal(torch.as_tensor(data[1]["image"]), data.images(torch.tensor([1]))[0])
    assert data.labels_N.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (PIXELS, r"row 1 is a ndarray without a label\. Return \(image, label\)"),
        ((PIXELS, "dog"), "the target of row 1 is a str. Targets are single-label, multi-label or"),
        ((PIXELS, 2**70), r"row 1 has the label 1180591620717411303424"),
        (("a.png", 0), r"the image of row 1 is a str\. Return a PIL image"),
        ((PIXELS / 9.0, 0), r"is float64 of shape \(2, 3, 3\)\. .*without Normalize"),
        ((torch.zeros(2, 3, 3, dtype=torch.uint8), 0), r"of shape \(2, 3, 3\).*C x H x W"),
        (
            (Image.new("F", (3, 2)), 0),
            r"the image of row 1 cannot be used: its pixels are of the type F",
        ),
    ],
)
def test_an_unusable_row_is_named(item: object, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        opened(Pairs([(PIXELS, 0), item]))  # type: ignore[list-item]


def test_all_labels_are_of_one_kind_and_numbers_in_64_bits() -> None:
    for labels, words in (
        (["a", 1], "row 0 is a str. Targets are single-label, multi-label or regression"),
        ([1, 2**63], r"row 1 has the label 9223372036854775808, a int\. Return the number"),
    ):
        with pytest.raises(DataError, match=words):
            opened(Pairs([(PIXELS, label) for label in labels]))


def columns_of(*examples: Any, **attributes: object) -> ColumnRows:
    rows = [(example, row % 2) for row, example in enumerate(examples)]
    return column_rows("mine:data", Pairs(rows, **attributes))


@pytest.mark.parametrize(
    ("example", "column"),
    [
        (torch.full((3, 8, 8), 2.0), Column("", ColumnType.FLOAT32, (3, 8, 8))),
        (torch.zeros(20, 8), Column("", ColumnType.FLOAT32, (20, 8))),
        (np.zeros((2, 2)), Column("", ColumnType.FLOAT64, (2, 2))),
        (np.int32(4), Column("", ColumnType.INT32, ())),
        ([1, 2, 3], Column("", ColumnType.INT64, (3,))),
        (0.5, Column("", ColumnType.FLOAT32, (), standardized=True)),
        (torch.zeros(4, 5, 5, dtype=torch.uint8), Column("", ColumnType.UINT8, (4, 5, 5))),
    ],
)
def test_a_tensor_array_or_number_is_one_unnamed_column(example: object, column: Column) -> None:
    rows = rows_of_data("mine:data", [(example, 0), (example, 1)])
    assert isinstance(rows, ColumnRows)
    assert rows.columns == (column,)
    assert rows.labels_N.tolist() == [0, 1]


def test_float_images_in_0_to_1_equal_their_bytes() -> None:
    images = [np.full((8, 8), value, np.uint8) for value in (1, 254)]
    scaled = [(torch.from_numpy(image / np.float32(255)), row) for row, image in enumerate(images)]
    found, same = (
        rows_of_data("mine:data", data)
        for data in (scaled, [(image, row) for row, image in enumerate(images)])
    )
    assert [found.raw(row) for row in (0, 1)] == [same.raw(row) for row in (0, 1)]


def test_vectors_are_standardized_by_default_and_missing_numbers_replaced() -> None:
    vectors = [[1.0, float("nan")], [2.0, 5.0], [3.0, 7.0]]
    rows = columns_of(*vectors)
    assert rows.columns[0].standardized
    assert rows.tensors[""].tolist() == [[1, 6, 0, 1], [2, 5, 0, 0], [3, 7, 0, 0]]
    assert rows.note.startswith("1 missing numbers in 1 columns are flagged and replaced by their")
    assert columns_of(*vectors[1:]).note == ""
    plain = columns_of(*vectors, standardize=False)
    assert not plain.columns[0].standardized
    assert bool(plain.tensors[""].isnan().any())


def test_shorter_examples_are_padded_and_their_lengths_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    first = {"ids": torch.tensor([7, 8, 9]), "one": 1.0}
    rows = columns_of(first, {"ids": torch.tensor([5]), "one": 2.0})
    assert rows.tensors["ids"].tolist() == [[7, 8, 9], [5, 0, 0]]
    assert rows.tensors["one"].tolist() == [1.0, 2.0]
    assert "the tensor 'ids' is 1 to 3 long; shorter ones are padded" in caplog.text


def test_attributes_set_standardization_and_number_of_values() -> None:
    example = {"size": torch.zeros(2), "ids": torch.tensor([3])}
    size, ids = columns_of(example, example, standardize=True, num_values={"ids": 9}).columns
    assert (size.standardized, ids.standardized, size.num_values, ids.num_values) == (1, 0, 0, 9)
    assert columns_of(example, standardize=["size"]).columns[0].standardized
    with pytest.raises(DataError, match="no column 'sizes' to standardize or to number"):
        columns_of(example, standardize=["sizes"])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([([1.0], {"boxes": []})], "row 0 is a dict. Targets are single-label, multi-label or reg"),
        ([("text", 0)], "the tensor of row 0 is text, 'text'.*numbers of its tokens"),
        ([({"x": None}, 0)], "the tensor 'x' of row 0 is a NoneType"),
        (
            [([1.0], 0), ([1, 2], 1)],
            r"row 1 is torch.int64 of shape \(2,\), and torch.float32 of shape \(1,\) in row 0",
        ),
        (
            [(torch.zeros(2, 2), 0), (torch.zeros(2, 3), 1)],
            r"row 1 is .* \(2, 3\), and .* \(2, 2\) in row 0\. Only lengths along the first",
        ),
        ([({"x": 1.0}, 0), ({"y": 1.0}, 1)], "row 1 has the tensors 'y', row 0 'x'"),
        ([(torch.zeros(2, dtype=torch.complex64), 0)], "is torch.complex64 of 1 dimensions"),
        ([{"x": 1.0}], 'row 0 is a dictionary of x.*of tensors with a "label"'),
        ([([], 0), ([], 1)], "the tensor is empty in all rows"),
    ],
)
def test_an_unusable_row_of_columns_is_named(rows: list[Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        column_rows("mine:data", rows)


SWAPS = ((7, 23), (11, 40), (2, 58))
WRONG = sorted(row for swap in SWAPS for row in swap)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "pairs", swapped(60, SWAPS))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line in `image` for each time that a tower was made."""
    monkeypatch.setenv("COLOURED_SHAPES_CALLS", str(tmp_path))
    return tmp_path / "image"


def opened_pairs(folder: Path, options: str = "&clusters=5") -> Dataset:
    source = f"pairs:{folder}?{TOWERS}&size=24{options}"
    return open_dataset(source, allowed_modules=["tests.coloured_shapes"])


@pytest.mark.parametrize("options", ["&clusters=5", "&clusters=5&batch=7"])
def test_the_filter_drops_exactly_the_swapped_captions(folder: Path, options: str) -> None:
    dataset = opened_pairs(folder, options)
    own = features_of_pairs(dataset)
    assert own is not None
    paired = own.paired_features_NP
    signals = Signals(
        torch.empty(60, 0), own.features_ND, dataset.labels_N, paired_features_NP=paired
    )
    strategy = find_strategy("clip_score")
    kept = select(strategy, signals, 54, balanced=False, seed=0).indices_K.tolist()
    assert sorted(set(range(60)) - set(kept)) == WRONG


def test_class_names_give_zero_shot_labels(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a photo of something {colour}\n\n" for colour in COLOURS))
    dataset = opened_pairs(folder, f"&classes={prompts}")
    assert dataset.labels_N.tolist() == [row % 5 for row in range(60)]
    assert dataset.class_names[1] == "a photo of something green"


def test_embeddings_have_length_one_and_are_recomputed_for_changed_pairs(
    folder: Path, calls: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.write_text("some")
    options = f"&clusters=5&weights={weights}"
    first = opened_pairs(folder, options)
    again = opened_pairs(folder, options)
    assert calls.read_text().splitlines() == ["made"]
    assert again.fingerprint == first.fingerprint
    assert isinstance(again.rows, ColumnRows)
    assert again.rows.paired_NP is not None
    for rows in (again.rows.tensors[""], again.rows.paired_NP):
        assert rows.norm(dim=1).tolist() == pytest.approx([1.0] * 60)
    weights.write_text("other ones")
    opened_pairs(folder, options)
    assert len(calls.read_text().splitlines()) == 2
    assert not first.has_changed()
    (folder / "part0" / "0007.txt").write_text(caption_of(7))
    assert first.has_changed()
    assert opened_pairs(folder, options).fingerprint != first.fingerprint
    opened_pairs(folder, "&clusters=6")
    assert len(calls.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ("&clusters=1", ConfigError, "clusters=1 is not a whole number in 2"),
        ("&colour=red", ConfigError, "there is no option 'colour'"),
        ("&clusters=5&classes=x", ConfigError, "classes= and clusters= exclude each other"),
        ("&classes=/missing/prompts", DataError, "the classes in /missing/prompts cannot be read"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    folder: Path, options: str, error: type[ConfigError | DataError], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        opened_pairs(folder, options)


def test_invalid_towers_prompts_and_images_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Add text_tower=module:function"):
        open_dataset(f"pairs:{folder}?image_tower={IMAGE_TOWER}", allowed_modules=["tests"])
    with pytest.raises(FactoryNotAllowedError, match=r"tests\.coloured_shapes"):
        open_dataset(f"pairs:{folder}?{TOWERS}")
    source = f"pairs:{folder}?image_tower={IMAGE_TOWER}&text_tower={NARROW}&size=24"
    with pytest.raises(DataError, match=r"gives 6 columns, and the text tower .* 1\. Give two"):
        open_dataset(source, allowed_modules=["tests"])
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("red\nred\n")
    with pytest.raises(DataError, match="has 2 prompts, 1 of them different"):
        opened_pairs(folder, f"&classes={prompts}")
    (folder / "part0" / "0003.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"image 3 of pairs:.*0003\.png\) cannot be used"):
        opened_pairs(folder)


def tower(given: Any) -> Tower:
    return Tower("mine:tower", lambda: lambda _: given)


def test_embeddings_are_normalized_and_invalid_ones_refused() -> None:
    rows = tower(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.bfloat16)).rows(None, 2)
    assert rows.dtype == torch.float32
    assert rows.tolist() == [pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    for given, complaint in (
        (torch.ones(2), r"gives torch\.float32 of shape \[2\] for a batch of 2"),
        (torch.ones(2, 4, dtype=torch.int64), r"gives torch\.int64"),
        (torch.tensor([[1.0], [torch.nan]]), "values that are not finite"),
    ):
        with pytest.raises(DataError, match=f"the tower mine:tower .*{complaint}"):
            tower(given).rows(None, 2)
    factories: list[Any] = [lambda: 3, lambda _: 3]
    for factory, complaint in zip(factories, ("returns a int", "missing 1 requ"), strict=True):
        with pytest.raises(ConfigError, match=f"mine:tower.*{complaint}"):
            Tower("mine:tower", factory).rows(None, 1)


def test_separate_clusters_are_found_and_ties_take_the_first() -> None:
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    rows = torch.tensor([[0.6, 0.8], [0.8, 0.6], [0.0, 0.0]])
    assert nearest(rows, centres).tolist() == [1, 0, 0]
    generator = torch.Generator().manual_seed(2)
    true = torch.arange(120) % 4
    noise = 0.3 * torch.randn(120, 4, generator=generator)
    rows = functional.normalize(5 * torch.eye(4)[true] + noise, dim=1)
    found = nearest(rows, clusters(rows, 4))
    assert len(set(zip(true.tolist(), found.tolist(), strict=True))) == 4
    assert torch.equal(found, nearest(rows, clusters(rows, 4)))


def open_pairs_at(path: Path) -> FoundPairs:
    return open_pairs(f"pairs:{path}")


def test_a_folders_pairs_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    captions = [caption_of(row) for row in range(50)]
    write_folder(tmp_path, captions)
    (tmp_path / "part0" / "alone.txt").write_text("no image has this name")
    pairs = open_pairs(f"pairs:{tmp_path}?image_tower=there.is:none")
    with pytest.raises(ConfigError, match="names no pairs"):
        open_pairs("digits")
    assert [pairs[row][1] for row in range(len(pairs))] == captions
    assert pairs[45][0] == str(tmp_path / "part1" / "0045.png")
    with pytest.raises(IndexError, match=r"no row 50 in pairs:.* with 50 pairs"):
        pairs[50]


def test_unusable_captions_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image with a caption in"):
        open_pairs_at(tmp_path)
    with pytest.raises(DataError, match=r"missing is no table of pairs\. Name .* or a folder"):
        open_pairs_at(tmp_path / "missing")
    write_folder(tmp_path, ["a", "b", "c"])
    (tmp_path / "part0" / "0001.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"caption of row 1, .*0001\.txt, cannot be read"):
        open_pairs_at(tmp_path).caption(1)
    (tmp_path / "part0" / "0001.txt").unlink()
    with pytest.raises(DataError, match=r"1 images have no caption beside them: .*0001\.png\. Put"):
        open_pairs_at(tmp_path)


TABLES = {
    "captions.csv": 'file_name,caption\nb/2.png,"one, two"\na/1.png, plain \n',
    "captions.tsv": "file_name\tcaption\nb/2.png\tone, two\na/1.png\tplain\n",
    "captions.jsonl": '{"file_name": "b/2.png", "caption": "one, two", "other": 3}\n'
    '{"file_name": "a/1.png", "caption": "plain"}\n',
}


def test_a_pair_table_keeps_its_order_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    expected = [(str(tmp_path / "b/2.png"), "one, two"), (str(tmp_path / "a/1.png"), "plain")]
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
        pairs = open_pairs_at(tmp_path / name)
        assert [pairs[row] for row in range(2)] == expected
    (tmp_path / "captions.jsonl").write_text('{"file_name": "1.png", "caption": null}\n')
    with pytest.raises(DataError, match=r"1 of 1 rows of .* lack a file name or a caption: rows 0"):
        open_pairs_at(tmp_path / "captions.jsonl")
    (tmp_path / "captions.csv").write_text("file_name,caption\n")
    with pytest.raises(DataError, match="has no rows"):
        open_pairs_at(tmp_path / "captions.csv")
    (tmp_path / "pairs.xlsx").write_text("")
    with pytest.raises(DataError, match=r"pairs\.xlsx is no table of pairs\. Name"):
        open_pairs_at(tmp_path / "pairs.xlsx")
