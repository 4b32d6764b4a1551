"""`lipt run`: start, list, show, watch and cancel runs; a run and its changes as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Exit, Option, Typer

from lipt.cli import options as shared
from lipt.cli.output import (
    SignsOfLife,
    in_background,
    print_json,
    print_result,
    run_with_progress,
)
from lipt.common.config.knobs import option_help
from lipt.common.config.run_config import RunConfig, ShardRule, merge
from lipt.common.states import LearnerState, RunState
from lipt.common.terminal import CommandGroup, print_line
from lipt.common.text import format_bytes
from lipt.trainer.formatting import table_lines
from lipt.trainer.progress import RemainingTime
from lipt.trainer.views import LearnerView, ProgressView, RunView

if TYPE_CHECKING:
    from lipt.trainer.client.client import Client
    from lipt.trainer.client.connection import Silence

app = Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start, list, show, watch and cancel runs.",
)


def _knob(name: str) -> Any:
    # Other settings are the coordinator's defaults, which may be another version's.
    return Option(None, help=option_help(RunConfig, name, show_default=False))


@app.command()
@shared.grouped
def start(
    *,
    name: str = Option("", help="A name to find the run by."),
    model: str | None = _knob("model"),
    seed: int | None = _knob("seed"),
    num_learners: int | None = _knob("learners.num_learners"),
    num_steps: int | None = _knob("learners.num_steps"),
    batch_size: int | None = _knob("learners.batch_size"),
    assignments: shared.Settings = None,
    config: Path | None = Option(None, help="A TOML file with a [run] table."),
    preset: str | None = Option(
        None,
        help="Settings by one name: paper, the paper's own, or mixture, for 'lipt mixture get'. "
        "Others given here win.",
    ),
    shards: ShardRule | None = Option(
        None,
        help="source: two learners for each source that the data names, with the preset mixture.",
    ),
    initial_weights: Path | None = Option(
        None, help="A file to start theta* from: safetensors, or a state dict by torch.save."
    ),
    new_head: bool = Option(
        False, "--new-head", help=option_help(RunConfig, "initialization.new_head")
    ),
    freeze: list[str] | None = Option(
        None, metavar="PATTERN", help=option_help(RunConfig, "learners.frozen")
    ),
    watch: bool = Option(False, "--watch", help="Follow the run to its end."),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Start a run.

    Settings that are not given here, in --config or by --preset are the coordinator's defaults.
    """
    from lipt.trainer.client.sources import weights_source

    flags = {
        "model": model,
        "seed": seed,
        "learners.num_learners": num_learners,
        "learners.num_steps": num_steps,
        "learners.batch_size": batch_size,
        "learners.frozen": freeze or None,
        "learners.shards": shards,
        "initialization.new_head": new_head or None,
    }
    overrides = shared.collect_overrides(flags, assignments, config, preset)
    weights = None if initial_weights is None else weights_source(initial_weights)
    with coordinator.connect() as client:
        if shards is ShardRule.SOURCE and preset is None:
            overrides = merge(client.settings_for("mixture", overrides.get("model")), overrides)
        if weights is not None:
            activity = f"uploading {initial_weights}"
            blob = run_with_progress(lambda _: client.upload_weights(weights), activity=activity)
            overrides.setdefault("initialization", {})["weights_sha256"] = blob.sha256
        run = client.start_run(overrides, name=name)
        notes = [f"fitted to the data: {run.lowered_defaults}"] if run.lowered_defaults else []
        notes += [run.initialization_note] if run.initialization_note else []
        if not watch:
            begun = f"run {run.label} ({run.run_id}) has started."
            follow = f"Follow it with: lipt run watch {run.label}"
            print_result(run, [begun, *notes, follow], as_json=json)
            return
        for line in notes if not json else ():
            print_line(line)
        _follow(client, run, as_json=json)


@app.command("list")
@shared.grouped
def list_runs(*, json: shared.Json = False, coordinator: shared.Coordinator) -> None:
    """List the coordinator's runs, newest first."""
    with coordinator.connect() as client:
        runs = client.runs()
    header = ("name", "id", "state", "model", "created", "soup", "message")
    rows = []
    for run in runs:
        created = f"{run.created_at.astimezone():%Y-%m-%d %H:%M:%S}" if run.created_at else "-"
        soup = f"{run.soup.soup_accuracy:.1%}" if run.soup else "-"
        model = run.config.model if run.state is not RunState.UNREADABLE else "-"
        named = (run.name or "-", run.run_id, run.state.value, model)
        rows.append((*named, created, soup, run.message))
    nothing = ["There are no runs. Start one with: lipt run start"]
    listed = [_in_short(run) for run in runs]
    print_result(listed, table_lines(header, rows) if runs else nothing, as_json=json)


def _in_short(run: RunView) -> dict[str, Any]:
    config = {} if run.state is RunState.UNREADABLE else vars(run.config)
    whole = {**vars(run), **config}
    names = ("run_id", "name", "state", "model", "seed", "created_at", "ended_at", "message")
    soup_accuracy = run.soup and run.soup.soup_accuracy
    return {name: whole.get(name) for name in names} | {"soup_accuracy": soup_accuracy}


