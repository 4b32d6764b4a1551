"""What stands on the screen at several sizes, and what keys do; made-up service, lines by hand."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.trainer.cli.display.screen import Screen
from lipt.trainer.cli.display.top_frame import (
    Cancelling,
    Choice,
    Pane,
    Scene,
    after_key,
    chosen_run,
    render,
    render_once,
    soup_curve,
)
from lipt.trainer.views import (
    ComputationView,
    IngredientView,
    ProgressView,
    ServiceView,
    WorkerView,
)
from tests.trainer.made_up import DISCARDED, KEPT, made_up_learner, made_up_run, made_up_service


def service_of(*run_ids: str, state: RunState = RunState.TRAINING) -> ServiceView:
    return made_up_service(
        runs=tuple(made_up_run(run_id=run_id, name=run_id, state=state) for run_id in run_ids)
    )


def after(keys: Sequence[str], view: ServiceView | None) -> Choice:
    choice = Choice()
    for key in keys:
        choice, _ = after_key(choice, key, view)
    return choice


@pytest.mark.parametrize(
    ("keys", "run_id"),
    [
        ([], ""),
        (["down"], "b"),
        (["j", "j", "j"], "a"),
        (["down", "up"], "c"),
        (["up"], "c"),
        (["j", "j", "k"], "b"),
    ],
)
def test_arrows_choose_a_run_and_stop_at_the_ends(keys: list[str], run_id: str) -> None:
    assert after(keys, service_of("c", "b", "a")).run_id == run_id


def test_nothing_chosen_is_the_newest_run_whichever_that_is() -> None:
    assert chosen_run(service_of("b", "a"), Choice()) is not None
    for view in (service_of("b", "a"), service_of("c", "b", "a")):
        assert chosen_run(view, Choice()) == view.runs[0]


def test_a_chosen_run_stays_chosen_when_others_come() -> None:
    run = chosen_run(service_of("d", "c", "b"), after(["down"], service_of("c", "b")))
    assert run is not None
    assert run.run_id == "b"


def test_tab_goes_round_the_panes() -> None:
    panes = [after(["tab"] * times, None).pane for times in range(4)]
    assert panes == [Pane.LEARNERS, Pane.WORKERS, Pane.QUEUE, Pane.LEARNERS]


@pytest.mark.parametrize(("answer", "wanted"), [("y", Cancelling("b")), ("n", None), ("q", None)])
def test_a_run_is_cancelled_only_after_a_yes(answer: str, wanted: Cancelling | None) -> None:
    view = service_of("c", "b")
    asked = after(["down", "c"], view)
    assert asked.asked == "b"
    answered, action = after_key(asked, answer, view)
    assert action == wanted
    assert (answered.asked, answered.quits) == ("", False)


def test_a_run_that_has_ended_cannot_be_cancelled() -> None:
    assert after(["c"], service_of("b", state=RunState.READY)).asked == ""


def test_keys_do_no_harm_where_there_is_nothing_yet() -> None:
    assert after(["up", "down", "c", "x", "y"], None) == Choice()
    assert after(["up", "down", "c", "x", "y"], made_up_service()) == Choice()
    assert after(["q"], None).quits


NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def worker(name: str, **changes: object) -> WorkerView:
    view = WorkerView(name, name, "cpu", {"lipt": "0.1.0"}, "", 3.2)
    return replace(view, **changes)


def busy() -> ServiceView:
    """A run in training at two workers, and one that is being merged."""
    training = made_up_run(
        run_id="t",
        name="trained",
        learners=(
            made_up_learner(0, state=LearnerState.DONE, step=5, num_steps=5, worker="one"),
            made_up_learner(
                1,
                state=LearnerState.LEASED,
                phase=LearnerPhase.TRAINING,
                step=2,
                num_steps=5,
                loss=0.25,
                worker="<b>[red]\x1b[31m",
            ),
            made_up_learner(2, num_steps=5),
        ),
    )
    merged = made_up_run(
        run_id="m",
        name="merged",
        state=RunState.MERGING,
        progress=ProgressView("merging learners", 3, 91),
        learners=(
            made_up_learner(0, state=LearnerState.DONE, ingredient=KEPT),
            made_up_learner(1, state=LearnerState.DONE, ingredient=DISCARDED),
        ),
    )
    return made_up_service(
        now=NOW,
        runs=(training, merged),
        workers=(
            worker("one", certificate_expires_at=NOW + timedelta(days=12)),
            worker("two", assignment="trained/1", idle_reason="does not allow `mine`"),
        ),
        num_workers=2,
        num_runs=2,
        computations=(
            ComputationView(
                "dear", "MakeSoup", "m", 0, True, 12.3, ProgressView("merging learners", 3, 91)
            ),
            ComputationView("dear", "SelectSubset", "t", 2, False, 4.0, None),
        ),
    )


def scene(view: ServiceView | None, choice: Choice | None = None, notice: str = "") -> Scene:
    return Scene("head:50051", view, choice or Choice(), {"t": "about 40 s"}, notice)


def drawn(shown: Scene, width: int = 120, height: int = 40) -> list[str]:
    stream = io.StringIO()
    console = Screen(file=stream, width=width, height=height, force_terminal=False)
    console.print(render(shown, width=width, height=height))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_runs_stand_with_their_stage_what_is_left_and_their_soup() -> None:
    lines = drawn(scene(busy()))
    assert lines[0] == "lipt head:50051  2 runs  2 workers (1 busy)  queue 2  12:00:00 UTC"
    trained, merged = (line.split() for line in lines[2:4])
    assert trained[:2] == [">", "trained"]
    assert "1/3 learners in, 1 out  about 40 s" in lines[2]
    assert merged[:2] == ["merged", "merging"]
    assert "merging learners 3/91" in lines[3]
    assert "50.0%" in lines[3]


def test_learners_of_the_chosen_run_are_shown_with_what_they_do() -> None:
    lines = drawn(scene(busy()))
    (line,) = [line for line in lines if "training  ████░░░░░░ 2/5" in line]
    assert "0.250" in line
    assert "learners of merged   soup ██ 50.0%" in drawn(scene(busy(), Choice("m")))


def test_what_peers_are_called_never_steers_the_terminal() -> None:
    lines = drawn(scene(busy()))
    assert any("<b>[red]\\x1b[31m" in line for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_workers_are_shown_with_their_certificate_and_what_keeps_them() -> None:
    lines = drawn(scene(busy(), Choice(pane=Pane.WORKERS)))
    (one,) = [line for line in lines if line.startswith("one")]
    assert "12 days left" in one
    assert any("trained/1" in line and "does not allow `mine`" in line for line in lines)


def test_queue_is_shown_with_who_waits() -> None:
    lines = drawn(scene(busy(), Choice(pane=Pane.QUEUE)))
    computed, waits = (line for line in lines if line.startswith("dear"))
    assert computed.split()[:6] == ["dear", "MakeSoup", "merged", "computed", "12", "s"]
    assert computed.endswith("its run")
    assert waits.split()[3:4] == ["waits"]
    assert waits.endswith("2")


@pytest.mark.parametrize("pane", Pane)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60)])
def test_a_frame_fits_its_terminal(pane: Pane, width: int, height: int) -> None:
    view = busy()
    many = tuple(made_up_learner(index, num_steps=5) for index in range(100))
    runs = tuple(
        made_up_run(run_id=f"r{number}", name=f"run-{number}", learners=many)
        for number in range(50)
    )
    view = replace(view, runs=runs, workers=view.workers * 50, num_workers=1000)
    lines = drawn(scene(view, Choice("r30", pane), "the coordinator is away"), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any("> run-30" in line for line in lines)


def test_a_notice_and_a_question_have_their_lines() -> None:
    lines = drawn(scene(busy(), Choice(asked="m"), "nobody answers; asking again in 3 s"))
    assert lines[1] == "nobody answers; asking again in 3 s"
    assert lines[-1].startswith("Cancel run merged?")


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (None, "waiting for the coordinator's first answer"),
        (made_up_service(), "There is no run yet. Start one: lipt run start"),
    ],
)
def test_where_there_is_nothing_it_says_what_to_do(view: ServiceView | None, told: str) -> None:
    assert told in drawn(scene(view))


def test_without_workers_it_says_how_to_start_one() -> None:
    lines = drawn(scene(made_up_service(), Choice(pane=Pane.WORKERS)))
    assert any("lipt-worker --coordinator HOST:PORT" in line for line in lines)


def test_once_everything_is_shown_of_whatever_height() -> None:
    stream = io.StringIO()
    Screen(file=stream, width=120).print(render_once(scene(busy()), width=120))
    text = stream.getvalue()
    assert all(head in text for head in ("learners of trained", "workers", "queue"))


def test_the_curve_is_in_the_soup_s_order() -> None:
    def part(position: int, soup_accuracy: float) -> IngredientView:
        return IngredientView(position, 0.1, soup_accuracy, 0.5, kept=True)

    # 0.5, 0.6, 0.7: the lowest, the middle of eight (3.5 rounds to 4), the highest.
    learners = [
        made_up_learner(index, ingredient=part(position, accuracy))
        for index, (position, accuracy) in enumerate([(2, 0.7), (0, 0.5), (1, 0.6)])
    ]
    assert soup_curve(made_up_run(learners=tuple(learners))) == "▁▅█"
    assert soup_curve(made_up_run(learners=tuple(learners[:1]))) == ""
