"""Kept indexes: what a scan of large files found, stamped with the files it read."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lipt.common.data.room import make_room
from lipt.common.data.sources.remote import is_url, looks
from lipt.common.weights.files import write_packed

# Stamp: what a source's files look like from outside, to notice when they are changed.
#
# Their names, sizes, inodes and times are compared, and not what is in them: that takes
# milliseconds, and is done before and after everything that is computed on them. A copy that
# keeps the time of a file's content (mtime) has another time of its own (ctime). Of files behind
# URLs, what the server says is compared: sizes, entity tags, times.

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


# Packed names: very many short texts as one block of bytes, which a file can be mapped to.
#
# A Python list of a million paths takes 150 MB and more; packed they take what their letters do.
#
# Shapes: N names.


@dataclass(frozen=True)
class PackedNames:
    """Names in order.

    Attributes:
        letters: uint8, of all of them, one behind the other, as UTF-8.
        ends_N: int64, where each ends in `letters`.
    """

    letters: Tensor
    ends_N: Tensor

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Pack names; of any bytes, where they are a file system's."""
        encoded = [name.encode(errors="surrogateescape") for name in names]
        lengths_N = torch.tensor([len(name) for name in encoded], dtype=torch.int64)
        joined = bytearray(b"".join(encoded))
        letters = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0).byte()
        return cls(letters, lengths_N.cumsum(0))

    def __getitem__(self, row: int) -> str:
        start = int(self.ends_N[row - 1]) if row else 0
        letters = self.letters[start : int(self.ends_N[row])].numpy().tobytes()
        return str(letters, "utf-8", "surrogateescape")

    def __len__(self) -> int:
        return len(self.ends_N)


# Kept indexes: what was found out about very many files, on disk, so that it is found out once.
#
#     NAME.DIGEST.safetensors    NAME says what the content depends on, DIGEST what it is
#
# Nothing has to be synced or locked: a file appears as a whole, two processes that make the same
# one at once write the same, and one that a crash or the disk has damaged does not have its digest
# any more, and is made again. They lie in the user's cache directory, which XDG_CACHE_HOME may
# name.

logger = logging.getLogger(__name__)

# Those that were used last; an index of a million images takes about 60 MB, and a million pairs
# of 512 features 4 GB.
MOST_FILES = 64
MOST_BYTES = 32 * 2**30


def index_folder() -> Path:
    """Where indexes are kept."""
    return user_cache_path("lipt") / "indexes"


def kept(
    kind: str, depends_on: tuple[object, ...], make: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """The tensors that were kept, mapped into memory; or those of `make`, kept from then on.

    Args:
        kind: what they are.
        depends_on: everything that they depend on, told apart by `repr`.
        make: gives them. What it raises is raised, and nothing is kept.
    """
    folder = index_folder()
    name = f"{kind}-{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]}"
    found = _find(folder, name)
    if found is not None:
        return found
    made = make()
    try:
        path = _write(folder, name, made)
        loaded = load_file(path)
    except (OSError, SafetensorError) as error:
        logger.warning(
            "what was found out about the data is not kept in %s, and will be found out again at "
            "the next opening: %s. Name a directory that can be written with XDG_CACHE_HOME",
            folder,
            error,
        )
        return made
    _forget_oldest(folder)
    return loaded


def _find(folder: Path, name: str) -> Mapping[str, Tensor] | None:
    for path in sorted(folder.glob(f"{name}.*.safetensors")):
        try:
            if path.name == _file_name(name, path):
                os.utime(path)
                return load_file(path)
            logger.warning("%s is damaged: it is made again", path)
            path.unlink()
        except (OSError, SafetensorError) as error:  # another process may have removed it
            logger.warning("%s cannot be used: %s", path, error)
    return None


def _write(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.") as temporary:
        path = Path(temporary) / "index"
        write_packed(path, tensors)
        return path.replace(folder / _file_name(name, path))


def _file_name(name: str, path: Path) -> str:
    """The name that a file should have for what it holds."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{name}.{digest[:32]}.safetensors"


def _forget_oldest(folder: Path) -> None:
    found: list[tuple[float, Path, int]] = []
    for path in folder.glob("*.safetensors"):
        try:
            stat = path.stat()
            found.append((stat.st_mtime, path, stat.st_size))
        except OSError:  # another process was faster
            continue
    num_bytes = 0
    for place, (_, path, size) in enumerate(sorted(found, reverse=True)):
        num_bytes += size
        # The last one is wanted now, however large it is.
        if place >= MOST_FILES or (place and num_bytes > MOST_BYTES):
            path.unlink(missing_ok=True)


# Large values: room for what is made of all rows, in a mapped file where it is much.


# Beyond it, values are in a file of the cache directory from the start.
MEMORY_BYTES = 2**28


def room_for(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor; a large one has no name on the disk, and is gone with its user."""
    return make_room(shape, dtype, index_folder(), memory_bytes=MEMORY_BYTES)
