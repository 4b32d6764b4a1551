from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any, cast

import pytest

from lipt.common.access.roles import Role
from lipt.coordinator.access.caller import ANYBODY, Caller, Evidence, note_caller
from lipt.coordinator.compute.messages import OnProgress, Progressed
from lipt.coordinator.rpc import subsets as module
from lipt.coordinator.rpc.limits import shown_by
from lipt.coordinator.rpc.subsets import Answering
from lipt.coordinator.rpc.workers import unless


async def test_only_the_latest_report_is_told() -> None:
    let_go = asyncio.Event()

    async def answer(report: OnProgress) -> str:
        report(Progressed("first", 1, 3))
        report(Progressed("second", 2, 3))
        await let_go.wait()
        return "done"

    with Answering(answer) as answering:
        assert await answering.next_report() == Progressed("second", 2, 3)
        let_go.set()
        assert await answering.next_report() is None
        assert answering.result() == "done"


async def test_silence_is_broken_by_what_was_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SIGN_OF_LIFE_SECONDS", 0.01)

    async def answer(report: OnProgress) -> None:
        report(Progressed("thinking", 0, 0))
        await asyncio.Event().wait()

    with Answering(answer) as answering:
        told = [await answering.next_report() for _ in range(3)]
    assert told == [Progressed("thinking", 0, 0)] * 3


class Context:
    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata or None

    def invocation_metadata(self) -> Any:
        return self._metadata


@pytest.mark.parametrize(
    ("metadata", "secret"),
    [
        ((), ""),
        ((("user-agent", "x"),), ""),
        ((("user-agent", "x"), ("lipt-worker-secret", "s")), "s"),
        # Of a peer that sends what is no text.
        ((("lipt-worker-secret", b"s"),), ""),
    ],
)
def test_a_call_shows_its_caller_and_a_worker_s_secret(
    metadata: tuple[tuple[str, str | bytes], ...], secret: str
) -> None:
    call = cast("Any", Context(*metadata))
    assert shown_by(call) == Evidence(ANYBODY, secret)
    box = Caller("k", "box", frozenset({Role.WORKER}), certificate="aa")

    def as_box() -> Evidence:
        note_caller(box)
        return shown_by(call)

    assert copy_context().run(as_box) == Evidence(box, secret)


@pytest.mark.parametrize("by", ["stop", "caller"])
async def test_work_that_is_given_up_has_ended_before_its_caller_goes_on(by: str) -> None:
    stop, begun, cleaned_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.set()

    waiting = asyncio.ensure_future(unless(stop, work()))
    await begun.wait()
    if by == "stop":
        stop.set()
        assert await waiting is None
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert cleaned_up.is_set()
