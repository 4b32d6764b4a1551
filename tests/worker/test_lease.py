from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.errors import (
    LiptError,
    StaleLeaseError,
    TooManyCallsError,
    UnknownRunError,
    UnreachableError,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.v1 import worker_pb2
from lipt.worker.client import LeaseKeeper
from tests.worker.fake_client import FakeClient, make_assignment

# Far more than any machine needs: it is waited so long only by a test that fails.
PATIENCE_SECONDS = 60.0
OFTEN = 0.01
TRAINING = worker_pb2.LEARNER_PHASE_TRAINING


@pytest.fixture
def fake(tmp_path: Path) -> FakeClient:
    return FakeClient(tmp_path)


@pytest.fixture
def events() -> Events:
    return Events()


def keeper(fake: FakeClient, events: Events, *, heartbeat_seconds: float = 3600.0) -> LeaseKeeper:
    assignment = make_assignment(heartbeat_seconds=heartbeat_seconds)
    return LeaseKeeper(fake.client, "w", assignment, events)


def next_beat(fake: FakeClient) -> worker_pb2.LearnerProgress:
    return fake.beats.get(timeout=PATIENCE_SECONDS)


def test_first_heartbeat_says_that_the_learner_is_being_fetched(
    fake: FakeClient, events: Events
) -> None:
    with keeper(fake, events):
        first = next_beat(fake)
    assert first == worker_pb2.LearnerProgress(phase=worker_pb2.LEARNER_PHASE_FETCHING, num_steps=2)


def test_news_go_out_at_once_and_not_with_the_next_heartbeat(
    fake: FakeClient, events: Events
) -> None:
    with keeper(fake, events) as lease:
        next_beat(fake)
        lease.report(TRAINING, 1, 0.5)
        assert next_beat(fake) == worker_pb2.LearnerProgress(
            phase=TRAINING, step=1, num_steps=2, loss=0.5
        )


def test_heartbeats_go_on_without_news(fake: FakeClient, events: Events) -> None:
    with keeper(fake, events, heartbeat_seconds=OFTEN):
        beats = [next_beat(fake) for _ in range(5)]
    assert all(beat == beats[0] for beat in beats)


def test_nothing_is_sent_once_the_keeper_is_left(fake: FakeClient, events: Events) -> None:
    with keeper(fake, events, heartbeat_seconds=OFTEN) as lease:
        next_beat(fake)
    sent = fake.beats.qsize()
    lease.report(TRAINING, 2)
    assert fake.beats.qsize() == sent
    assert not lease.lost.is_set()


@pytest.mark.parametrize("error", [StaleLeaseError("somebody else's."), UnknownRunError("gone.")])
def test_lease_that_is_somebody_else_s_is_lost_and_no_more_heartbeats_are_sent(
    fake: FakeClient, events: Events, error: LiptError
) -> None:
    fake.refusals["heartbeat"] = [error]
    with keeper(fake, events, heartbeat_seconds=OFTEN) as lease:
        lease._thread.join(PATIENCE_SECONDS)
        assert not lease._thread.is_alive()
    assert lease.lost.is_set()
    assert fake.beats.qsize() == 1
    assert events.count(EventKind.RETRIED) == 0


def test_learner_that_is_needed_no_more_is_lost(fake: FakeClient, events: Events) -> None:
    fake.stop_learner = True
    with keeper(fake, events) as lease:
        assert lease.lost.wait(PATIENCE_SECONDS)
    assert fake.beats.qsize() == 1


def test_coordinator_that_is_away_costs_heartbeats_and_not_the_lease(
    fake: FakeClient, events: Events
) -> None:
    fake.refusals["heartbeat"] = [UnreachableError("away."), LiptError("internal error")]
    with keeper(fake, events, heartbeat_seconds=OFTEN) as lease:
        for _ in range(3):
            next_beat(fake)
        assert not lease.lost.is_set()
    assert events.count(EventKind.RETRIED, "heartbeat") == 2


def test_heartbeat_that_came_too_often_is_sent_again_no_sooner_than_it_is_told_to(
    fake: FakeClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    fake.refusals["heartbeat"] = [TooManyCallsError("slowly.", retry_after_seconds=2.5)]
    lease = keeper(fake, events, heartbeat_seconds=OFTEN)
    monkeypatch.setattr(lease._left, "wait", pauses.append)
    with lease:
        for _ in range(2):
            next_beat(fake)
    assert pauses == [2.5]
