from __future__ import annotations

from contextvars import copy_context
from typing import Any, cast

import pytest

from lipt.common.access.roles import Role
from lipt.coordinator.access.caller import ANYBODY, Caller, note_caller
from lipt.coordinator.access.worker_identity import Evidence
from lipt.coordinator.rpc.answering import shown_by


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
