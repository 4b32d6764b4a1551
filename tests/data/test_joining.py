import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lipt
from lipt.common.errors import DataError
from lipt.data.dataset import Dataset
from lipt.data.example_file import open_examples, pack_examples
from lipt.data.held_out import DataForm
from lipt.data.joining import StackedRows, appended, joined, taken
from lipt.data.loading import open_dataset


def ids_of(data: Dataset) -> dict[str, list[int]]:
    return {name: ids.tolist() for name, ids in data.source_ids.items()}


def pictures(folder: Path, shades: dict[str, list[int]]) -> str:
    for name, values in shades.items():
        (folder / name).mkdir(parents=True)
        for place, shade in enumerate(values):
            Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(
                folder / name / f"{place}.png"
            )
    return f"imagefolder:{folder}"


def test_images_in_memory_and_files_are_read_from_one_set(tmp_path: Path) -> None:
    pool = open_dataset(
        pictures(tmp_path / "pool", {"cat": [10, 20], "dog": [30]}), memory_budget_bytes=0
    )
    more = lipt.open_dataset((np.full((2, 3, 8, 8), 40, np.uint8), ["dog", "cat"]))
    both = appended(pool, more)
    assert isinstance(both.rows, StackedRows)
    assert both.labels_N.tolist() == [0, 0, 1, 1, 0]
    ids = torch.tensor([4, 0, 2, 3])
    assert both.images(ids)[:, 0, 0, 0].tolist() == [40, 10, 30, 40]
    assert Image.open(io.BytesIO(both.rows.raw(1))).size == (8, 8)
    assert len(both.rows.raw(3)) == 3 * 8 * 8


def test_parts_become_sources_and_classes_are_matched_by_name(tmp_path: Path) -> None:
    first = open_dataset(pictures(tmp_path / "a", {"cat": [1], "dog": [2]}))
    second = open_dataset(pictures(tmp_path / "b", {"ant": [3], "dog": [4, 5]}))
    both = joined([("a", first), ("b", second)])
    assert both.class_names == ("cat", "dog", "ant")
    assert both.labels_N.tolist() == [0, 1, 2, 1, 1]
    assert ids_of(both) == {"a": [0, 1], "b": [2, 3, 4]}
    with pytest.raises(DataError, match=r"b holds .* and a .*Give sources and a target"):
        joined([("a", first), ("b", lipt.open_dataset((torch.rand(4, 2), [0, 1, 0, 1])))])


def test_numbers_to_predict_keep_the_pools_units() -> None:
    pool = lipt.open_dataset((torch.rand(6, 2), torch.tensor([0.5, 1, 2, 3, 4, 5.5])))
    more = lipt.open_dataset((torch.rand(3, 2), torch.tensor([100.5, 200, 300])))
    both = appended(pool, more)
    assert both.target == pool.target
    assert both.targets_N[6:, 0].tolist() == [100.5, 200, 300]
    assert appended(pool, more, more).fingerprint == appended(both, more).fingerprint


def table_of(rows: list[str], path: Path) -> str:
    path.write_text("\n".join(["age,city,site,y", *rows]) + "\n")
    return f"csv:{path}?label=y"


POOL = ["20,Rome,a,yes", "30,Oslo,b,no", ",Rome,a,no", "50,Bern,b,yes"]


def test_a_columns_values_name_the_sources_and_are_no_feature(tmp_path: Path) -> None:
    plain = open_dataset(table_of(POOL, tmp_path / "pool.csv"))
    named = open_dataset(table_of(POOL, tmp_path / "pool.csv") + "&source=site")
    assert ids_of(named) == {"a": [0, 2], "b": [1, 3]}
    assert plain.source_ids == {}
    assert "site: source" in named.reading
    other = [row.replace(",a,", ",c,") for row in POOL]
    renamed = open_dataset(table_of(other, tmp_path / "other.csv") + "&source=site")
    assert len({plain.fingerprint, named.fingerprint, renamed.fingerprint}) == 3


@pytest.mark.parametrize(
    ("rows", "ages"),
    [
        # One class, a column of missing cells only, and one more column: read as the pool's.
        ([",Rome,c,yes"], [0.0]),
        (["41,Paris,c,no", "43,Rome,c,no"], [41.0, 43.0]),
    ],
)
def test_a_few_rows_are_read_as_the_pool_is_and_travel_so(
    rows: list[str], ages: list[float], tmp_path: Path
) -> None:
    pool = open_dataset(table_of(POOL, tmp_path / "pool.csv") + "&source=site")
    target = DataForm.of(pool).open("the target", table_of(rows, tmp_path / "target.csv"))
    both = appended(pool, target)
    arrived, num_given = open_examples(pack_examples(target, 7), pool, max_examples=10)
    assert num_given == 7
    sent = appended(pool, arrived)
    assert sent.fingerprint == both.fingerprint
    stored = both.examples(torch.arange(4, 4 + len(rows)))
    assert isinstance(stored, dict)
    assert stored["numbers"][:, 0].tolist() == ages
    names = [both.class_names[label] for label in both.labels_N[4:].tolist()]
    assert names == [row.rpartition(",")[2] for row in rows]


def test_taken_examples_are_those_named_in_that_order(tmp_path: Path) -> None:
    folder = open_dataset(
        pictures(tmp_path / "a", {"cat": [1, 2], "dog": [3]}), memory_budget_bytes=0
    )
    for dataset in (folder, open_dataset(f"imagefolder:{tmp_path}/a")):
        some = taken(dataset, torch.tensor([2, 0]))
        assert some.labels_N.tolist() == [1, 0]
        assert some.images(torch.arange(2))[:, 0, 0, 0].tolist() == [3, 1]
    numbers = lipt.open_dataset((torch.arange(8.0).reshape(4, 2), torch.tensor([0.5, 1, 2, 3])))
    assert taken(numbers, torch.tensor([3])).targets_N.tolist() == [[3.0]]
