"""Estimate: stages with their work, bytes, memory and seconds, as a command shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lipt.estimates.counting import Machine, learners_at_once
from lipt.estimates.work import Process, Range, Stage, Task


@dataclass(frozen=True)
class Row:
    """A stage of an estimate.

    Attributes:
        stage: its name.
        process: which one does it.
        work: in words.
        moved_bytes: between processes.
        disk_bytes: left in the state directory.
        memory_bytes: what the process holds at the most.
        mapped_bytes: what it has in a mapped file besides.
        seconds_low, seconds_high: how long it takes; None where nothing was measured.
    """

    stage: str
    process: Process
    work: str
    moved_bytes: int
    disk_bytes: int
    memory_bytes: int
    mapped_bytes: int
    seconds_low: float | None
    seconds_high: float | None


@dataclass(frozen=True)
class Estimate:
    """What a run and a subset cost.

    Attributes:
        subject: data, model and strategy in a line.
        fitted: what was lowered in the run's defaults to fit the data; empty for nothing.
        rows: the stages, in order.
        moved_bytes, disk_bytes: of all.
        memory_bytes: the largest of each process.
        seconds_low, seconds_high: of all, one after another; None where nothing was measured.
        learners_seconds: of the learners with so many workers, each on cores of its own.
        measured: seconds for one of each task.
    """

    subject: str
    fitted: str
    rows: tuple[Row, ...]
    moved_bytes: int
    disk_bytes: int
    memory_bytes: Mapping[str, int]
    seconds_low: float | None
    seconds_high: float | None
    learners_seconds: Mapping[int, float]
    measured: Mapping[str, float]


def estimate(
    stages: Iterable[Stage],
    rates: Mapping[Task, Range],
    *,
    subject: str,
    fitted: str,
    num_learners: int,
    machine: Machine,
) -> Estimate:
    """Put together what was counted and what was measured.

    Args:
        stages: all of them, in order.
        rates: seconds of one of each task; empty where nothing was measured.
        subject: in a line.
        fitted: what was changed in the settings.
        num_learners: of the run.
        machine: where it runs.
    """
    stages = tuple(stages)
    rows = tuple(_row(stage, rates) for stage in stages)
    lows = [row.seconds_low for row in rows if row.seconds_low is not None]
    highs = [row.seconds_high for row in rows if row.seconds_high is not None]
    known = len(lows) == len(rows)
    memory: dict[str, int] = {}
    for row in rows:
        if row.memory_bytes:
            name = row.process.value
            memory[name] = max(memory.get(name, 0), row.memory_bytes)
    return Estimate(
        subject,
        fitted,
        rows,
        moved_bytes=sum(row.moved_bytes for row in rows),
        disk_bytes=sum(row.disk_bytes for row in rows),
        memory_bytes=memory,
        seconds_low=sum(lows) if known else None,
        seconds_high=sum(highs) if known else None,
        learners_seconds=_by_workers(stages, rates, num_learners, machine),
        measured={task.value: rate.high for task, rate in rates.items()},
    )


def _row(stage: Stage, rates: Mapping[Task, Range]) -> Row:
    seconds = stage.seconds(rates) if rates else None
    return Row(
        stage.name,
        stage.where,
        stage.counted,
        stage.moved_bytes,
        stage.disk_bytes,
        stage.memory_bytes,
        stage.mapped_bytes,
        None if seconds is None else seconds.low,
        None if seconds is None else seconds.high,
    )


def _by_workers(
    stages: Iterable[Stage], rates: Mapping[Task, Range], number: int, machine: Machine
) -> dict[int, float]:
    found: dict[int, float] = {}
    for stage in stages:
        for workers in (1, 2, 4, number):
            if stage.where is not Process.WORKER or workers > number:
                continue
            apart = replace(machine, num_workers=workers, num_cores=None)
            at_once = learners_at_once(number, apart, threads=1)
            seconds = replace(stage, at_once=at_once).seconds(rates) if rates else None
            if seconds is not None:
                found[workers] = seconds.high
    return found
