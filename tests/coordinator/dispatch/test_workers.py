from __future__ import annotations

import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import ForeignWorkerError, UnknownWorkerError
from lipt.coordinator.access.caller import NO_EVIDENCE, Caller, Evidence
from lipt.coordinator.dispatch import workers as worker_registry
from lipt.coordinator.dispatch.workers import WorkerRecord, WorkerRegistry
from tests.clock import Clock


@pytest.fixture
def registry(clock: Clock) -> WorkerRegistry:
    return WorkerRegistry(clock)


def join(
    registry: WorkerRegistry, instance_id: str, *, shown: Evidence = NO_EVIDENCE, **said: str
) -> WorkerRecord:
    return registry.register(
        instance_id,
        name=said.get("name", instance_id),
        device=said.get("device", "cpu"),
        versions={"lipt": "1.0"},
        allowed_modules=(),
        shown=shown,
    )


def test_the_same_instance_is_the_same_worker(registry: WorkerRegistry) -> None:
    first, again, other = (join(registry, instance) for instance in ("a", "a", "b"))
    assert first.worker_id == again.worker_id != other.worker_id
    assert registry.name(other.worker_id) == "b"
    assert registry.version(other.worker_id) == "1.0"


def test_a_stranger_cannot_register_under_the_id_of_a_worker(registry: WorkerRegistry) -> None:
    owner, stranger = (
        Evidence(Caller(name, name, frozenset({Role.WORKER}), certificate=name))
        for name in ("owner", "stranger")
    )
    worker = join(registry, "a", shown=owner)
    with pytest.raises(ForeignWorkerError, match="is of stranger"):
        join(registry, "a", shown=stranger)
    assert registry.find(worker.worker_id) == worker


def test_a_worker_is_there_while_it_is_heard_or_has_a_reason_to_be_silent(
    registry: WorkerRegistry, clock: Clock
) -> None:
    worker = join(registry, "a")
    clock.now += 90.0
    assert registry.alive(()) == (worker,)
    clock.now += 0.1
    assert registry.alive(()) == ()
    assert registry.alive({worker.worker_id}) == (worker,)
    registry.heard(worker.worker_id)
    assert [it.worker_id for it in registry.alive(())] == [worker.worker_id]


def test_a_worker_that_was_silent_for_an_hour_is_forgotten_and_may_join_again(
    registry: WorkerRegistry, clock: Clock
) -> None:
    silent, heard = join(registry, "silent"), join(registry, "heard")
    clock.now += 3000.0
    registry.heard(heard.worker_id)
    clock.now += 601.0
    join(registry, "next")
    assert registry.find(heard.worker_id)
    assert not registry.find(silent.worker_id)
    assert registry.name(silent.worker_id) == silent.worker_id
    with pytest.raises(UnknownWorkerError, match="Register again"):
        registry.heard(silent.worker_id)
    assert join(registry, "silent").worker_id == silent.worker_id


def test_of_too_many_workers_those_that_were_silent_for_longest_are_forgotten(
    registry: WorkerRegistry, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_registry, "_MAX_WORKERS", 3)
    workers = []
    for name in "abc":
        clock.now += 1.0
        workers.append(join(registry, name))
    registry.heard(workers[0].worker_id)
    join(registry, "d")
    known = [registry.find(worker.worker_id) is not None for worker in workers]
    assert known == [True, False, True]
