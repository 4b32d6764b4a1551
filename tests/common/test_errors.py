import copy
from collections.abc import Iterator

import pytest

from lipt.common.backoff import RetryPolicy, retry
from lipt.common.errors import (
    CorruptBlobError,
    DataError,
    LiptError,
    QueueFullError,
    UnknownBlobError,
    UnreachableError,
    error_class,
    error_classes,
    to_status,
)

FAMILIES = {cls.__name__: cls for cls in error_classes() if "reason" not in vars(cls)}
REASONS = [cls for cls in error_classes() if cls not in FAMILIES.values()]


def test_every_error_reason_has_one_class_that_tells_if_it_is_retryable() -> None:
    assert [error_class(cls.reason) for cls in REASONS] == REASONS
    assert set(LiptError.__subclasses__()) == set(FAMILIES.values())
    assert {name: cls.retryable for name, cls in FAMILIES.items()} == {
        "RequestError": False,
        "InputError": False,
        "LifecycleError": False,
        "TransferError": True,
        "UnavailableError": True,
    }
    assert all("retryable" not in vars(cls) for cls in REASONS if cls is not LiptError)


def test_a_pickled_error_keeps_its_message_and_retry_time() -> None:
    again = copy.copy(QueueFullError("3 wait. Ask again.", retry_after_seconds=2.5))
    assert (type(again), str(again)) == (QueueFullError, "3 wait. Ask again.")
    assert again.retry_after_seconds == 2.5
    assert error_class("SOMETHING_NEW") is error_class("INTERNAL") is LiptError


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
            raise UnreachableError("busy.", retry_after_seconds=seconds)
        return "done"

    policy = RetryPolicy(1.0, 4.0, lambda: 1.0, sleep=pauses.append)
    assert retry(attempt, on=AGAIN, policy=policy) == "done"
    assert pauses == [5.0, 2.0, 4.0]


def test_a_message_holds_only_what_can_be_encoded() -> None:
    error = DataError("/data/caf\udce9 cannot be read. Rename it.")
    assert str(error) == error.message == r"/data/caf\udce9 cannot be read. Rename it."
    assert to_status(error).message == str(error)
