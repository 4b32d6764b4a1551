from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.common.errors import StateError
from lipt.coordinator.runs.changes import Change, ChangingRun, changed_learners
from lipt.coordinator.state.records import LearnerRecord, RunRecord
from tests.properties import at_most

MakeRun = Callable[..., RunRecord]


class Disk:
    """Takes records one at a time, when the test lets it, or refuses them."""

    def __init__(self, run: RunRecord) -> None:
        self.written: list[RunRecord] = []
        self.learners: list[list[int]] = []
        self.told: list[str] = []
        self.refuses = False
        self._turns = asyncio.Semaphore(0)
        self.record = ChangingRun(run, self.save, self.on_durable)

    async def save(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        await self._turns.acquire()
        if self.refuses:
            raise StateError("the disk is full.")
        self.written.append(run)
        self.learners.append([learner.index for learner in learners])

    def on_durable(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        assert run == self.written[-1] == self.record.shown
        self.told.append(run.message)

    async def turn(self, *, refuses: bool = False) -> None:
        """Take, or refuse, the next record, and let everybody hear of it."""
        self.refuses = refuses
        self._turns.release()
        await settle()

    def ask(self, change: Change) -> asyncio.Task[RunRecord]:
        return asyncio.create_task(self.record.update(change))


async def settle() -> None:
    """Let everything happen that waits for nothing but its turn."""
    for _ in range(10):
        await asyncio.sleep(0)


def saying(word: str) -> Change:
    return lambda run: run.changed(message=run.message + word)


@pytest.fixture
async def disk(make_run: MakeRun) -> Disk:
    return Disk(make_run())


async def test_what_comes_while_a_record_is_written_is_written_as_one(disk: Disk) -> None:
    first = disk.ask(saying("a"))
    await settle()
    others = [disk.ask(saying(word)) for word in "bcd"]
    await settle()
    assert disk.record.shown.message == ""  # nothing is durable yet
    await disk.turn()
    assert (await first).message == "a"
    assert disk.record.shown.message == "a"
    assert not any(task.done() for task in others)
    await disk.turn()
    # Each is given the run as its own change left it.
    assert [task.result().message for task in others] == ["ab", "abc", "abcd"]
    assert disk.told == ["a", "abcd"]


async def test_only_learners_that_changed_are_written(disk: Disk) -> None:
    def change(run: RunRecord) -> RunRecord:
        learner = run.learners[1]
        return run.with_learner(learner.changed(message="x")).with_learner(run.learners[2])

    disk.ask(change)
    await disk.turn()
    assert disk.learners == [[1]]


async def test_what_was_built_upon_a_record_that_was_not_written_falls_with_it(disk: Disk) -> None:
    tasks = [disk.ask(saying("a"))]
    await settle()
    tasks += [disk.ask(saying(word)) for word in "bc"]
    await settle()
    await disk.turn(refuses=True)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StateError] * 3
    assert disk.record.shown.message == ""
    later = disk.ask(saying("d"))
    await disk.turn()
    assert (await later).message == "d"
    assert disk.told == ["d"]


async def test_refusal_and_change_without_effect_wait_for_what_they_rest_on(disk: Disk) -> None:
    def refuse(run: RunRecord) -> RunRecord:
        raise ValueError(run.message)

    tasks = [disk.ask(saying("a")), disk.ask(refuse), disk.ask(lambda run: run)]
    await settle()
    assert not any(task.done() for task in tasks)
    await disk.turn()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes[1:2]] == ["a"]
    assert outcomes[0] == outcomes[2]
    assert len(disk.written) == 1


async def test_refusal_that_rests_on_what_was_not_written_is_the_disk_s(disk: Disk) -> None:
    def refuse(run: RunRecord) -> RunRecord:
        raise ValueError

    tasks = [disk.ask(saying("a")), disk.ask(refuse), disk.ask(lambda run: run)]
    await settle()
    await disk.turn(refuses=True)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StateError] * 3


async def test_where_nothing_is_on_its_way_nothing_is_waited_for(disk: Disk) -> None:
    before = disk.record.shown
    assert await disk.record.update(lambda run: run.changed(message="")) == before
    assert disk.written == []


async def test_caller_that_leaves_takes_nothing_back(disk: Disk) -> None:
    tasks = [disk.ask(saying(word)) for word in "ab"]
    await settle()
    tasks[0].cancel()
    await disk.turn()
    assert (await tasks[1]).message == "ab"
    assert disk.record.shown.message == "ab"


async def test_listener_that_fails_keeps_nobody_from_their_answers(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "told", None)
    tasks = [disk.ask(saying("a"))]
    await settle()
    tasks.append(disk.ask(saying("b")))
    await disk.turn()
    await disk.turn()
    assert [task.result().message for task in tasks] == ["a", "ab"]
    assert "what follows from a change of run r has failed" in caplog.text


def test_learner_that_is_new_has_changed(make_run: MakeRun) -> None:
    run = make_run(num_learners=2)
    assert changed_learners(run.changed(learners=()), run) == list(run.learners)
    equal = run.with_learner(run.learners[0].changed())
    assert changed_learners(run, equal) == []


# What happens, one after the other: somebody asks for a change that appends its number, or that is
# refused or changes nothing; a caller leaves; the disk takes a record, or refuses it.
ASK, REFUSED, NOTHING, LEAVE, TAKEN, FULL = range(6)


@settings(max_examples=at_most(60))
@given(st.lists(st.integers(ASK, FULL), max_size=30))
def test_what_is_shown_is_what_a_store_that_writes_each_change_by_itself_would_show(
    events: list[int],
) -> None:
    asyncio.run(compare(events))


async def compare(events: list[int]) -> None:  # noqa: C901 - a script of six kinds of events
    """Against lists: of the changes that are durable, on their way, and not yet."""
    start = RunRecord.model_construct(run_id="r", message="", learners=())
    disk = Disk(start)
    durable, under_way, waiting = list[str](), list[str](), list[str]()
    asked: list[tuple[str, int, asyncio.Task[RunRecord]]] = []
    fallen: set[str] = set()

    def refuse(run: RunRecord) -> RunRecord:
        raise ValueError(run.message)

    for number, event in enumerate([*events, TAKEN, TAKEN]):
        word = f"{number};"
        if event in (ASK, REFUSED, NOTHING):
            change = (saying(word), refuse, lambda run: run)[event]
            asked.append((word, event, disk.ask(change)))
            if event == ASK:
                waiting.append(word)
            await settle()
        elif event == LEAVE and asked:
            asked.pop()[2].cancel()
            await settle()
        elif event in (TAKEN, FULL) and under_way:
            await disk.turn(refuses=event == FULL)
            if event == TAKEN:
                durable += under_way
            else:
                fallen |= {*under_way, *waiting}
                waiting = []
            under_way = []
        if not under_way:
            under_way, waiting = waiting, []
        assert disk.record.shown.message == "".join(durable)
        for word, kind, task in asked:
            # Answered as soon as it is durable or has fallen, and not before.
            assert kind != ASK or task.done() == (word in durable or word in fallen)
            if task.done():
                require_durable(kind, task, "".join(durable))
    assert len(disk.written) <= len(durable)
    await asyncio.gather(*(task for *_, task in asked), return_exceptions=True)


def require_durable(kind: int, task: asyncio.Task[RunRecord], durable: str) -> None:
    """No answer rests on what may yet be lost; that of the disk itself on nothing."""
    error = task.exception()
    if not isinstance(error, StateError):
        said = str(error) if kind == REFUSED else task.result().message
        assert durable.startswith(said)
