"""When a cut transfer is tried again, and when it is given up.

A transfer that gets any further is never given up: only failures in a row
without one new byte count. (tenacity counts attempts, whatever they achieved.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from lipt.common.errors import LiptError, WrongOffsetError

ResultT = TypeVar("ResultT")

_RETRYABLE_CODES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.ABORTED,
)


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter.

    Attributes:
        max_failures: so many failures in a row without progress end the transfer.
        first_seconds: the longest pause after the first failure; doubled after each other.
        max_seconds: no pause is longer.
        sleep: how to pause; `Event.wait` makes the pause end early.
        jitter: draws the share of the pause that is taken, in [0, 1); peers that
            were cut at the same moment come back spread out.
        on_retry: told of every failure that is tried again.
    """

    max_failures: int = 10
    first_seconds: float = 0.2
    max_seconds: float = 10.0
    sleep: Callable[[float], object] = field(default=time.sleep)
    jitter: Callable[[], float] = field(default=random.random)
    on_retry: Callable[[LiptError], object] = field(default=lambda _: None)

    def pause_seconds(self, num_failures: int) -> float:
        """How long to wait after so many failures in a row: half to all of the backoff."""
        longest = min(self.max_seconds, self.first_seconds * 2.0 ** (num_failures - 1))
        return longest * (1 + self.jitter()) / 2


def is_retryable(error: LiptError) -> bool:
    """Whether the same transfer can succeed later: a cut, a damaged piece, a busy blob."""
    return error.code in _RETRYABLE_CODES or isinstance(error, WrongOffsetError)


def retry(
    attempt: Callable[[], ResultT], *, progress: Callable[[], int], policy: RetryPolicy
) -> ResultT:
    """Call `attempt` until it succeeds.

    Args:
        attempt: continues the transfer where it is.
        progress: how many bytes have arrived; more than ever before means that
            the failure is not counted.
        policy: how often and how soon.

    Raises:
        LiptError: what `attempt` raised last, or at once when it is not retryable.
    """
    num_failures, furthest = 0, progress()
    while True:
        try:
            return attempt()
        except LiptError as error:
            if not is_retryable(error):
                raise
            reached = progress()
            num_failures = 1 if reached > furthest else num_failures + 1
            furthest = max(furthest, reached)
            if num_failures >= policy.max_failures:
                raise
            policy.on_retry(error)
            policy.sleep(policy.pause_seconds(num_failures))
