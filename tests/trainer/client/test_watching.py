from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lipt.common.errors import UnreachableError
from lipt.common.states import RunState
from lipt.trainer.client import watching
from lipt.trainer.client.client import Client
from lipt.v1 import info_pb2, run_pb2


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


def standing(**states: int) -> info_pb2.WatchServiceResponse:
    """Runs of these states; the first letter of the alphabet is the oldest."""
    return info_pb2.WatchServiceResponse(
        runs=[
            run_pb2.Run(
                run_id=name,
                state=state,  # type: ignore[arg-type]
                created_at=Timestamp(seconds=ord(name)),
            )
            for name, state in states.items()
        ]
    )


def test_a_view_of_the_service_has_every_run_as_it_was_last_told(fake: Any, client: Client) -> None:
    training, ready = run_pb2.RUN_STATE_TRAINING, run_pb2.RUN_STATE_READY
    fake.service_scripts = [
        [standing(b=training, a=training), standing(a=ready), standing(c=ready)]
    ]
    views = client.watch_service()
    told = [[(run.run_id, run.state.value) for run in next(views).runs] for _ in range(3)]
    assert told == [
        [("b", "training"), ("a", "training")],
        [("b", "training"), ("a", "ready")],
        [("c", "ready"), ("b", "training"), ("a", "ready")],
    ]


def test_a_view_has_no_more_runs_than_asked_for_besides_those_under_way(
    fake: Any, client: Client
) -> None:
    training, ready = run_pb2.RUN_STATE_TRAINING, run_pb2.RUN_STATE_READY
    fake.service_scripts = [[standing(b=ready, a=training), standing(c=ready)]]
    views = client.watch_service(num_runs=1, interval_seconds=0.5)
    assert [[run.run_id for run in next(views).runs] for _ in range(2)] == [["b", "a"], ["c", "a"]]
    (request,) = fake.requests_of(info_pb2.WatchServiceRequest)
    assert (request.num_runs, request.interval_seconds) == (1, 0.5)


def test_a_cut_view_of_the_service_begins_anew_and_says_so(
    fake: Any, client: Client, cut: Any
) -> None:
    ready = run_pb2.RUN_STATE_READY
    fake.service_scripts = [[standing(a=ready, b=ready), cut], [standing(b=ready)]]
    pauses: list[str] = []
    views = client.watch_service(on_pause=pauses.append)
    assert [[run.run_id for run in next(views).runs] for _ in range(2)] == [["b", "a"], ["b"]]
    assert len(pauses) == 1
    assert "asking again" in pauses[0]
