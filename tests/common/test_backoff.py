from collections.abc import Iterator

import pytest

from lipt.common.backoff import RetryPolicy, retry
from lipt.common.errors import (
    CorruptBlobError,
    LiptError,
    UnknownBlobError,
    UnreachableError,
    revive,
)

AGAIN = (UnreachableError, CorruptBlobError)


class Transfer:
    """Reaches the given offsets one after the other, failing at each, then succeeds."""

    def __init__(self, *offsets: int, error: type[LiptError] = UnreachableError) -> None:
        self.offset = 0
        self._offsets: Iterator[int] = iter(offsets)
        self._error = error

    def attempt(self) -> str:
        for offset in self._offsets:
            self.offset = offset
            raise self._error("cut")
        return "done"


def run(transfer: Transfer, *, max_failures: int = 3) -> tuple[str, list[float]]:
    pauses: list[float] = []
    policy = RetryPolicy(1.0, 4.0, lambda: 1.0, max_failures, pauses.append)
    said = retry(transfer.attempt, on=AGAIN, policy=policy, progress=lambda: transfer.offset)
    return said, pauses


def test_pauses_double_up_to_the_maximum() -> None:
    assert run(Transfer(0, 0, 0, 0, 0), max_failures=6) == ("done", [1.0, 2.0, 4.0, 4.0, 4.0])


def test_progress_resets_the_pauses() -> None:
    assert run(Transfer(0, 0, 7, 7, 9, 9)) == ("done", [1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    # 8, back to 0, 8 again: no new byte since the first.
    with pytest.raises(CorruptBlobError):
        run(Transfer(8, 0, 8, error=CorruptBlobError))


def test_an_error_decides_on_its_retry() -> None:
    with pytest.raises(UnknownBlobError):
        run(Transfer(0, error=UnknownBlobError))
    pauses, errors = list[float](), iter([5.0, 0.5, None])

    def attempt() -> str:
        for seconds in errors:
            raise revive(UnreachableError, "busy.", seconds)
        return "done"

    policy = RetryPolicy(1.0, 4.0, lambda: 1.0, sleep=pauses.append)
    assert retry(attempt, on=AGAIN, policy=policy) == "done"
    assert pauses == [5.0, 2.0, 4.0]
