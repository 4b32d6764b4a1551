"""Jobs that are put around others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from lipt.coordinator.compute import messages
from lipt.coordinator.compute.messages import OnData, Timed, Took, name_of


@dataclass(frozen=True)
class Wait:
    """A job that takes as long as it says, on a clock that it moves itself."""

    now: list[float]
    seconds: float

    def run(self, context: Any) -> str:
        self.now[0] += self.seconds
        return "done"


def test_a_timed_job_says_how_long_it_took_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(messages, "monotonic", lambda: now[0])
    job = Timed(Wait(now, 7.0))
    now[0] += 100.0  # its turn in the queue
    assert job.run(cast("Any", None)) == Took("done", 7.0)


def test_a_job_is_called_by_what_is_inside() -> None:
    assert name_of(OnData("f", Timed(Wait([], 0.0)))) == "Wait"
