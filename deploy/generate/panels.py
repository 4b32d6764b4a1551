"""Panels of the Grafana dashboard: every instrument of the coordinator, then those of workers."""

from __future__ import annotations

from deploy.generate.panel import Panel, Row, mean, quantiles, stat
from deploy.generate.worker_panels import WORKERS_ROW

ROWS: tuple[Row, ...] = (
    (
        "At a glance",
        (
            Panel(
                "Version",
                "Of each coordinator that answers.",
                "none",
                {"{{version}}": "lipt_build_info{@C}"},
                width=3,
                stat=True,
            ),
            stat(
                "Runs under way",
                "Runs that have not ended and are not held.",
                "none",
                'sum(lipt_runs{@C,state!~"ready|failed|cancelled|held"})',
            ),
            stat(
                "Learners that wait",
                "For a worker. What to scale workers by.",
                "none",
                'sum(lipt_learners{@C,state="queued"})',
            ),
            stat("Workers", "That are there.", "none", "sum(lipt_workers{@C})"),
            stat("Leases", "Learners that a worker has now.", "none", "sum(lipt_leases{@C})"),
            stat(
                "Soup",
                "Accuracy of the newest ready run's soup.",
                "percentunit",
                'max(lipt_soup_accuracy_ratio{@C,of="soup"})',
            ),
            stat(
                "Calls under way",
                "Long ones too.",
                "none",
                "sum(lipt_rpc_in_flight{@C})",
            ),
            stat(
                "Certificate's days",
                "Until the first of the certificates expires; empty without TLS.",
                "d",
                "(min(lipt_certificate_expiry_timestamp_seconds) - time()) / 86400",
            ),
        ),
    ),
    (
        "Runs, learners and what comes of them",
        (
            Panel(
                "Runs by state",
                "One that is held waits for its own data.",
                "none",
                {"{{state}}": "sum by (state) (lipt_runs{@C})"},
                stacked=True,
            ),
            Panel(
                "Learners by state",
                "Of runs in training.",
                "none",
                {"{{state}}": "sum by (state) (lipt_learners{@C})"},
                stacked=True,
            ),
            Panel(
                "Workers and leases",
                "Workers that wait while learners are queued may not take them: see their logs.",
                "none",
                {
                    "workers": "sum(lipt_workers{@C})",
                    "waiting": "sum(lipt_workers_waiting{@C})",
                    "leases": "sum(lipt_leases{@C})",
                },
            ),
            Panel(
                "Accuracy of the newest ready run",
                "On the validation split. A soup below its mean learner has merged badly.",
                "percentunit",
                {"{{of}}": "max by (of) (lipt_soup_accuracy_ratio{@C})"},
            ),
            Panel(
                "Learners that the soup kept",
                "Of the newest ready run.",
                "none",
                {"kept": "max(lipt_soup_kept_learners{@C})"},
            ),
            Panel(
                "Seconds by stage",
                "Mean over the runs that became ready since the coordinator started.",
                "s",
                mean("lipt_run_stage_seconds", "stage"),
            ),
            Panel(
                "Training of a learner",
                "As workers report it.",
                "s",
                {
                    f"p{100 * share:g}": f"histogram_quantile({share:g}, sum by (le) "
                    "(rate(lipt_learner_train_seconds_bucket{@C}[@R])))"
                    for share in (0.5, 0.95)
                },
            ),
            Panel(
                "Learners' bytes",
                "Of learners that were taken, by their run's encoding.",
                "Bps",
                {
                    "{{direction}} {{encoding}}": "sum by (direction, encoding) "
                    "(rate(lipt_learner_bytes_total{@C}[@R]))"
                },
            ),
            Panel(
                "Files on the wire",
                "All bytes of files, with what went twice.",
                "Bps",
                {"{{direction}}": "sum by (direction) (rate(lipt_blob_bytes_total{@C}[@R]))"},
            ),
        ),
    ),
    (
        "Selection and the queue of the compute process",
        (
            Panel(
                "Seconds of a subset by strategy",
                "Mean since the start, with its turn in the queue.",
                "s",
                mean("lipt_selection_seconds", "strategy"),
            ),
            Panel(
                "Examples passed through a model",
                "Of passes over the data that workers may share, by who has done them.",
                "ops",
                {"{{by}}": "sum by (by) (rate(lipt_scored_examples_total{@C}[@R]))"},
            ),
            Panel(
                "Jobs that wait",
                "Without the one that is computed.",
                "none",
                {"{{lane}}": "sum by (lane) (lipt_queue{@C})"},
            ),
            Panel(
                "Oldest job that waits",
                "One that only grows stands behind a job that does not end.",
                "s",
                {"{{lane}}": "max by (lane) (lipt_queue_oldest_seconds{@C})"},
            ),
            Panel(
                "Waiting time",
                "Of jobs that began.",
                "s",
                quantiles("lipt_queue_wait_seconds", "lane", 0.5, 0.95),
            ),
            Panel(
                "Computing time by kind of job",
                "Mean since the start.",
                "s",
                mean("lipt_job_seconds", "kind"),
            ),
            Panel(
                "Memory of the compute processes",
                "A job that reaches the limit fails, and is not done again.",
                "bytes",
                {
                    "{{lane}}": "max by (lane) (lipt_compute_resident_bytes{@C})",
                    "{{lane}} at most": "max by (lane) (lipt_compute_peak_resident_bytes{@C})",
                    "limit": "max(lipt_compute_limit_bytes{@C})",
                },
            ),
        ),
    ),
    (
        "Calls",
        (
            Panel(
                "Calls by method",
                "Those that are answered at once.",
                "reqps",
                {"{{method}}": "sum by (method) (rate(lipt_rpc_duration_seconds_count{@C}[@R]))"},
            ),
            Panel(
                "Latency by method",
                "Of those calls.",
                "s",
                quantiles("lipt_rpc_duration_seconds", "method", 0.5, 0.99),
            ),
            Panel(
                "Long calls",
                "Streams, transfers and polls: the whole call counts.",
                "s",
                quantiles("lipt_rpc_long_duration_seconds", "method", 0.95),
            ),
            Panel(
                "Answers by code",
                "All calls but those that went well.",
                "reqps",
                {
                    "{{code}}": "sum by (code) "
                    '(rate(lipt_rpc_duration_seconds_count{@C,code!="OK"}[@R]))',
                    "long: {{code}}": "sum by (code) "
                    '(rate(lipt_rpc_long_duration_seconds_count{@C,code!="OK"}[@R]))',
                },
            ),
            Panel(
                "Refusals by peer",
                "The callers that get most of them.",
                "reqps",
                {
                    "{{peer}} {{code}}": "topk(10, sum by (peer, code) "
                    "(rate(lipt_peer_refusals_total{@C}[@R])))"
                },
            ),
            Panel(
                "Refusals by reason",
                "The reasons of the page on troubleshooting.",
                "reqps",
                {
                    "{{detail}}": "sum by (detail) "
                    '(rate(lipt_events_total{@C,event="call_refused"}[@R]))'
                },
            ),
        ),
    ),
    (
        "What goes wrong, and is mended",
        (
            Panel(
                "Leases and learners",
                "Reassignments and what led to them.",
                "none",
                {
                    "{{event}}": "sum by (event) "
                    '(increase(lipt_events_total{@C,event=~"lease_.*|learner_.*"}[@R]))'
                },
            ),
            Panel(
                "Retries",
                "What was tried again: by the coordinator, and by workers.",
                "none",
                {
                    "coordinator: {{detail}}": "sum by (detail) "
                    '(increase(lipt_events_total{@C,event="retried"}[@R]))',
                    "workers: {{detail}}": "sum by (detail) "
                    '(increase(lipt_events_total{@W,event="retried"}[@R]))',
                },
            ),
            Panel(
                "Runs that ended, and other events",
                "Held runs, dropped jobs, expired files, pauses.",
                "none",
                {
                    "{{event}} {{detail}}": "sum by (event, detail) "
                    '(increase(lipt_events_total{@C,event=~"run_.*|job_.*|expired|paused"}[@R]))'
                },
            ),
        ),
    ),
    (
        "Disk",
        (
            Panel(
                "Blobs",
                "Needed and spare as of the last collection, uploads as of now.",
                "bytes",
                {"{{kind}}": "sum by (kind) (lipt_storage_bytes{@C})"},
                stacked=True,
            ),
            Panel(
                "Free",
                "On the disk of the state directory.",
                "bytes",
                {"{{instance}}": "lipt_storage_free_bytes{@C}"},
            ),
            Panel(
                "Unfinished uploads",
                "Begun, and not whole.",
                "none",
                {"{{instance}}": "lipt_unfinished_uploads{@C}"},
            ),
        ),
    ),
    WORKERS_ROW,
)
