"""Scan: a pass over all examples in ranges, which workers that have the data may take.

The job that needs the signals announces it, goes through the ranges itself from the last one on,
and leaves out what is in: workers begin with the first ones. So nothing waits for a worker that may
never come, and what each has done is kept: a pass that was cut goes on where it was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

from lipt.common.blobs.blob import BlobName
from lipt.common.config.tasks import ScoringTask
from lipt.coordinator.compute.progress import Aside

# What the id of every scan begins with, and no run's.
SCAN = "scan-"


@dataclass(frozen=True)
class Scan:
    """What is scored, and by whom.

    whole: the task of all examples.
    weights: what they are passed through, as a blob.
    num_features: of the model.
    range_examples: of every range but the last one; whole batches.
    kind: what has to compute it for the same bits, as `kind_of` says it; empty where anything may.
    lipt: the version that it is computed by.
    """

    whole: ScoringTask
    weights: BlobName
    num_features: int
    range_examples: int
    kind: str
    lipt: str

    @cached_property
    def scan_id(self) -> str:
        """Names everything that its values depend on."""
        return f"{SCAN}{hashlib.sha256(repr(self).encode()).hexdigest()[:32]}"

    @property
    def num_ranges(self) -> int:
        """How many ranges there are."""
        return -(-len(self.whole) // self.range_examples)

    @property
    def num_batches(self) -> int:
        """How many batches a range has; the last one may have fewer."""
        return self.range_examples // self.whole.batch_size

    def task(self, index: int) -> ScoringTask:
        """The task of one range."""
        start = index * self.range_examples
        return replace(
            self.whole, start=start, stop=min(start + self.range_examples, self.whole.stop)
        )

    def batch(self, index: int, number: int) -> ScoringTask:
        """The task of one batch of a range; `number` counts from the range's first, around."""
        task = self.task(index)
        start = task.start + number % -(-len(task) // task.batch_size) * task.batch_size
        return replace(task, start=start, stop=min(start + task.batch_size, task.stop))

    @property
    def max_file_bytes(self) -> int:
        """More than any range's file takes: its values, a bit for each, and a header."""
        row_bytes = 5 * (self.whole.num_classes + self.num_features)
        return self.range_examples * row_bytes + 2**20


@dataclass(frozen=True)
class ScanNews(Aside):
    """What whoever gives ranges to workers is told."""

    scan_id: str = ""


@dataclass(frozen=True)
class ScanOpened(ScanNews):
    """Ranges are wanted.

    scan: their scan.
    present: those that are there already.
    """

    scan: Scan | None = None
    present: frozenset[int] = frozenset()


@dataclass(frozen=True)
class RangeDone(ScanNews):
    """The job has done a range itself."""

    index: int = 0


@dataclass(frozen=True)
class WorkerDistrusted(ScanNews):
    """A worker's values were not those of its task: all of them are computed again.

    ranges: those that are wanted again.
    """

    worker_id: str = ""
    ranges: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ScanClosed(ScanNews):
    """No more ranges are wanted."""


def range_size(asked: int, batch_size: int) -> int:
    """The examples of a range: as many as asked for, up to whole batches."""
    return -(-asked // batch_size) * batch_size
