import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.table import Table

from lipt.common.states import LearnerState, RunState
from lipt.trainer.cli.display.service import Screen, frame_lines, styled, watch_service
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
    return frame_lines("head:50051", view, room, {"t": "about 40 s left"})


def test_everything_is_on_one_screen_as_far_as_there_is_room() -> None:
    lines = drawn(busy())
    assert lines[0] == "lipt head:50051  2 runs  2 workers (1 busy)  queue 2  12:00:00 UTC"
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "trained about 40 s resnet8 training, 1 of 3 learners done" in text
    assert "merged - resnet8 merging, merging learners 3/91" in text
    assert r"1 <b>[red]\x1b[31m - 2/5 0.000 - 0.900 training" in text
    assert "one cpu - 3 s ago 12 days left -" in text
    assert "two cpu trained/1 3 s ago - allows no code" in text
    assert "dear MakeSoup merged computed for 12 s merging learners 3/91 its run" in text
    assert "dear SelectSubset trained waits for 4 s - 2" in text
    lines = drawn(replace(busy(), num_workers=1000), room=1)
    more = [line for line in lines if line.startswith("and ")]
    assert more == [
        *("and 1 more runs", "and 2 more learners", "and 999 more workers", "and 1 more jobs")
    ]
    # The learner in training comes before the others.
    assert any(line.startswith("1 ") and " training" in line for line in lines)


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


def test_it_ends_with_ctrl_c() -> None:
    def views(_: object) -> Iterator[ServiceView]:
        yield busy()
        raise KeyboardInterrupt

    written = io.StringIO()
    console = Screen(file=written, width=150, height=40, force_terminal=True)
    watch_service("head:50051", views, console)
    assert "trained" in written.getvalue()


HOSTILE = "w[red]\n9  fake  row\x1b[2J\x9b2J\u202e:smile:"
SHOWN = r"w[red]\n9  fake  row\x1b[2J\x9b2J\u202e:smile:"


def test_a_string_is_shown_as_it_is_in_whatever_it_stands() -> None:
    written = io.StringIO()
    console = Screen(file=written, width=200, color_system=None)
    table = Table(box=None)
    table.add_column("name")
    table.add_row(HOSTILE)
    console.print(HOSTILE, table, styled(HOSTILE, "bold"))
    lines = [line.strip() for line in written.getvalue().splitlines()]
    assert lines == [SHOWN, "name", SHOWN, SHOWN]
