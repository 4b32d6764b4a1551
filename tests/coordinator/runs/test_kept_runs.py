from __future__ import annotations

from collections.abc import Callable

from lipt.coordinator.runs.store import KeptRuns
from lipt.coordinator.state.records import RunRecord

MakeRun = Callable[..., RunRecord]


def there(kept: KeptRuns, ids: str) -> str:
    return "".join(run_id for run_id in ids if kept.find(run_id))


def test_run_that_nobody_has_asked_for_the_longest_makes_room(make_run: MakeRun) -> None:
    kept = KeptRuns(most_runs=2, most_learners=100)
    for run_id in "ab":
        kept.keep(make_run(run_id))
    assert kept.find("a") == make_run("a")
    kept.keep(make_run("c"))
    assert (len(kept), there(kept, "abc")) == (2, "ac")


def test_learners_are_counted_as_well_and_one_run_always_stays(make_run: MakeRun) -> None:
    kept = KeptRuns(most_runs=10, most_learners=6)
    for run_id in "ab":
        kept.keep(make_run(run_id, num_learners=3))
    assert there(kept, "ab") == "ab"
    kept.keep(make_run("b", num_learners=4))  # as it is now; seven in all
    assert there(kept, "ab") == "b"
    kept.keep(make_run("c", num_learners=7))
    assert there(kept, "bc") == "c"
    kept.forget("c")
    kept.forget("c")
    kept.keep(make_run("a", num_learners=3))
    kept.keep(make_run("b", num_learners=3))
    assert there(kept, "abc") == "ab"
