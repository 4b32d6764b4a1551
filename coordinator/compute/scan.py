"""Scan: ranges of a pass that workers score, and the folder of their results."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import (
    make_directory,
    publish,
    state_errors,
    temporary_file,
    write_all,
)
from lipt.common.config.tasks import ScoringTask
from lipt.coordinator.compute.progress import Aside

# Range folder: the ranges of a scan that are done, each a file.
#
#     INDEX.WHO.SHA256    WHO has computed it: a worker's id, or `here`
#
# A file appears under its name all at once; one that is not what its name says is removed, and the
# range is missing. What is here outlives the process that made it.

logger = logging.getLogger(__name__)

HERE = "here"
# Of those that were cut, the newest are kept: two users' selections may alternate.
_MOST_SCANS = 3


@dataclass(frozen=True)
class RangeFile:
    """A range that is done."""

    index: int
    who: str
    sha256: str
    path: Path

    def is_whole(self) -> bool:
        """Whether the content is what the name says; it is removed where it is not."""
        if BlobName.of_file(self.path).sha256 == self.sha256:
            return True
        logger.warning("%s is damaged: its examples are scored again", self.path)
        self.path.unlink(missing_ok=True)
        return False


def scans_dir(state_dir: Path) -> Path:
    """Where the ranges of a state directory's scans are."""
    return state_dir / "signals" / "scans"


class RangeFolder:
    """The ranges of one scan; several processes may use it."""

    def __init__(self, folder: Path, scan_id: str) -> None:
        self._scans = folder
        self.path = folder / scan_id

    def open(self) -> None:
        """Have the folder, as the newest one; those of scans that were cut long ago go.

        Raises:
            StateError: the disk refuses.
        """
        with state_errors(self.path):
            make_directory(self.path)
            self.path.touch()
            folders = sorted(self._scans.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in folders[:-_MOST_SCANS]:
                shutil.rmtree(old)

    def files(self) -> Mapping[int, RangeFile]:
        """What is there, by index; of a range that came twice, one."""
        found = (_file(path) for path in sorted(self.path.glob("*.*.*")))
        return {file.index: file for file in found if file is not None}

    def has(self, index: int) -> bool:
        """Whether a range is there."""
        return any(True for _ in self.path.glob(f"{index}.*"))

    def by_worker(self) -> Mapping[str, list[RangeFile]]:
        """What workers have sent, by worker."""
        sent: defaultdict[str, list[RangeFile]] = defaultdict(list)
        for file in self.files().values():
            if file.who != HERE:
                sent[file.who].append(file)
        return sent

    def keep(self, index: int, who: str, content: bytes) -> None:
        """Store a range, durably.

        Raises:
            StateError: the disk refuses, or the scan is over and its folder gone.
        """
        target = self.path / f"{index}.{who}.{BlobName.of(content).sha256}"
        with state_errors(self.path), temporary_file(self.path) as (file, path):
            write_all(file, content)
            publish(file, path, target)

    def discard(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.path, ignore_errors=True)


def _file(path: Path) -> RangeFile | None:
    index, _, rest = path.name.partition(".")
    who, _, sha256 = rest.partition(".")
    return RangeFile(int(index), who, sha256, path) if index.isdecimal() else None


# Scan: a pass over all examples in ranges, which workers that have the data may take.
#
# The job that needs the signals announces it, goes through the ranges itself from the last one on,
# and leaves out what is in: workers begin with the first ones. So nothing waits for a worker that
# may never come, and what each has done is kept: a pass that was cut goes on where it was.

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
