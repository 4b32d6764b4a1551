"""Pairs are found in folders and tables, embedded once, and chosen from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from lipt.common.data import open_dataset, open_pairs
from lipt.common.data.dataset import Dataset
from lipt.common.data.sources.pairs import FoundPairs, Tower, clusters, nearest
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.errors import ConfigError, DataError, FactoryNotAllowedError
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import features_of_pairs
from tests.coloured_shapes import (
    COLOURS,
    IMAGE_TOWER,
    NARROW,
    TOWERS,
    caption_of,
    swapped,
    write_folder,
)

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
    kept = select(strategy, signals, 54, balanced=False, seed=0, options={}).indices_K.tolist()
    assert sorted(set(range(60)) - set(kept)) == WRONG


def test_named_classes_are_zero_shot(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a photo of something {colour}\n\n" for colour in COLOURS))
    dataset = opened_pairs(folder, f"&classes={prompts}")
    assert dataset.labels_N.tolist() == [row % 5 for row in range(60)]
    assert dataset.class_names[1] == "a photo of something green"


def test_rows_have_length_one_and_are_embedded_anew_where_their_origin_has_changed(
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
        ("&clusters=5&classes=x", ConfigError, "classes= and clusters= are two ways"),
        ("&classes=/missing/prompts", DataError, "the classes in /missing/prompts cannot be read"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    folder: Path, options: str, error: type[ConfigError | DataError], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        opened_pairs(folder, options)


def test_towers_prompts_and_images_that_cannot_be_used_are_refused(
    folder: Path, tmp_path: Path
) -> None:
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


def test_rows_are_divided_by_their_length_and_others_refused() -> None:
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


def test_clusters_that_lie_apart_are_found_and_the_first_of_equals_is_nearest() -> None:
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
    # No tower is imported.
    pairs = open_pairs(f"pairs:{tmp_path}?image_tower=there.is:none")
    with pytest.raises(ConfigError, match="names no pairs"):
        open_pairs("digits")
    assert [pairs[row][1] for row in range(len(pairs))] == captions
    assert pairs[45][0] == str(tmp_path / "part1" / "0045.png")
    with pytest.raises(IndexError, match=r"no row 50 in pairs:.* with 50 pairs"):
        pairs[50]


def test_captions_and_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
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


def test_a_table_keeps_its_order_and_names_files_from_its_folder_on(tmp_path: Path) -> None:
    expected = [(str(tmp_path / "b/2.png"), "one, two"), (str(tmp_path / "a/1.png"), "plain")]
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
        for path in (tmp_path, tmp_path / name):
            pairs = open_pairs_at(path)
            assert [pairs[row] for row in range(2)] == expected
        (tmp_path / name).unlink()
    (tmp_path / "captions.jsonl").write_text('{"file_name": "1.png", "caption": null}\n')
    with pytest.raises(DataError, match=r"1 of 1 rows of .* lack a file name or a caption: rows 0"):
        open_pairs_at(tmp_path)
    (tmp_path / "captions.csv").write_text("file_name,caption\n")
    with pytest.raises(DataError, match=r"holds captions\.csv and captions\.jsonl\. Name"):
        open_pairs_at(tmp_path)
    with pytest.raises(DataError, match="has no rows"):
        open_pairs_at(tmp_path / "captions.csv")
    (tmp_path / "pairs.xlsx").write_text("")
    with pytest.raises(DataError, match=r"pairs\.xlsx is no table of pairs\. Name"):
        open_pairs_at(tmp_path / "pairs.xlsx")
