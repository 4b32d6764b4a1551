"""Stamp: what a source's files look like from outside, to notice when they are changed.

Their names, sizes, inodes and times are compared, and not what is in them: that takes
milliseconds, and is done before and after everything that is computed on them. A copy that
keeps the time of a file's content (mtime) has another time of its own (ctime). Of files behind
URLs, what the server says is compared: sizes, entity tags, times.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from lipt.common.data.sources.remote import is_url, looks

# A look at so many takes 0.1 to 0.3 s on a local disk. Of more, as many evenly spaced ones are
# looked at, and the folders: whatever is put in a file's place changes its folder's times.
MAX_FILES = 20_000


@dataclass(frozen=True)
class Stamp:
    """The look of some files, and of folders, at one moment."""

    paths: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, files: Sequence[str | os.PathLike[str]], folders: Sequence[str] = ()) -> Stamp:
        """How files look now.

        Args:
            files: what a data set is read from.
            folders: those that the files are in; looked at where there are too many files.
        """
        step = max(1, -(-len(files) // MAX_FILES))
        paths = (*(os.fspath(file) for file in files[::step]), *(folders if step > 1 else ()))
        return cls(paths, _look(paths))

    def holds(self) -> bool:
        """Whether they still look so."""
        return _look(self.paths) == self.digest


def _look(paths: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    urls = [path for path in paths if is_url(path)]
    answers = dict(zip(urls, looks(urls), strict=True)) if urls else {}
    for path in paths:
        seen: tuple[int | None, ...]
        if path in answers:
            digest.update(repr((path, answers[path])).encode())
            continue
        try:
            stat = os.stat(path)  # noqa: PTH116 - a Path for each would cost more than the call
            seen = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        except OSError as error:
            seen = (error.errno,)
        digest.update(repr((path, seen)).encode(errors="surrogateescape"))
    return digest.hexdigest()
