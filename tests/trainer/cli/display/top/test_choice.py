"""What keys do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lipt.common.states import RunState
from lipt.trainer.cli.display.top.choice import Cancelling, Choice, Pane, after_key, chosen_run
from lipt.trainer.views import ServiceView
from tests.trainer.made_up import made_up_run, made_up_service


def service(*run_ids: str, state: RunState = RunState.TRAINING) -> ServiceView:
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
    assert after(keys, service("c", "b", "a")).run_id == run_id


def test_nothing_chosen_is_the_newest_run_whichever_that_is() -> None:
    assert chosen_run(service("b", "a"), Choice()) is not None
    for view in (service("b", "a"), service("c", "b", "a")):
        assert chosen_run(view, Choice()) == view.runs[0]


def test_a_chosen_run_stays_chosen_when_others_come() -> None:
    run = chosen_run(service("d", "c", "b"), after(["down"], service("c", "b")))
    assert run is not None
    assert run.run_id == "b"


def test_tab_goes_round_the_panes() -> None:
    panes = [after(["tab"] * times, None).pane for times in range(4)]
    assert panes == [Pane.LEARNERS, Pane.WORKERS, Pane.QUEUE, Pane.LEARNERS]


@pytest.mark.parametrize(("answer", "wanted"), [("y", Cancelling("b")), ("n", None), ("q", None)])
def test_a_run_is_cancelled_only_after_a_yes(answer: str, wanted: Cancelling | None) -> None:
    view = service("c", "b")
    asked = after(["down", "c"], view)
    assert asked.asked == "b"
    answered, action = after_key(asked, answer, view)
    assert action == wanted
    assert (answered.asked, answered.quits) == ("", False)


def test_a_run_that_has_ended_cannot_be_cancelled() -> None:
    assert after(["c"], service("b", state=RunState.READY)).asked == ""


def test_keys_do_no_harm_where_there_is_nothing_yet() -> None:
    assert after(["up", "down", "c", "x", "y"], None) == Choice()
    assert after(["up", "down", "c", "x", "y"], made_up_service()) == Choice()
    assert after(["q"], None).quits
