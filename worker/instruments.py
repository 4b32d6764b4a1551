"""A worker's metrics, in the order of the documentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from lipt.common.observability.metrics import (
    Counter,
    Instrument,
    Meters,
    Phases,
    Readings,
)


class Phase(StrEnum):
    """A worker's phase."""

    JOINING = "joining"
    WAITING = "waiting"
    FETCHING = "fetching"
    TRAINING = "training"
    SCORING = "scoring"
    SUBMITTING = "submitting"


class Outcome(StrEnum):
    """How a learner or range ended here; `LEARNERS` explains each."""

    IN = "in"
    STOPPED = "stopped"
    DECLINED = "declined"
    REFUSED = "refused"
    FAILED = "failed"


LEARNERS = Counter(
    "lipt_worker_learners_total",
    "Learners that this worker was given, by how they ended here: `in`; `stopped`, with this "
    "worker or because it is not needed; `declined`, as it asks for more than this worker allows; "
    "`refused` by the coordinator; `failed`.",
    ("outcome",),
    at_zero=tuple((outcome.value,) for outcome in Outcome),
)
RANGES = Counter(
    "lipt_worker_ranges_total",
    "Ranges of examples that this worker was given to score, by how they ended here, likewise.",
    ("outcome",),
    at_zero=tuple((outcome.value,) for outcome in Outcome),
)
SECONDS = Counter(
    "lipt_worker_phase_seconds_total",
    "Time of this worker by phase, the current one included.",
    ("phase",),
    at_zero=tuple((phase.value,) for phase in Phase),
)
STEPS = Counter("lipt_worker_steps_total", "Training steps, each of which is a pass over a shard.")
EXAMPLES = Counter("lipt_worker_examples_total", "Examples that were trained on, in all passes.")
WAITED = Counter(
    "lipt_worker_minibatch_wait_seconds_total",
    "Seconds of training in which the next minibatch was waited for, as it was not read, decoded "
    "and augmented yet; of learners that were trained to their end.",
)
BLOB_BYTES = Counter(
    "lipt_worker_blob_bytes_total",
    "Bytes of files between this worker and its coordinator, with what went twice.",
    ("direction",),
    at_zero=(("received",), ("sent",)),
)
WORKER: tuple[Instrument, ...] = tuple(
    one for one in list(vars().values()) if isinstance(one, Instrument)
)


@dataclass(frozen=True)
class Metering:
    """A worker's meters and phases."""

    meters: Meters = field(default_factory=Meters)
    phases: Phases = field(default_factory=lambda: Phases(*Phase))

    def readings(self) -> Readings:
        return {SECONDS: self.phases.seconds()}
