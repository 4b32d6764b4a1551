"""Range folder: the ranges of a scan that are done, each a file.

    INDEX.WHO.SHA256    WHO has computed it: a worker's id, or `here`

A file appears under its name all at once; one that is not what its name says is removed, and the
range is missing. What is here outlives the process that made it.
"""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.durable import (
    make_directory,
    publish,
    state_errors,
    temporary_file,
    write_all,
)

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
