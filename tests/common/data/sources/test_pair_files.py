"""Pairs are found beside each other and in tables, and what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lipt.common.data.sources.pair_files import FoundPairs, find_pairs
from lipt.common.errors import DataError
from tests.coloured_shapes import caption_of, write_folder


def found(path: Path, **columns: str) -> FoundPairs:
    return find_pairs("pairs:x", path, **({"image": "file_name", "caption": "caption"} | columns))


def test_a_folders_pairs_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    captions = [caption_of(row) for row in range(50)]
    write_folder(tmp_path, captions)
    (tmp_path / "part0" / "alone.txt").write_text("no image has this name")
    pairs = found(tmp_path)
    assert [pairs[row][1] for row in range(len(pairs))] == captions
    assert pairs[45][0] == str(tmp_path / "part1" / "0045.png")
    with pytest.raises(IndexError, match="no row 50 in pairs:x with 50 pairs"):
        pairs[50]


def test_images_without_a_caption_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path, ["a", "b", "c"])
    (tmp_path / "part0" / "0001.txt").unlink()
    with pytest.raises(DataError, match=r"1 images have no caption beside them: .*0001\.png\. Put"):
        found(tmp_path)


def test_a_folder_without_images_and_none_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image with a caption in"):
        found(tmp_path)
    with pytest.raises(DataError, match="there is no folder or table"):
        found(tmp_path / "missing")


def test_a_caption_that_is_no_text_is_named_by_its_row(tmp_path: Path) -> None:
    write_folder(tmp_path, ["a", "b"])
    (tmp_path / "part0" / "0001.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"caption of row 1, .*0001\.txt, cannot be read"):
        found(tmp_path).caption(1)


TABLES = {
    "captions.csv": 'file_name,caption\nb/2.png,"one, two"\na/1.png, plain \n',
    "captions.tsv": "file_name\tcaption\nb/2.png\tone, two\na/1.png\tplain\n",
    "captions.jsonl": "\n".join(
        json.dumps({"file_name": name, "caption": caption, "other": 3})
        for name, caption in (("b/2.png", "one, two"), ("a/1.png", "plain"))
    ),
}


@pytest.mark.parametrize("named", ["folder", "table"])
@pytest.mark.parametrize("table", TABLES)
def test_a_table_keeps_its_order_and_names_files_from_its_folder_on(
    tmp_path: Path, table: str, named: str
) -> None:
    (tmp_path / table).write_text(TABLES[table])
    pairs = found(tmp_path if named == "folder" else tmp_path / table)
    assert [pairs[row] for row in range(2)] == [
        (str(tmp_path / "b/2.png"), "one, two"),
        (str(tmp_path / "a/1.png"), "plain"),
    ]


def test_two_tables_empty_cells_and_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "captions.jsonl").write_text('{"file_name": "1.png", "caption": null}\n')
    with pytest.raises(DataError, match=r"1 of 1 rows of .* lack a file name or a caption: rows 0"):
        found(tmp_path)
    (tmp_path / "captions.csv").write_text("file_name,caption\n")
    with pytest.raises(DataError, match=r"holds captions\.csv and captions\.jsonl\. Name"):
        found(tmp_path)
    with pytest.raises(DataError, match="has no rows"):
        found(tmp_path / "captions.csv")
    (tmp_path / "pairs.xlsx").write_text("")
    with pytest.raises(DataError, match=r"pairs\.xlsx is no table of pairs\. Name"):
        found(tmp_path / "pairs.xlsx")


def test_the_stamp_notices_another_caption(tmp_path: Path) -> None:
    write_folder(tmp_path, ["a", "b"])
    pairs = found(tmp_path)
    assert pairs.stamp.holds()
    (tmp_path / "part0" / "0001.txt").write_text("longer than before")
    assert not pairs.stamp.holds()
