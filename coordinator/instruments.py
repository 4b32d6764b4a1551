"""The coordinator's metrics, in display order; `lipt.coordinator.metrics` reads the gauges."""

from __future__ import annotations

from lipt.common.config.run_config import WeightEncoding
from lipt.common.observability.metrics import Counter, Gauge, Histogram, Instrument

# Seconds, from an answer in memory to a caller's timeout.
_ANSWERS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# Seconds, up to half a day.
_WORK = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 43200)

RUNS = Gauge("lipt_runs", "Runs by state.", ("state",))
LEARNERS = Gauge("lipt_learners", "Learners of runs in training, by state.", ("state",))
WORKERS = Gauge("lipt_workers", "Registered workers that called lately.")
WORKERS_WAITING = Gauge("lipt_workers_waiting", "Workers that wait for a learner.")
LEASES = Gauge("lipt_leases", "Leased learners.")
LEARNER_TRAIN = Histogram(
    "lipt_learner_train_seconds",
    "Training time of each accepted learner, as reported by its worker.",
    buckets=_WORK,
)
LEARNER_BYTES = Counter(
    "lipt_learner_bytes_total",
    "Bytes of accepted learners, fetched by workers and sent as results, by encoding.",
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
SOUP_KEPT = Gauge("lipt_soup_kept_learners", "Learners kept in the newest ready run's soup.")
SELECTION = Histogram(
    "lipt_selection_seconds",
    "Time to compute a subset, with its wait in the queue, by strategy; not of stored ones.",
    ("strategy",),
    buckets=_WORK,
)
SCORED_EXAMPLES = Counter(
    "lipt_scored_examples_total",
    "Examples of shared passes over the data, by the process that scored them.",
    ("by",),
    at_zero=(("coordinator",), ("workers",)),
)
QUEUE = Gauge("lipt_queue", "Waiting jobs.", ("queue",))
QUEUE_OLDEST = Gauge(
    "lipt_queue_oldest_seconds", "Seconds that the oldest waiting job has waited.", ("queue",)
)
QUEUE_WAIT = Histogram(
    "lipt_queue_wait_seconds",
    "Seconds that jobs waited before they began.",
    ("queue",),
    buckets=(0.01, *_WORK),
)
JOB = Histogram(
    "lipt_job_seconds",
    "Seconds of jobs of each kind, to their end or until they were dropped.",
    ("queue", "kind"),
    buckets=_WORK,
)
COMPUTE_RESIDENT = Gauge(
    "lipt_compute_resident_bytes", "Memory of each queue's compute process.", ("queue",)
)
COMPUTE_PEAK = Gauge(
    "lipt_compute_peak_resident_bytes", "Peak memory of each queue's compute process.", ("queue",)
)
COMPUTE_LIMIT = Gauge(
    "lipt_compute_limit_bytes",
    "Memory limit of a compute process: limits.compute_memory. It holds on a CPU.",
)
RPC = Histogram(
    "lipt_rpc_duration_seconds",
    "Seconds of calls that are answered at once, by method and code.",
    ("method", "code"),
    buckets=_ANSWERS,
)
RPC_LONG = Histogram(
    "lipt_rpc_long_duration_seconds",
    "Seconds of calls that wait for something or carry a file.",
    ("method", "code"),
    buckets=_WORK,
)
RPC_IN_FLIGHT = Gauge("lipt_rpc_in_flight", "Calls under way, with long ones.")
PEER_REFUSALS = Counter(
    "lipt_peer_refusals_total",
    "Calls answered with an error, by code and caller; after 50 callers, `other`.",
    ("peer", "code"),
    most=50,
)
STORAGE = Gauge(
    "lipt_storage_bytes",
    "Bytes of needed and spare blobs at the last collection, and of uploads.",
    ("kind",),
)
STORAGE_FREE = Gauge("lipt_storage_free_bytes", "Free space on the state directory's disk.")
UNFINISHED_UPLOADS = Gauge("lipt_unfinished_uploads", "Uploads that have begun and are not whole.")

COORDINATOR: tuple[Instrument, ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, Instrument)
)
