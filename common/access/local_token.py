"""Local token: how a coordinator on loopback knows the processes of its own user.

Without TLS it writes a token into a folder that only its user can read, where clients find it:

    $XDG_RUNTIME_DIR/lipt/PORT.token
    TEMPORARY/lipt-UID/PORT.token

Both are written, as a client may lack the variable. The coordinator holds a lock on the file, which
ends with its process: a dead coordinator's token is never shown to the next user of its port.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# Under which a call carries it; a coordinator that needs none does not look at it.
METADATA_KEY = "lipt-local-token"

_OTHERS = 0o077
_MAX_BYTES = 1000


def find_local_token(port: int) -> str | None:
    """The token of this user's live coordinator on a loopback port; None where there is none."""
    for folder in _folders():
        with suppress(OSError):
            if (token := _read(folder / f"{port}.token")) is not None:
                return token
    return None


@contextmanager
def published(port: int, token: str) -> Iterator[tuple[Path, ...]]:
    """Let this user's clients find the token during the block."""
    with ExitStack() as stack:
        paths: list[Path] = []
        for folder in _folders():
            path = folder / f"{port}.token"
            with suppress(OSError):
                stack.callback(_withdraw, path, _publish(path, token))
                paths.append(path)
        yield tuple(paths)


def _folders() -> Iterator[Path]:
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute():
        yield runtime / "lipt"
    with suppress(OSError):  # nowhere at all can be written
        yield Path(tempfile.gettempdir()) / f"lipt-{os.geteuid()}"


def _publish(path: Path, token: str) -> int:
    with suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    _require_own(path.parent.lstat(), stat.S_ISDIR)
    with suppress(FileNotFoundError):
        # Of a coordinator on the same port of another loopback address.
        if _read(path) is not None:
            raise FileExistsError(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.write(descriptor, token.encode())
        # Before it can be found: who finds it unlocked takes it for a dead one's.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        Path(temporary).replace(path)
    except BaseException:
        os.close(descriptor)
        Path(temporary).unlink(missing_ok=True)
        raise
    return descriptor


def _withdraw(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        # Another coordinator may have the port by now.
        if os.path.samestat(path.lstat(), os.fstat(descriptor)):
            path.unlink()
    os.close(descriptor)


def _read(path: Path) -> str | None:
    _require_own(path.parent.lstat(), stat.S_ISDIR)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _require_own(os.fstat(descriptor), stat.S_ISREG)
        with suppress(BlockingIOError):
            # Shared: clients that look at the same moment do not take each other for it.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        return os.read(descriptor, _MAX_BYTES).decode("ascii", errors="replace")
    finally:
        os.close(descriptor)


def _require_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    own = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS
    if not own or not is_kind(found.st_mode):
        raise PermissionError("it is not this user's alone")
