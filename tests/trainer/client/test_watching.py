from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lipt.common.errors import UnreachableError
from lipt.common.states import RunState
from lipt.trainer.client import watching
from lipt.trainer.client.client import Client
from lipt.v1 import info_pb2, run_pb2
from tests.relay import Fault, Relay, answer, cut, silence
from tests.service import READY, SMALLEST, Service


def run_at(revision: int, state: int = run_pb2.RUN_STATE_TRAINING) -> run_pb2.Run:
    return run_pb2.Run(run_id="r-1", revision=revision, state=state)  # type: ignore[arg-type]


def shown(*runs: run_pb2.Run, then: Fault | None = None) -> Fault:
    return answer(*(run_pb2.WatchRunResponse(run=run) for run in runs), then=then)


def shown_first(*runs: run_pb2.Run) -> Fault:
    return answer(run_pb2.GetRunResponse(run=runs[0]))


def after_revisions(relay: Relay) -> list[tuple[str, int]]:
    return [
        (request.run_id, request.after_revision)
        for request in relay.requests_of(run_pb2.WatchRunRequest)
    ]


@pytest.fixture
def waiting_run(client: Client) -> str:
    """A run whose learners nobody trains."""
    return client.start_run(SMALLEST).run_id


def test_a_watch_shows_a_run_until_it_has_ended(client: Client, waiting_run: str) -> None:
    states = []
    for run in client.watch(waiting_run):
        if run.state is RunState.TRAINING and RunState.TRAINING not in states:
            client.cancel(waiting_run)
        states.append(run.state)
    assert RunState.TRAINING in states
    assert states[-1] is RunState.CANCELLED


def test_a_run_that_has_ended_before_yields_nothing_new(
    service: Service, relay: Relay, client: Client
) -> None:
    revision = service.ready.revision
    assert [run.revision for run in client.watch(READY)] == [revision]
    relay.next("WatchRun", answer())
    assert list(client.watch(READY, after_revision=revision)) == []


def test_each_revision_comes_once_and_the_stream_ends_with_the_run(
    relay: Relay, client: Client
) -> None:
    ready = run_at(3, run_pb2.RUN_STATE_READY)
    relay.next("WatchRun", shown(run_at(1), run_at(1), run_at(2), run_at(2), ready))
    assert [run.revision for run in client.watch("r-1")] == [1, 2, 3]


def test_what_a_run_waits_for_is_news_of_its_own(relay: Relay, client: Client) -> None:
    waits = run_at(1)
    waits.waiting = "worker vm is idle"
    ready = run_at(2, run_pb2.RUN_STATE_READY)
    relay.next("WatchRun", shown(run_at(1), waits, waits, run_at(1), ready))
    assert [(run.revision, run.waiting) for run in client.watch("r-1")] == [
        (1, ""),
        (1, "worker vm is idle"),
        (1, ""),
        (2, ""),
    ]


def test_a_cut_stream_goes_on_after_the_last_revision(relay: Relay, client: Client) -> None:
    relay.next(
        "WatchRun",
        shown(run_at(1), run_at(2), then=cut()),
        shown(run_at(2), run_at(3), then=cut()),
        shown(run_at(4, run_pb2.RUN_STATE_READY)),
    )
    assert [run.revision for run in client.watch("latest")] == [1, 2, 3, 4]
    # "latest" is what it was at first, whatever has been started since.
    assert after_revisions(relay) == [("latest", 0), ("r-1", 2), ("r-1", 3)]


def test_a_stream_that_ends_before_the_run_is_opened_again(relay: Relay, client: Client) -> None:
    relay.next("WatchRun", shown(run_at(1)), shown(run_at(2, run_pb2.RUN_STATE_CANCELLED)))
    relay.next("GetRun", shown_first(run_at(1)))
    assert [run.revision for run in client.watch("r-1")] == [1, 2]


def test_a_revision_below_the_last_is_still_news(relay: Relay, client: Client) -> None:
    # A coordinator whose clock was set back starts lower after its restart.
    ready = run_at(5, run_pb2.RUN_STATE_READY)
    relay.next("WatchRun", shown(run_at(9), then=cut()), shown(ready))
    assert [run.state for run in client.watch("r-1")] == [RunState.TRAINING, RunState.READY]


def test_a_coordinator_that_stays_away_is_given_up(relay: Relay, waiting_run: str) -> None:
    relay.every("WatchRun", cut(after=1))
    with Client(relay.address, reconnect_seconds=0.0) as client:
        changes = client.watch(waiting_run)
        assert next(changes).run_id == waiting_run
        with pytest.raises(UnreachableError, match="going away"):
            next(changes)


def test_a_silent_stream_is_ended(
    relay: Relay, waiting_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_IDLE_SECONDS", 0.1)
    relay.next("WatchRun", silence(after=1))
    with Client(relay.address, reconnect_seconds=0.0) as client:
        changes = client.watch(waiting_run)
        next(changes)
        with pytest.raises(UnreachableError, match=r"sent nothing for 0\.1 s"):
            next(changes)


def test_closing_a_watch_ends_its_call(relay: Relay, client: Client, waiting_run: str) -> None:
    changes = client.watch(waiting_run)
    next(changes)
    call = relay.calls[-1]
    assert not call.ended.is_set()
    changes.close()  # type: ignore[attr-defined]
    assert call.ended.wait(60)


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


def test_a_view_of_the_service_has_its_runs_and_workers(relay: Relay, client: Client) -> None:
    view = next(client.watch_service(num_runs=200, interval_seconds=0.5))
    assert READY in {run.name for run in view.runs}
    assert view.num_runs >= len(view.runs)
    (request,) = relay.requests
    assert (request.num_runs, request.interval_seconds) == (200, 0.5)


def test_a_view_of_the_service_has_every_run_as_it_was_last_told(
    relay: Relay, client: Client
) -> None:
    training, ready = run_pb2.RUN_STATE_TRAINING, run_pb2.RUN_STATE_READY
    relay.next(
        "WatchService",
        answer(standing(b=training, a=training), standing(a=ready), standing(c=ready)),
    )
    views = client.watch_service()
    told = [[(run.run_id, run.state.value) for run in next(views).runs] for _ in range(3)]
    assert told == [
        [("b", "training"), ("a", "training")],
        [("b", "training"), ("a", "ready")],
        [("c", "ready"), ("b", "training"), ("a", "ready")],
    ]


def test_a_view_has_no_more_runs_than_asked_for_besides_those_under_way(
    relay: Relay, client: Client
) -> None:
    training, ready = run_pb2.RUN_STATE_TRAINING, run_pb2.RUN_STATE_READY
    relay.next("WatchService", answer(standing(b=ready, a=training), standing(c=ready)))
    views = client.watch_service(num_runs=1)
    assert [[run.run_id for run in next(views).runs] for _ in range(2)] == [["b", "a"], ["c", "a"]]


def test_a_cut_view_of_the_service_begins_anew_and_says_so(relay: Relay, client: Client) -> None:
    ready = run_pb2.RUN_STATE_READY
    relay.next(
        "WatchService",
        answer(standing(a=ready, b=ready), then=cut()),
        answer(standing(b=ready)),
    )
    pauses: list[str] = []
    views = client.watch_service(on_pause=pauses.append)
    assert [[run.run_id for run in next(views).runs] for _ in range(2)] == [["b", "a"], ["b"]]
    assert len(pauses) == 1
    assert "asking again" in pauses[0]
