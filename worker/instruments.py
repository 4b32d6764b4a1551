"""A worker's metrics, in the order of the documentation."""

from __future__ import annotations

from enum import StrEnum

from lipt.common.observability.metrics import Counter, Instrument


class Phase(StrEnum):
    """A worker's phase."""

    JOINING = "joining"
    WAITING = "waiting"
    FETCHING = "fetching"
    TRAINING = "training"
    SCORING = "scoring"
    SUBMITTING = "submitting"


class LearnerOutcome(StrEnum):
    """Outcome of a learner or range; `LEARNERS` explains each."""

    IN = "in"
    STOPPED = "stopped"
    DECLINED = "declined"
    REFUSED = "refused"
    FAILED = "failed"


LEARNERS = Counter(
    "lipt_worker_learners_total",
    "Learners assigned to this worker, by outcome: `in`; `stopped` with this worker, "
    "or no longer needed; `declined`, over this worker's limits; "
    "`refused` by the coordinator; `failed`.",
    ("outcome",),
    at_zero=tuple((outcome.value,) for outcome in LearnerOutcome),
)
RANGES = Counter(
    "lipt_worker_ranges_total",
    "Ranges of examples assigned to this worker, by the same outcomes.",
    ("outcome",),
    at_zero=tuple((outcome.value,) for outcome in LearnerOutcome),
)
SECONDS = Counter(
    "lipt_worker_phase_seconds_total",
    "Time of this worker by phase, the current one included.",
    ("phase",),
    at_zero=tuple((phase.value,) for phase in Phase),
)
STEPS = Counter("lipt_worker_steps_total", "Training steps; each is a pass over a shard.")
EXAMPLES = Counter("lipt_worker_examples_total", "Examples of all training steps.")
WAITED = Counter(
    "lipt_worker_minibatch_wait_seconds_total",
    "Seconds of training that waited for the next minibatch to be read, decoded and augmented; of "
    "completely trained learners.",
)
BLOB_BYTES = Counter(
    "lipt_worker_blob_bytes_total",
    "Bytes of files between this worker and its coordinator, repetitions included.",
    ("direction",),
    at_zero=(("received",), ("sent",)),
)
WORKER: tuple[Instrument, ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, Instrument)
)
