from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from lipt.common.errors import OtherDataError, RunNotReadyError
from lipt.common.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnsSpec,
    ColumnType,
    ImageSpec,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.runs.holding import (
    find_ready,
    hold_runs_of_other_data,
    how_far,
    why_held,
)
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DataRecord
from tests.coordinator.fakes import DATA
from tests.coordinator.made_up_runs import made_up_run

OWN, FULL = "f" * 64, "full-" + "a" * 64
OTHER = replace(DATA, source="other", fingerprint="e" * 64)


COLUMN = Column("x", ColumnType.FLOAT32, (4,))
DOUBLES = replace(COLUMN, type=ColumnType.FLOAT64)
COLUMNS = {"inputs": ColumnsFormat((ColumnFormat(COLUMN),))}
BOTH = replace(DATA, fingerprint=FULL, sampled_fingerprint=OWN)


@pytest.mark.parametrize(
    ("changed", "data", "words"),
    [
        ({}, BOTH, ""),
        ({"fingerprint": FULL}, BOTH, ""),
        ({}, replace(BOTH, sampled_fingerprint="e" * 64), f"serves fake with {'e' * 64}"),
        ({"fingerprint": FULL}, DATA, f"full fingerprint {FULL}.* with --fingerprint full\\.$"),
        (
            {},
            replace(DATA, inputs=ImageSpec(3, 16, 16)),
            "looks at 1x8x8 images, and this .* has fake as 3x16x16 images.*--image-size",
        ),
        (COLUMNS, replace(DATA, inputs=ColumnsSpec((COLUMN,))), ""),
        (
            COLUMNS,
            replace(DATA, inputs=ColumnsSpec((DOUBLES,))),
            r"looks at x float32\[4\], and .* fake as x float64\[4\].* as the run began\.$",
        ),
    ],
)
def test_a_run_is_held_by_its_kind_of_fingerprint_and_by_its_inputs(
    changed: dict[str, Any], data: DataDescription, words: str
) -> None:
    reason = why_held(made_up_run().changed(**changed), data)
    assert re.search(words, reason) if words else reason == ""


def test_a_run_of_other_data_is_told_both_fingerprints_both_sources_and_the_remedy() -> None:
    told = (
        f"run name-r was made on data with fingerprint {OWN} (mine:data), this coordinator now "
        f"serves other with {'e' * 64}. Start the coordinator with the run's own data"
    )
    for or_else in ("", ", or leave the run out"):
        reason = why_held(made_up_run(), OTHER, source="mine:data", or_else=or_else)
        assert reason == f"{told}{or_else}."


async def test_runs_of_other_data_are_held_and_counted_unless_ended(database: Database) -> None:
    store, events = RunStore(database), Events()
    for run_id, state in (("r", RunState.MERGING), ("done", RunState.READY)):
        await store.add(made_up_run(run_id, state=state))
    await store.add(made_up_run("own").changed(fingerprint=OTHER.fingerprint))
    known = DataRecord(fingerprint=OWN, source="mine:data", num_examples=9, served_at=1.0)
    await database.save(known)
    await hold_runs_of_other_data(store, OTHER, database, events)
    assert "(mine:data)" in store.held("r")
    assert "(mine:data)" in store.held("done")
    assert store.held("own") == ""
    shown = [store.shown_state(run) for run in store.runs()]
    assert shown == [RunState.HELD, RunState.READY, RunState.TRAINING]
    assert events.count(EventKind.RUN_HELD) == 1


async def test_what_waits_for_a_run_that_is_held_is_refused(database: Database) -> None:
    store = RunStore(database)
    await store.add(made_up_run())
    with pytest.raises(RunNotReadyError, match="is training"):
        find_ready(store, "r")
    store.hold("r", "other data.")
    with pytest.raises(OtherDataError, match="other data"):
        find_ready(store, "r")
    ended = await store.update("r", lambda run: run.changed(state=RunState.READY))
    assert find_ready(store, "r") == ended


def test_run_under_way_says_how_far_it_is_and_how_to_follow_it() -> None:
    run = made_up_run()
    run = run.with_learner(run.learners[1].changed(state=LearnerState.DONE))
    assert how_far(run, Progressed()) == (
        "run name-r is training (1 of 3 learners are in). Follow it with: lipt run watch name-r"
    )
    merging = made_up_run(state=RunState.MERGING)
    assert how_far(merging, Progressed("merging learners", 2, 3)) == (
        "run name-r is merging (merging learners, 2 of 3). Follow it with: lipt run watch name-r"
    )
    assert "(waiting for its turn, 3 ahead)" in how_far(
        merging, Progressed("waiting for its turn", ahead=3)
    )
    pending = made_up_run(state=RunState.PENDING)
    assert "run name-r is pending. " in how_far(pending, Progressed())


@pytest.mark.parametrize(
    ("state", "message", "said"),
    [
        (RunState.FAILED, "its workers went home.", "has failed: its workers went home."),
        (RunState.FAILED, "no sentence", "has failed: no sentence."),
        # As the driver's record has it.
        (RunState.CANCELLED, "cancelled", "was cancelled."),
    ],
)
def test_run_that_will_never_be_ready_says_why(state: RunState, message: str, said: str) -> None:
    run = made_up_run(state=state).changed(message=message)
    expected = f"run name-r {said} Start another: lipt run start"
    assert how_far(run, Progressed("merging", 1, 2)) == expected
