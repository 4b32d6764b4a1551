from __future__ import annotations

from typing import Any

import pytest

from lipt.common.errors import UnreachableError
from lipt.common.states import RunState
from lipt.trainer.client import watching
from lipt.trainer.client.client import Client
from lipt.v1 import run_pb2


def run_at(revision: int, state: int = run_pb2.RUN_STATE_TRAINING) -> run_pb2.Run:
    return run_pb2.Run(run_id="r-1", revision=revision, state=state)  # type: ignore[arg-type]


def after_revisions(fake: Any) -> list[tuple[str, int]]:
    return [
        (request.run_id, request.after_revision)
        for request in fake.requests_of(run_pb2.WatchRunRequest)
    ]


def test_each_revision_comes_once_and_the_stream_ends_with_the_run(
    fake: Any, client: Client
) -> None:
    ready = run_at(3, run_pb2.RUN_STATE_READY)
    fake.watch_scripts = [[run_at(1), run_at(1), run_at(2), run_at(2), ready]]
    assert [run.revision for run in client.watch("r-1")] == [1, 2, 3]


def test_what_a_run_waits_for_is_news_of_its_own(fake: Any, client: Client) -> None:
    waits = run_at(1)
    waits.waiting = "worker vm is idle"
    ready = run_at(2, run_pb2.RUN_STATE_READY)
    fake.watch_scripts = [[run_at(1), waits, waits, run_at(1), ready]]
    assert [(run.revision, run.waiting) for run in client.watch("r-1")] == [
        (1, ""),
        (1, "worker vm is idle"),
        (1, ""),
        (2, ""),
    ]


def test_a_cut_stream_goes_on_after_the_last_revision(fake: Any, client: Client, cut: Any) -> None:
    fake.watch_scripts = [
        [run_at(1), run_at(2), cut],
        [run_at(2), run_at(3), cut],
        [run_at(4, run_pb2.RUN_STATE_READY)],
    ]
    assert [run.revision for run in client.watch("latest")] == [1, 2, 3, 4]
    # "latest" is what it was at first, whatever has been started since.
    assert after_revisions(fake) == [("latest", 0), ("r-1", 2), ("r-1", 3)]


def test_a_stream_that_ends_before_the_run_is_opened_again(fake: Any, client: Client) -> None:
    fake.watch_scripts = [[run_at(1)], [run_at(2, run_pb2.RUN_STATE_CANCELLED)]]
    assert [run.revision for run in client.watch("r-1")] == [1, 2]


def test_a_run_that_has_ended_before_yields_nothing_new(fake: Any, client: Client) -> None:
    fake.runs = [run_at(7, run_pb2.RUN_STATE_READY)]
    fake.watch_scripts = [[]]
    assert list(client.watch("r-1", after_revision=7)) == []


def test_a_revision_below_the_last_is_still_news(fake: Any, client: Client, cut: Any) -> None:
    # A coordinator whose clock was set back starts lower after its restart.
    fake.watch_scripts = [[run_at(9), cut], [run_at(5, run_pb2.RUN_STATE_READY)]]
    assert [run.state for run in client.watch("r-1")] == [RunState.TRAINING, RunState.READY]


def test_a_coordinator_that_stays_away_is_given_up(fake: Any, cut: Any) -> None:
    fake.watch_scripts = [[run_at(1), cut]]
    with Client(fake.address, reconnect_seconds=0.0) as client:
        changes = client.watch("r-1")
        assert next(changes).revision == 1
        with pytest.raises(UnreachableError, match="going away"):
            next(changes)


def test_a_silent_stream_is_ended(fake: Any, silence: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_IDLE_SECONDS", 0.1)
    fake.watch_scripts = [[run_at(1), silence]]
    with Client(fake.address, reconnect_seconds=0.0) as client:
        changes = client.watch("r-1")
        next(changes)
        with pytest.raises(UnreachableError, match=r"sent nothing for 0\.1 s"):
            next(changes)


def test_closing_a_watch_ends_its_call(fake: Any, client: Client, silence: Any) -> None:
    fake.watch_scripts = [[run_at(1), silence]]
    changes = client.watch("r-1")
    next(changes)
    assert not fake.watch_ended.is_set()
    changes.close()  # type: ignore[attr-defined]
    assert fake.watch_ended.wait(60)
