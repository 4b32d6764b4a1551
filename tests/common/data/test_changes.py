"""A data set's source that is changed after it was opened."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch

from lipt.common.data import open_dataset
from lipt.common.data.dataset import in_memory

# In memory, and read when it is asked for.
BUDGETS = [2**30, 0]


@pytest.mark.parametrize("budget", BUDGETS)
def test_files_that_are_replaced_are_noticed(image_folder: Path, budget: int) -> None:
    dataset = open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=budget)
    assert not dataset.has_changed()
    path = image_folder / "cat" / "1.png"
    path.write_bytes((image_folder / "cat" / "0.png").read_bytes())
    assert dataset.has_changed()
    assert not open_dataset(f"imagefolder:{image_folder}").has_changed()


def test_digits_do_not_change() -> None:
    pytest.importorskip("sklearn")
    assert not open_dataset("digits").has_changed()


FACTORY = """
import numpy as np

class Rows:
    targets, value, broken = [0, 1, 0, 1], 7, False

    def __len__(self):
        return 4

    def __getitem__(self, row):
        if self.broken:
            raise OSError("gone")
        return np.full((6, 6), self.value * row, np.uint8), row % 2

rows = Rows()

def data():
    return rows
"""


@pytest.mark.parametrize(("name", "value"), [("value", 8), ("broken", True)])
def test_rows_of_a_user_s_own_that_are_read_when_asked_for_are_read_again(
    write_module: Callable[[str, str], None], name: str, value: object
) -> None:
    write_module("lazy", FACTORY)
    dataset = open_dataset("lazy:data", allowed_modules=["lazy"], memory_budget_bytes=0)
    import lazy  # type: ignore[import-not-found]

    assert not dataset.has_changed()
    setattr(lazy.rows, name, value)
    assert dataset.has_changed()


def test_rows_of_a_user_s_own_that_lie_in_memory_stay_as_they_are(
    write_module: Callable[[str, str], None],
) -> None:
    write_module("kept", FACTORY)
    dataset = open_dataset("kept:data", allowed_modules=["kept"])
    import kept  # type: ignore[import-not-found]

    kept.rows.value = 8
    assert not dataset.has_changed()


def test_full_fingerprint_is_of_the_source_as_it_is_and_read_once(
    write_module: Callable[[str, str], None],
) -> None:
    write_module("full", FACTORY)
    dataset = open_dataset("full:data", allowed_modules=["full"])
    before = dataset.full_fingerprint
    assert before.startswith("full-")
    import full  # type: ignore[import-not-found]

    full.rows.value = 8
    assert dataset.full_fingerprint == before
    assert open_dataset("full:data", allowed_modules=["full"]).full_fingerprint != before


def test_labels_that_come_with_the_rows_count_in_a_full_fingerprint(
    write_module: Callable[[str, str], None],
) -> None:
    write_module("listed", FACTORY + "def pairs():\n    return [rows[row] for row in range(4)]\n")
    with_targets = open_dataset("listed:data", allowed_modules=["listed"])
    without = open_dataset("listed:pairs", allowed_modules=["listed"])
    assert without.full_fingerprint == with_targets.full_fingerprint


def test_fingerprints_are_compared_by_their_kind() -> None:
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    dataset = in_memory("made up", ("a", "b"), torch.tensor([0, 1]), "f" * 64, images)
    assert dataset.fingerprint_like("e" * 64) == "f" * 64
    assert dataset.fingerprint_like("full-" + "e" * 64) == dataset.full_fingerprint


def test_a_set_in_memory_can_go_to_another_process() -> None:
    pytest.importorskip("sklearn")
    assert ForkingPickler.dumps(open_dataset("digits"))
