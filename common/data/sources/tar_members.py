"""Members of a tar file: where each lies, from one pass over the headers, which reads no content.

The standard library reads the headers: GNU's and PAX's long names, and sizes past 8 GiB. What it
passes over in silence is refused here: a file that is cut off or goes on with something else, and
sizes that lead outside of it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lipt.common.data.sources.window import Window
from lipt.common.errors import DataError

# Headers take 512 bytes; a long name, or what PAX has to say of a member, some more.
_MOST_AT_ONCE = 2**20
_AGAIN = "Make the shard again, or fetch it again."


@dataclass(frozen=True)
class Member:
    """One entry of a tar file.

    Attributes:
        name: with its folders.
        offset: of its content, bytes from the file's start.
        size: of its content.
        kind: "file", or what it is in place of one, in words.
    """

    name: str
    offset: int
    size: int
    kind: str


def members_of(shard: str, read: Callable[[int, int], bytes], size: int) -> Iterator[Member]:
    """All entries but folders, in their order.

    Args:
        shard: the tar file's name, for messages.
        read: gives a range, by its offset and size; shorter where the file ends. Raises OSError.
        size: of the tar file.

    Raises:
        DataError: it is no tar file, it is cut off or damaged, or cannot be read.
    """
    file = Window(_limited(shard, read), 0, size).buffered()
    last, name = -1, ""
    try:
        # A file object of any other kind would be read from its start to its end.
        archive = tarfile.open(  # noqa: SIM115 - nothing in it has to be closed
            fileobj=file, mode="r:", encoding="utf-8"
        )
        while (info := archive.next()) is not None:
            name = info.name
            _require_inside(shard, info, last, size)
            last = info.offset_data
            # It would keep them all.
            archive.members.clear()  # type: ignore[attr-defined]
            if not info.isdir():
                yield Member(name, info.offset_data, info.size, _kind(info))
        after = archive.offset
        block = read(after, tarfile.BLOCKSIZE)
    except DataError:
        raise
    # A broken file can make the standard library raise nearly anything.
    except Exception as error:
        raise DataError(
            f"{shard} cannot be read as a tar file{_behind(name)}: {error}. {_AGAIN} A compressed "
            "one has to be unpacked to a plain .tar, in which single members can be read."
        ) from error
    if len(block) < tarfile.BLOCKSIZE or any(block):
        what = "something that is no header" if block else "nothing"
        raise DataError(
            f"{shard}: at byte {after}{_behind(name)} there is {what} in place of a tar file's "
            f"end: the shard is cut off or damaged. {_AGAIN}"
        )


def _require_inside(shard: str, info: tarfile.TarInfo, last: int, size: int) -> None:
    end = info.offset_data + info.size
    # Each lies behind the one before: a size below 0 would lead back to it for ever.
    if info.size < 0 or info.offset_data <= last or end > size:
        raise DataError(
            f"{shard}: the member {info.name!r:.200} ends at byte {end} of {size}: the shard is "
            f"cut off or damaged. {_AGAIN}"
        )


def _limited(shard: str, read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    def read_some(offset: int, size: int) -> bytes:
        if size > _MOST_AT_ONCE:
            raise DataError(
                f"{shard}: a header at byte {offset} claims {size} bytes of names: the shard is "
                f"damaged. {_AGAIN}"
            )
        return read(offset, size)

    return read_some


def _behind(name: str) -> str:
    return f", behind the member {name!r:.200}," if name else ""


def _kind(info: tarfile.TarInfo) -> str:
    if info.issparse():
        return "a sparse file, whose holes are left out of the shard"
    if info.issym() or info.islnk():
        return f"a link to {info.linkname!r:.200}"
    return "file" if info.isreg() else "no file, but a device or a pipe"
