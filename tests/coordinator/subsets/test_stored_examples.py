from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lipt.common.errors import CorruptBlobError, StateError
from lipt.coordinator.subsets.stored_examples import StoredExamples


@pytest.fixture
def stored(tmp_path: Path) -> StoredExamples:
    path = tmp_path / "blob"
    path.write_bytes(struct.pack("<4q4f", 1, 5, 7, 9, 1.0, 0.5, 0.25, 2.0))
    return StoredExamples(path, 4)


def test_a_run_is_read_alone(stored: StoredExamples) -> None:
    run = stored.read(slice(1, 3))
    assert run.indices_K.tolist() == [5, 7]
    assert run.weights_K.tolist() == [0.5, 0.25]


def test_a_run_ends_where_the_subset_does(stored: StoredExamples) -> None:
    assert stored.read(slice(3, 100)).indices_K.tolist() == [9]


def test_all_of_them_are_what_the_digest_is_defined_over(stored: StoredExamples) -> None:
    whole = stored.read()
    assert len(whole) == len(stored) == 4
    assert whole.indices_K.tobytes() + whole.weights_K.tobytes() == stored.path.read_bytes()


def test_a_file_that_ends_too_soon_is_damaged(stored: StoredExamples) -> None:
    stored.path.write_bytes(stored.path.read_bytes()[:-1])
    assert stored.read(slice(2)).weights_K.tolist() == [1.0, 0.5]
    with pytest.raises(CorruptBlobError, match="ends before example 4 of 4"):
        stored.read(slice(2, 4))


def test_a_file_that_is_gone_is_the_states_fault(stored: StoredExamples) -> None:
    stored.path.unlink()
    with pytest.raises(StateError):
        stored.read()
