"""The coordinator's metrics, in display order; `lipt.coordinator.metrics` reads the gauges."""

from __future__ import annotations

from lipt.common.config.run_config import WeightEncoding
from lipt.common.observability.metrics import Counter, Gauge, Histogram, Instrument

# Seconds: from an answer out of memory to a caller's timeout.
_ANSWERS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# Seconds: from a moment to half a day.
_WORK = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 43200)

# Code of a call whose client has disconnected.
CANCELLED = "CANCELLED"

RUNS = Gauge("lipt_runs", "Runs by state.", ("state",))
LEARNERS = Gauge("lipt_learners", "Learners of runs in training, by state.", ("state",))
WORKERS = Gauge("lipt_workers", "Workers that are there.")
WORKERS_WAITING = Gauge(
    "lipt_workers_waiting", "Workers that are there and wait for a learner at this moment."
)
LEASES = Gauge("lipt_leases", "Learners that a worker has now.")
LEARNER_TRAIN = Histogram(
    "lipt_learner_train_seconds",
    "Training time of each accepted learner, as reported by its worker.",
    buckets=_WORK,
)
LEARNER_BYTES = Counter(
    "lipt_learner_bytes_total",
    "Bytes that workers fetched for learners that were taken, and of their results, by encoding.",
    ("direction", "encoding"),
    at_zero=tuple(
        (direction, encoding.value)
        for direction in ("to_workers", "from_workers")
        for encoding in WeightEncoding
    ),
)
BLOB_BYTES = Counter(
    "lipt_blob_bytes_total",
    "Bytes of files on the wire, for all peers, including repeated ones.",
    ("direction",),
    at_zero=(("received",), ("sent",)),
)
STAGES = Histogram(
    "lipt_run_stage_seconds",
    "Time of each stage, of runs that became ready.",
    ("stage",),
    buckets=_WORK,
)
SOUP_ACCURACY = Gauge(
    "lipt_soup_accuracy_ratio",
    "Accuracy, or its target's measure, of the newest ready run on the validation split.",
    ("of",),
)
SOUP_KEPT = Gauge("lipt_soup_kept_learners", "Learners that the newest ready run's soup kept.")
SELECTION = Histogram(
    "lipt_selection_seconds",
    "Time to compute a subset, with its wait in the queue, by strategy; not of stored ones.",
    ("strategy",),
    buckets=_WORK,
)
SCORED_EXAMPLES = Counter(
    "lipt_scored_examples_total",
    "Examples of shared passes over the data, by who has passed them through a model.",
    ("by",),
    at_zero=(("coordinator",), ("workers",)),
)
QUEUE = Gauge("lipt_queue", "Jobs that wait to be computed, without the one that is.", ("lane",))
QUEUE_OLDEST = Gauge(
    "lipt_queue_oldest_seconds", "How long the oldest of these jobs has waited.", ("lane",)
)
QUEUE_WAIT = Histogram(
    "lipt_queue_wait_seconds",
    "How long jobs had waited when they began.",
    ("lane",),
    buckets=(0.01, *_WORK),
)
JOB = Histogram(
    "lipt_job_seconds",
    "How long jobs of each kind were computed, to their end or until they were dropped.",
    ("lane", "kind"),
    buckets=_WORK,
)
COMPUTE_RESIDENT = Gauge(
    "lipt_compute_resident_bytes", "Memory that a lane's compute process has now.", ("lane",)
)
COMPUTE_PEAK = Gauge(
    "lipt_compute_peak_resident_bytes", "The most that it had since it started.", ("lane",)
)
COMPUTE_LIMIT = Gauge(
    "lipt_compute_limit_bytes",
    "Memory limit of a compute process: limits.compute_memory. It holds on a CPU.",
)
RPC = Histogram(
    "lipt_rpc_duration_seconds",
    "How long calls took that are answered at once, by method and code.",
    ("method", "code"),
    buckets=_ANSWERS,
)
RPC_LONG = Histogram(
    "lipt_rpc_long_duration_seconds",
    "The same of calls that wait for something or carry a file.",
    ("method", "code"),
    buckets=_WORK,
)
RPC_IN_FLIGHT = Gauge("lipt_rpc_in_flight", "Calls under way, long ones too.")
PEER_REFUSALS = Counter(
    "lipt_peer_refusals_total",
    "Calls that were answered with an error, by code and caller; after 50 the rest are `other`.",
    ("peer", "code"),
    most=50,
)
STORAGE = Gauge(
    "lipt_storage_bytes",
    "Bytes of blobs that records need or not, as of the last collection, and of uploads.",
    ("kind",),
)
STORAGE_FREE = Gauge("lipt_storage_free_bytes", "Free space on the state directory's disk.")
UNFINISHED_UPLOADS = Gauge("lipt_unfinished_uploads", "Uploads that have begun and are not whole.")

COORDINATOR: tuple[Instrument, ...] = tuple(
    one for one in list(vars().values()) if isinstance(one, Instrument)
)
