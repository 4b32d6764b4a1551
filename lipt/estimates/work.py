"""Work: what a stage does, counted in tasks that can be measured one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Task(StrEnum):
    """What takes time, and what one of it is."""

    OPENING = "the data set, opened"
    BUILDING = "a model, built"
    STORING = "a file, stored so that it survives a power cut"
    FIGURES = "mean and deviation of the inputs"
    PACKING = "an example, read for a shard"
    READING = "an example, read and decoded"
    TRAINING = "an image, trained on"
    FINISHING = "a learner, pruned and encoded"
    EVALUATING = "an image, scored for the soup"
    MIXING = "a mixture of weights"
    PASSING = "an image, passed for its signals"
    DIFFERENTIATING = "an image's own gradient"
    PATCHING = "an image, compared with patches"
    LOOKING = "an image, looked at for copies"
    COMPARING = "a billion products of thumbnails"
    SUMMING = "a billion products of a ridge head"
    DECOMPOSING = "a billion for the cube of a ridge head's width"
    SELECTING = "the strategy"


class Process(StrEnum):
    """Where work is done."""

    COMPUTE = "compute"
    WORKER = "worker"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Range:
    """A number that is known to lie between two others."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def times(self, other: Range) -> Range:
        """The product of two numbers, neither of them negative."""
        return Range(self.low * other.low, self.high * other.high)

    def over(self, number: float) -> Range:
        """A share of it."""
        return Range(self.low / number, self.high / number)


def exactly(number: float) -> Range:
    """A number that is known."""
    return Range(number, number)


@dataclass(frozen=True)
class Stage:
    """What is done, moved and held in one stage.

    Attributes:
        name: what it is called in the table.
        where: the process that does it.
        work: how often each task is done.
        one_of: what may be done besides: one of these, and nobody knows yet which.
        counted: the work in words.
        moved_bytes: between processes.
        disk_bytes: what it leaves in the state directory.
        memory_bytes: what its process holds at the most, itself included.
        mapped_bytes: of signals that are in a file mapped into memory, and can go to the disk.
        at_once: how many pieces of the work are done side by side.
    """

    name: str
    where: Process
    work: Mapping[Task, Range] = field(default_factory=dict)
    one_of: tuple[Mapping[Task, Range], ...] = ()
    counted: str = ""
    moved_bytes: int = 0
    disk_bytes: int = 0
    memory_bytes: int = 0
    mapped_bytes: int = 0
    at_once: float = 1.0

    @property
    def tasks(self) -> frozenset[Task]:
        """All that it may take."""
        return frozenset({*self.work, *(task for work in self.one_of for task in work)})

    def seconds(self, rates: Mapping[Task, Range]) -> Range | None:
        """How long it takes by what was measured; None where something was not."""
        if not self.tasks <= rates.keys():
            return None
        total = _seconds(self.work, rates)
        if self.one_of:
            possible = [_seconds(work, rates) for work in self.one_of]
            total += Range(min(one.low for one in possible), max(one.high for one in possible))
        return total.over(self.at_once)


def _seconds(work: Mapping[Task, Range], rates: Mapping[Task, Range]) -> Range:
    total = exactly(0.0)
    for task, often in work.items():
        total += often.times(rates[task])
    return total
