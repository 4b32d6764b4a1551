"""Events: what an operator wants to know and count, as log lines and counters.

A line is `event=KIND` and `name=value` pairs, in quotes with JSON's escapes where a
value holds anything but a plain word: a peer's text cannot begin a line of its own.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from enum import StrEnum

from lipt.common.process.json_logs import EVENT

logger = logging.getLogger(__name__)

_PLAIN = re.compile(r"[\w./:+-]+\Z", re.ASCII)


class EventKind(StrEnum):
    """What is counted, under these names; `detail` divides some of them further."""

    # A call was answered with an error; detail: its reason.
    CALL_REFUSED = "call_refused"
    # A worker was silent for longer than its lease.
    LEASE_EXPIRED = "lease_expired"
    # A learner that was out before was given to a worker again.
    LEARNER_REASSIGNED = "learner_reassigned"
    # An attempt counted against its learner: the worker failed, or its result was refused.
    LEARNER_FAILED = "learner_failed"
    # A learner's result was in, and the disk has changed or lost it: it is trained again.
    LEARNER_DAMAGED = "learner_damaged"
    # Workers handed in different learners where they have to be the same; detail: settled where
    # two others agree.
    LEARNER_DISPUTED = "learner_disputed"
    # A worker gave its learner back undone.
    LEARNER_RETURNED = "learner_returned"
    # Nobody waits any more for what was to be computed; detail: whether it had begun.
    JOB_DROPPED = "job_dropped"
    # A worker gave a learner back because it asks for more than the worker allows.
    LEARNER_DECLINED = "learner_declined"
    # A learner, or its run, has ended several workers in a row, as it seems: others go first.
    LEARNER_QUARANTINED = "learner_quarantined"
    # What nobody needs or uses was removed; detail: whole blobs, cut uploads, or ended runs.
    EXPIRED = "expired"
    # This process was stopped for a while: all leases begin anew.
    PAUSED = "paused"
    # Something is tried again; detail: what.
    RETRIED = "retried"
    # A run's data is not what there is now: it waits for its own.
    RUN_HELD = "run_held"
    # A run has ended; detail: its state.
    RUN_ENDED = "run_ended"

    @property
    def known_details(self) -> tuple[str, ...]:
        """What `detail` may be; nothing where it is a matter of what happens."""
        return _DETAILS.get(self, ("",))


_DETAILS: dict[EventKind, tuple[str, ...]] = {
    EventKind.CALL_REFUSED: (),  # every reason of `lipt.common.errors`
    EventKind.LEARNER_DISPUTED: ("", "settled"),
    EventKind.JOB_DROPPED: ("waiting", "computing"),
    EventKind.EXPIRED: ("blobs", "uploads", "runs"),
    EventKind.RETRIED: (
        # by the coordinator
        *("stage", "record", "compute", "lease expiry", "collection"),
        # by a worker
        *("joining", "heartbeat", "transfer", "caching", "handing over"),
    ),
    EventKind.RUN_ENDED: ("ready", "failed", "cancelled"),
}


class Events:
    """The events of one process, counted since it started; safe to read from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[EventKind, str]] = Counter()

    def record(
        self, kind: EventKind, *, detail: str = "", level: int = logging.INFO, **fields: object
    ) -> None:
        """Log an event and count it.

        Args:
            kind: what happened.
            detail: which kind of it, from a small fixed set: it names a counter.
            level: of the log line.
            fields: what it happened to, for the log line only.
        """
        self._counts[kind, detail] += 1
        said = {"detail": detail, **fields}
        given = {name: value for name, value in said.items() if value != ""}
        logger.log(
            level,
            " ".join(f"{name}={_shown(value)}" for name, value in {"event": kind, **given}.items()),
            extra={EVENT: {"kind": kind.value, **given}},
        )

    def count(self, kind: EventKind, detail: str | None = None) -> int:
        """How many there were; of all details where none is given."""
        return sum(
            number
            for (counted, under), number in self.counts().items()
            if counted is kind and detail in (None, under)
        )

    def counts(self) -> dict[tuple[EventKind, str], int]:
        """All counters, by kind and detail."""
        return dict(self._counts)


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.match(text) else json.dumps(text)
