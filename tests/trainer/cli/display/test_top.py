from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lipt.common.errors import UnreachableError
from lipt.common.states import LearnerState, RunState
from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.cli.display.top import render, watch
from lipt.trainer.views import ComputationView, ProgressView, ServiceView, WorkerView
from tests.trainer.made_up import DISCARDED, KEPT, made_up_learner, made_up_run, made_up_service

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def busy() -> ServiceView:
    """A run in training at two workers, and one that is being merged."""
    leased = made_up_learner(1, state=LearnerState.LEASED, step=2, worker="<b>[red]\x1b[31m")
    done = [made_up_learner(index, state=LearnerState.DONE) for index in (0, 1)]
    worker = WorkerView("one", "one", "cpu", {}, "", 3.2)
    job = ProgressView("merging learners", 3, 91)
    return made_up_service(
        now=NOW,
        runs=(
            made_up_run(run_id="t", name="trained", learners=(done[0], leased, made_up_learner(2))),
            made_up_run(
                run_id="m",
                name="merged",
                state=RunState.MERGING,
                progress=job,
                learners=(
                    replace(done[0], ingredient=KEPT),
                    replace(done[1], ingredient=DISCARDED),
                ),
            ),
        ),
        workers=(
            replace(worker, certificate_expires_at=NOW + timedelta(days=12)),
            replace(worker, name="two", assignment="trained/1", idle_reason="allows no code"),
        ),
        num_workers=2,
        num_runs=2,
        computations=(
            ComputationView("dear", "MakeSoup", "m", 0, True, 12.3, job),
            ComputationView("dear", "SelectSubset", "t", 2, False, 4.0, None),
        ),
    )


def drawn(view: ServiceView | None, room: int = 9) -> list[str]:
    stream = io.StringIO()
    frame = render("head:50051", view, room, {"t": "about 40 s left"})
    Screen(file=stream, width=150, force_terminal=False).print(frame)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_runs_learners_workers_and_queue_are_on_one_screen() -> None:
    lines = drawn(busy())
    assert lines[0] == "lipt head:50051  2 runs  2 workers (1 busy)  queue 2  12:00:00 UTC"
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "trained training 1/3 learners in, 1 out about 40 s - resnet8 -" in text
    assert "merged merging merging learners 3/91 - 50.0% resnet8 -" in text
    assert r"1 <b>[red]\x1b[31m - 2/5 0.000 - 0.900 training" in text
    assert "one cpu - 3 s ago 12 days left -" in text
    assert "two cpu trained/1 3 s ago - allows no code" in text
    assert "dear MakeSoup merged computed for 12 s merging learners 3/91 its run" in text
    assert "dear SelectSubset trained waits for 4 s - 2" in text


def test_no_table_has_more_rows_than_there_is_room_for() -> None:
    lines = drawn(replace(busy(), num_workers=1000), room=1)
    more = [line for line in lines if line.startswith("and ")]
    assert more == [
        *("and 1 more runs", "and 2 more learners", "and 999 more workers", "and 1 more jobs"),
    ]


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (None, "waiting for the coordinator's first answer"),
        (made_up_service(), "There is no run yet. Start one: lipt run start"),
        (made_up_service(), "There is no worker. Start one: lipt-worker --coordinator HOST:PORT"),
    ],
)
def test_where_there_is_nothing_it_says_what_to_do(view: ServiceView | None, told: str) -> None:
    assert told in drawn(view)


def watched(views: Callable[[Callable[[str], object]], Iterator[ServiceView]]) -> str:
    console = Screen(file=io.StringIO(), width=150, height=40, force_terminal=True)
    watch("head:50051", views, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_it_ends_with_ctrl_c() -> None:
    def views(_: object) -> Iterator[ServiceView]:
        yield busy()
        raise KeyboardInterrupt

    assert "trained" in watched(views)


def test_an_error_of_the_views_ends_it() -> None:
    def views(_: object) -> Iterator[ServiceView]:
        yield busy()
        raise UnreachableError("nobody answers.")

    with pytest.raises(UnreachableError):
        watched(views)
