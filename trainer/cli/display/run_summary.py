"""Summary of a run: all that is known of it, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from lipt.common.config.run_config import RunConfig
from lipt.common.sizes import format_bytes
from lipt.trainer.cli.display.progress import LEARNER_COLUMNS, learner_cells, state_line
from lipt.trainer.views import CostsView, RunView
from lipt.trainer.writing.formatting import table_lines


def run_lines(run: RunView) -> list[str]:
    """What `lipt run show` prints."""
    learners = run.config.learners
    lines = [
        state_line(run),
        f"id {run.run_id}, revision {run.revision}, data {run.fingerprint or 'not known yet'}",
        _config_line(run.config),
    ]
    if run.fitted:
        lines.append(f"fitted to the data: {run.fitted}")
    if run.note:
        lines.append(run.note)
    if run.costs is not None:
        lines.append(_costs_line(run.costs))
    for name, blob in (("theta*", run.initial_weights), ("theta_p", run.pretrained_weights)):
        if blob is not None:
            lines.append(f"{name}: {format_bytes(blob.size_bytes)}, sha256 {blob.sha256}")
    if run.learners:
        rows = [learner_cells(learner, learners.num_steps) for learner in run.learners]
        lines += ["", *table_lines(LEARNER_COLUMNS, rows)]
    # Beside a learner's part in the soup there is no room for what went wrong on the way.
    notes = [item for item in run.learners if item.ingredient is not None and item.message]
    lines += [f"learner {item.index}: {item.message}" for item in notes]
    return lines


def _config_line(config: RunConfig) -> str:
    learners = config.learners
    return (
        f"model {config.model}, seed {config.seed}, n={learners.num_learners} learners, "
        f"M={learners.num_minibatches} minibatches of B={learners.batch_size}, "
        f"K={learners.num_steps} steps"
        + (
            f", a snapshot after {_steps(learners.snapshot_steps)}"
            if learners.num_snapshots
            else ""
        )
        + (f", {' and '.join(learners.frozen)} frozen" if learners.frozen else "")
    )


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


def _costs_line(costs: CostsView) -> str:
    return (
        f"initialization {costs.initialization_seconds:.1f} s, "
        f"sharding {costs.sharding_seconds:.1f} s, training {costs.training_seconds:.1f} s, "
        f"merging {costs.merging_seconds:.1f} s; {format_bytes(costs.bytes_to_workers)} to and "
        f"{format_bytes(costs.bytes_from_workers)} from workers"
    )