@app.command()
@shared.grouped
def show(
    run: shared.RunArgument = "latest",
    *,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Show a run: its state, learners, soup and costs."""
    with coordinator.connect() as client:
        view = client.run(run)
    print_result(view, run_lines(view), as_json=json)


@app.command()
@shared.grouped
def watch(
    run: shared.RunArgument = "latest",
    *,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Follow a run to its end.

    The status is 1 when it failed, was cancelled, or is held.
    """
    with coordinator.connect() as client:
        _follow(client, client.run(run), as_json=json)


@app.command()
@shared.grouped
def cancel(
    run: shared.RunArgument, *, json: shared.Json = False, coordinator: shared.Coordinator
) -> None:
    """Stop a run; its results so far stay readable."""
    with coordinator.connect() as client:
        view = client.cancel(run)
    print_result(view, [f"run {view.label} is {view.state}."], as_json=json)


def _follow(client: Client, run: RunView, *, as_json: bool) -> None:
    try:
        changes = client.watch(run.run_id)
        latest = follow(changes, as_json=as_json, silence=client.silence) or run
    except KeyboardInterrupt:
        print_line(f"run {run.label} continues without this command.", err=True)
        print_line(f"Follow it again with: lipt run watch {run.label}", err=True)
        print_line(f"End it with: lipt run cancel {run.label}", err=True)
        raise Exit(130) from None  # 128 and the number of the signal, as shells have it
    if latest.state is not RunState.READY:
        raise Exit(1)


LEARNER_COLUMNS = ("learner", "worker", "device", "step", "loss", "validation", "density", "status")

_FINISHED = (LearnerState.DONE, LearnerState.FAILED, LearnerState.DROPPED)


def learner_status(learner: LearnerView) -> str:
    if learner.ingredient is not None:
        return str(learner.ingredient)
    word = "training" if learner.state is LearnerState.LEASED else learner.state.value
    return f"{word}: {learner.message}" if learner.message else word


def learner_cells(learner: LearnerView, num_steps: int) -> tuple[str, ...]:
    """One row under `LEARNER_COLUMNS`; unknown values are dashes."""
    return (
        str(learner.index),
        learner.worker or "-",
        learner.device or "-",
        f"{learner.step}/{num_steps}",
        f"{learner.loss:.3f}" if learner.step > 0 else "-",
        f"{learner.ingredient.accuracy:.1%}" if learner.ingredient else "-",
        f"{learner.density:.3f}" if learner.density else "-",
        learner_status(learner),
    )


def state_line(run: RunView) -> str:
    line = f"run {run.label}: {run.state}"
    if run.state is RunState.TRAINING:
        done = sum(learner.state is LearnerState.DONE for learner in run.learners)
        line += f", {done} of {len(run.learners)} learners done"
        line += f"; {run.waiting_reason}" if run.waiting_reason else ""
    elif run.progress is not None and run.progress.activity and not run.ended:
        line += f", {run.progress}"
    if run.state is RunState.READY and run.soup is not None:
        soup, num_learners = run.soup, len(run.learners) or run.config.learners.num_learners
        line += (
            f"; soup {soup.soup_accuracy:.1%} on {soup.num_validation_examples} validation "
            f"examples (theta* {soup.initial_accuracy:.1%}, learners "
            f"{soup.mean_learner_accuracy:.1%} in the mean and {soup.best_learner_accuracy:.1%} at "
            f"best), kept {soup.num_kept} of {num_learners} learners"
        )
    elif run.message:
        line += f": {run.message}"
    return line


def run_lines(run: RunView) -> list[str]:
    learners, costs = run.config.learners, run.costs
    lines = [
        state_line(run),
        f"id {run.run_id}, revision {run.revision}, data {run.fingerprint or 'not known yet'}",
        _config_line(run),
        *([f"fitted to the data: {run.lowered_defaults}"] if run.lowered_defaults else []),
        *filter(None, [run.initialization_note]),
    ]
    if costs is not None:
        lines.append(
            f"initialization {costs.initialization_seconds:.1f} s, "
            f"sharding {costs.sharding_seconds:.1f} s, training {costs.training_seconds:.1f} s, "
            f"merging {costs.merging_seconds:.1f} s; {format_bytes(costs.bytes_to_workers)} to and "
            f"{format_bytes(costs.bytes_from_workers)} from workers"
        )
    for name, blob in (("theta*", run.initial_weights), ("theta_p", run.pretrained_weights)):
        if blob is not None:
            lines.append(f"{name}: {format_bytes(blob.size_bytes)}, sha256 {blob.sha256}")
    if run.learners:
        rows = [learner_cells(learner, learners.num_steps) for learner in run.learners]
        lines += ["", *table_lines(LEARNER_COLUMNS, rows)]
    notes = [item for item in run.learners if item.ingredient is not None and item.message]
    return [*lines, *(f"learner {item.index}: {item.message}" for item in notes)]


def _config_line(run: RunView) -> str:
    learners = run.config.learners
    parts = [
        f"model {run.config.model}",
        f"seed {run.config.seed}",
        f"n={learners.num_learners} learners",
        f"M={learners.num_minibatches} minibatches of B={learners.batch_size}",
        f"K={learners.num_steps} steps",
    ]
    if learners.num_snapshots:
        parts.append(f"a snapshot after steps {', '.join(map(str, learners.snapshot_steps))}")
    if learners.frozen:
        parts.append(f"{' and '.join(learners.frozen)} frozen")
    return ", ".join(parts)


def change_lines(previous: RunView | None, current: RunView) -> list[str]:
    """List changed learners in the soup's order, then the state if it changed."""
    before = {learner.index: learner for learner in previous.learners} if previous else {}
    lines: dict[tuple[int, int], str] = {}
    for learner in current.learners:
        part, last = learner.ingredient, before.get(learner.index)
        state, tried = (last.state, last.ingredient) if last else (LearnerState.QUEUED, None)
        changed = state is not learner.state or (tried is None) != (part is None)
        if changed and learner.state is not LearnerState.LEASED:
            lines[part.position if part else -1, learner.index] = _learner_line(learner)
    # An empty `waiting_reason` is no news: the next change shows that the wait is over.
    unchanged = previous is not None and (previous.state, previous.waiting_reason) == (
        current.state,
        current.waiting_reason or previous.waiting_reason,
    )
    return [lines[key] for key in sorted(lines)] + ([] if unchanged else [state_line(current)])


def _learner_line(learner: LearnerView) -> str:
    line, part = f"learner {learner.index}: {learner_status(learner)}", learner.ingredient
    if part is not None:
        return f"{line}, validation {part.accuracy:.1%}, soup {part.soup_accuracy:.1%}"
    if learner.state is LearnerState.DONE:
        where = f"{learner.worker} ({learner.device}) in {learner.train_seconds:.1f} s"
        return f"{line} on {where}, loss {learner.loss:.3f}, density {learner.density:.3f}"
    return line


def heartbeat_line(run: RunView | None, unchanged_seconds: float) -> str:
    if run is None:
        return f"waiting for the coordinator's first answer for {unchanged_seconds:.0f} s"
    parts = [state_line(run)]
    in_training = sum(item.state is LearnerState.LEASED for item in run.learners)
    if in_training:
        parts.append(f"{in_training} in training")
    elif run.state is RunState.TRAINING and not run.waiting_reason:
        parts.append("no worker has an assignment: is a lipt-worker running?")
    if unchanged_seconds >= 10:
        parts.append(f"no news for {unchanged_seconds:.0f} s")
    return "; ".join(parts)


def stage_progress(run: RunView) -> ProgressView:
    """Progress of the run's present stage; in training, steps of all learners."""
    if run.state is RunState.TRAINING:
        num_steps = run.config.learners.num_steps
        finished = (
            num_steps if learner.state in _FINISHED else learner.step for learner in run.learners
        )
        return ProgressView("", sum(finished), num_steps * len(run.learners))
    if run.progress is None or run.progress.ahead or run.ended:
        return ProgressView("", 0, 0)
    return run.progress


class RunLines:
    """Prints a line per change of a run, and at least one every ten seconds."""

    def __init__(self, signs: SignsOfLife, now: float) -> None:
        self._signs = signs
        self._run: RunView | None = None
        self._changed_at = now
        self._remaining = RemainingTime()

    def show(self, run: RunView, now: float) -> None:
        self._remaining.observe(run.state, stage_progress(run), now)
        lines = change_lines(self._run, run)
        self._run, self._changed_at = run, now
        for line in lines:
            self._signs.say(line, now)
        self.tick(now)

    def tick(self, now: float) -> None:
        def line() -> str:
            heartbeat = heartbeat_line(self._run, now - self._changed_at)
            return "; ".join(filter(None, (heartbeat, self._remaining.text(now))))

        self._signs.tick(now, line)


def _until_it_stops(changes: Iterable[RunView]) -> Iterator[RunView]:
    for run in changes:
        yield run
        if not run.goes_on:
            return


def follow(
    changes: Iterable[RunView],
    *,
    as_json: bool = False,
    silence: Callable[[], Silence | None] = lambda: None,
    check: Callable[[], None] = lambda: None,
) -> RunView | None:
    """Print a run's changes until it ends or is held.

    `silence` is asked whether the coordinator is gone; `check` may raise an error meanwhile.
    """
    latest: RunView | None = None
    signs = SignsOfLife(partial(print_line, err=as_json), time.monotonic())
    lines = RunLines(signs, time.monotonic())
    for run in in_background(_until_it_stops(changes)):
        latest, now = run or latest, time.monotonic()
        signs.notice(now, silence())
        if run is not None and as_json:
            print_json(run)
        elif run is not None:
            lines.show(run, now)
        elif not as_json:
            lines.tick(now)
        check()
    return latest
