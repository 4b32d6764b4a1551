from __future__ import annotations

from collections.abc import Callable

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.contents import Contents, read_contents, read_in_parts
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from tests.coordinator.state.conftest import StateBench


def size(part: Contents) -> int:
    return len(part.runs) + len(part.subsets) + len(part.diagnoses)


async def test_parts_are_the_whole_and_none_has_many_records(
    state: StateBench, make_run: Callable[..., RunRecord]
) -> None:
    database = Database.open(state.directory / "lipt.db")
    for number in range(10):
        run = make_run(f"more-{number}")
        await database.save_run(run, run.learners)
    await database.close()
    whole, parts = read_contents(state.directory), list(read_in_parts(state.directory))
    assert max(map(size, parts)) == 4

    def by_id(run: RunRecord) -> str:
        return run.run_id

    assert sorted((run for part in parts for run in part.runs), key=by_id) == sorted(
        whole.runs, key=by_id
    )
    assert tuple(it for part in parts for it in part.subsets) == whole.subsets
    assert tuple(it for part in parts for it in part.diagnoses) == whole.diagnoses
    assert not any(part.problems for part in parts)


def test_parts_of_a_directory_that_is_none_are_refused(state: StateBench) -> None:
    with pytest.raises(StateError, match="there is no state"):
        next(read_in_parts(state.directory / "elsewhere"))
