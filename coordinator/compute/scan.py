"""Scan: ranges of a pass that workers score, and the folder of their results."""

from __future__ import annotations

import hashlib
import logging
import shutil
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

logger = logging.getLogger(__name__)

HERE = "here"
# What the id of every scan begins with, and no run's.
SCAN = "scan-"
# So many interrupted scans are kept: two users' selections may alternate.
_MOST_SCANS = 3


@dataclass(frozen=True)
class RangeFile:
    """A computed range, in the file INDEX.WHO.SHA256; WHO is a worker's id or `here`."""

    index: int
    who: str
    sha256: str
    path: Path

    def is_whole(self) -> bool:
        """Whether the content has the digest of the name; it is removed otherwise."""
        if BlobName.of_file(self.path).sha256 == self.sha256:
            return True
        logger.warning("%s is damaged: its examples are scored again", self.path)
        self.path.unlink(missing_ok=True)
        return False


def scans_dir(state_dir: Path) -> Path:
    """The folder of all scans of a state directory."""
    return state_dir / "signals" / "scans"


class RangeFolder:
    """The ranges of one scan; several processes may use it, and it outlives them."""

    def __init__(self, folder: Path, scan_id: str) -> None:
        self._scans = folder
        self.path = folder / scan_id

    def open(self) -> None:
        """Make the folder the newest one, and remove the oldest."""
        with state_errors(self.path):
            make_directory(self.path)
            self.path.touch()
            folders = sorted(self._scans.iterdir(), key=lambda path: path.stat().st_mtime)
            for old in folders[:-_MOST_SCANS]:
                shutil.rmtree(old)

    def files(self) -> Mapping[int, RangeFile]:
        """One file of each range that is there, by index."""
        found = (_file(path) for path in sorted(self.path.glob("*.*.*")))
        return {file.index: file for file in found if file is not None}

    def has(self, index: int) -> bool:
        """Whether a range is there."""
        return any(True for _ in self.path.glob(f"{index}.*"))

    def keep(self, index: int, who: str, content: bytes) -> None:
        """Store a range, durably; StateError where the scan is over and its folder gone."""
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


@dataclass(frozen=True)
class Scan:
    """A pass over all examples in ranges of whole batches, for workers that have the data.

    `kind` names the machines that give the same bits (`kind_of`); empty for any.
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
        """The number of ranges."""
        return -(-len(self.whole) // self.range_examples)

    @property
    def num_batches(self) -> int:
        """The batches of a range; the last range may have fewer."""
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
    """A message of a job about its scan, for the event loop."""

    scan_id: str = ""


@dataclass(frozen=True)
class ScanOpened(ScanNews):
    """Ranges are wanted, except for those `present`."""

    scan: Scan | None = None
    present: frozenset[int] = frozenset()


@dataclass(frozen=True)
class RangeDone(ScanNews):
    """The job has computed a range itself."""

    index: int = 0


@dataclass(frozen=True)
class WorkerDistrusted(ScanNews):
    """A worker's values were wrong: all its `ranges` are wanted again."""

    worker_id: str = ""
    ranges: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ScanClosed(ScanNews):
    """No more ranges are wanted."""
