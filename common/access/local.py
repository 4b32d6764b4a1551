"""Local sockets: how a coordinator on loopback serves processes of its own user.

    $XDG_RUNTIME_DIR/lipt/HOST-PORT.sock      else /run/user/UID/lipt
    TEMPORARY/lipt-UID/HOST-PORT.sock         or lipt-UID-RANDOM, if another user has that name

The folders are their user's alone, so the kernel decides who may connect, and no secret is sent to
the process that listens at a port. HOST is a numeric address: a socket never stands for another
host's port.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

from lipt.common.access.tls import split_address

_PREFIX = "unix:"
_OTHERS = 0o077
# Limits of a socket's path, and of its own name in it.
_LONGEST_PATH_BYTES, _LONGEST_NAME_BYTES = 107, 52


def is_local(peer: str) -> bool:
    """Whether a call's peer, as gRPC names it, came over a Unix-domain socket."""
    return peer.startswith(_PREFIX)


class LocalTarget:
    """The gRPC target for a coordinator on loopback: its live socket, or else its port.

    A socket that was found once stays the target, so that calls wait for a coordinator's restart.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._found: tuple[Path, int] | None = None

    def current(self) -> str:
        """The target to use now."""
        for candidate in _sockets(self._address):
            if candidate == self._found or _is_live(candidate[0]):
                self._found = candidate
                break
        return self._address if self._found is None else f"{_PREFIX}{self._found[0]}"


@contextmanager
def local_sockets(address: str, bind: Callable[[str], object]) -> Iterator[tuple[Path, ...]]:
    """Bind gRPC targets for this user's processes; they are removed at the end of the block."""
    paths: list[Path] = []
    try:
        for folder in _folders(make=True):
            for name in _names(address):
                with suppress(OSError, RuntimeError):
                    path = folder / name
                    if _is_live(path):  # of another network namespace
                        continue
                    path.unlink(missing_ok=True)
                    bind(f"{_PREFIX}{path}")
                    paths.append(path)
        yield tuple(paths)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def forget_dead(address: str) -> None:
    """Remove what a killed coordinator has left, so that no client takes it for this one."""
    for path, _ in _sockets(address):
        if not _is_live(path):
            path.unlink(missing_ok=True)


def _names(address: str) -> tuple[str, ...]:
    host, port = split_address(address)
    hosts = ("127.0.0.1", "::1") if host == "localhost" else (str(ip_address(host)),)
    return tuple(f"{address_of_host.replace(':', '_')}-{port}.sock" for address_of_host in hosts)


def _folders(*, make: bool = False) -> Iterator[Path]:
    """This user's private folders; with `make`, those that can be made as well."""
    user = os.geteuid()
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}")
    temporary = Path(tempfile.gettempdir())
    if len(os.fsencode(temporary)) > _LONGEST_PATH_BYTES - _LONGEST_NAME_BYTES:
        temporary = Path("/tmp")  # noqa: S108 - a private folder is made there
    own = f"lipt-{user}"
    any_private = False
    for folder in (runtime / "lipt", temporary / own, *sorted(temporary.glob(f"{own}-*"))):
        with suppress(OSError):
            if make and folder.name in {"lipt", own}:
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
            if _is_private(folder.lstat()):
                any_private = True
                yield folder
    if make and not any_private:
        with suppress(OSError):
            yield Path(tempfile.mkdtemp(prefix=f"{own}-", dir=temporary))


def _sockets(address: str) -> Iterator[tuple[Path, int]]:
    """This user's sockets for an address, live or not, with their inodes."""
    for folder in _folders():
        for path in (folder / name for name in _names(address)):
            with suppress(OSError):
                stats = path.lstat()
                if stats.st_uid == os.geteuid() and stat.S_ISSOCK(stats.st_mode):
                    yield path, stats.st_ino


def _is_live(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False


def _is_private(stats: os.stat_result) -> bool:
    own = stats.st_uid == os.geteuid() and not stats.st_mode & _OTHERS
    return own and stat.S_ISDIR(stats.st_mode)
