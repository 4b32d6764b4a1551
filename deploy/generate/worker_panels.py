"""Panels of the Grafana dashboard: every instrument of workers, and the memory of all processes."""

from __future__ import annotations

from deploy.generate.panel import Panel, Row, mean

WORKERS_ROW: Row = (
    "Workers, where these are scraped",
    (
        Panel(
            "What workers do",
            "Shares of their time. Fetching that is large asks for a better network, waiting "
            "for more learners or fewer workers.",
            "percentunit",
            {
                "{{phase}}": "sum by (phase) (rate(lipt_worker_phase_seconds_total{@W}[@R])) "
                "/ on () group_left sum(rate(lipt_worker_phase_seconds_total{@W}[@R]))"
            },
            stacked=True,
        ),
        Panel(
            "Steps",
            "A step is a pass over a shard.",
            "ops",
            {"{{instance}}": "rate(lipt_worker_steps_total{@W}[@R])"},
        ),
        Panel(
            "Examples",
            "That were trained on.",
            "ops",
            {"{{instance}}": "rate(lipt_worker_examples_total{@W}[@R])"},
        ),
        Panel(
            "Training that waits for data",
            "Share of its time in which the next minibatch was not decoded and augmented yet. "
            "Where it is large, a worker wants another core.",
            "percentunit",
            {
                "{{instance}}": "rate(lipt_worker_minibatch_wait_seconds_total{@W}[@R]) "
                '/ ignoring (phase) rate(lipt_worker_phase_seconds_total{@W,phase="training"}[@R])'
            },
        ),
        Panel(
            "Examples scored",
            "For passes over the data that workers with the data share.",
            "ops",
            {"{{instance}}": "rate(lipt_worker_scored_examples_total{@W}[@R])"},
        ),
        Panel(
            "Ranges by outcome",
            "How ranges of examples ended on their workers.",
            "none",
            {"{{outcome}}": "sum by (outcome) (increase(lipt_worker_ranges_total{@W}[@R]))"},
        ),
        Panel(
            "Learners by outcome",
            "How they ended on their workers.",
            "none",
            {"{{outcome}}": "sum by (outcome) (increase(lipt_worker_learners_total{@W}[@R]))"},
        ),
        Panel(
            "A learner from fetch to commit",
            "Mean since each worker started.",
            "s",
            mean("lipt_worker_learner_seconds", "instance", "@W"),
        ),
        Panel(
            "Files on the wire",
            "Between workers and coordinator.",
            "Bps",
            {"{{direction}}": "sum by (direction) (rate(lipt_worker_blob_bytes_total{@W}[@R]))"},
        ),
        Panel(
            "Results by encoding",
            "What was encoded to be handed in.",
            "Bps",
            {"{{encoding}}": "sum by (encoding) (rate(lipt_worker_result_bytes_total{@W}[@R]))"},
        ),
        Panel(
            "Memory of CUDA devices",
            "In tensors, and kept from others; empty on CPUs.",
            "bytes",
            {"{{instance}} {{kind}}": "lipt_worker_device_memory_bytes{@W}"},
        ),
        Panel(
            "Memory of the processes",
            "Coordinators and workers; the compute processes have panels of their own.",
            "bytes",
            {"{{instance}}": 'process_resident_memory_bytes{instance=~"$coordinator|$worker"}'},
        ),
    ),
)
