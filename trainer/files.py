"""Atomic files and folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from lipt.common.blobs.files import sync
from lipt.common.errors import SubsetError

CodecT = TypeVar("CodecT")


@contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """A temporary file, private at first, that replaces `path` when the block succeeds.

    It is synced before the rename. A block that raises leaves `path` unchanged.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        rename_finished(temporary, path, mode=mode)
    finally:
        temporary.unlink(missing_ok=True)


def rename_finished(temporary: Path, path: Path, *, mode: int | None = None) -> None:
    """Rename a finished temporary file, with permissions `mode` or a user's default ones."""
    temporary.chmod(0o666 & ~_umask() if mode is None else mode)
    temporary.replace(path)


def write_atomically(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that durably replaces `folder`, which is absent or empty, on success."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already. Name a folder that is not, or empty it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        temporary.chmod(0o777 & ~_umask())
        temporary.replace(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def codec_of(path: Path, codecs: Mapping[str, CodecT], what: str) -> CodecT:
    """The codec of a file's suffix; SubsetError for another. `what`: `a subset is read`."""
    codec = codecs.get(path.suffix.lower())
    if codec is None:
        raise SubsetError(
            f"'{path}' has the suffix {path.suffix!r}; {what} as one of {', '.join(codecs)}. "
            "Choose one of these suffixes."
        )
    return codec


def _umask() -> int:
    mask = os.umask(0o077)  # reading it is setting it
    os.umask(mask)
    return mask
