"""Tokens: their format and sources, worker secrets, and local tokens.

A token is a secret text that identifies its bearer:

    lipt_ID_SECRET    ID names it in lists, SECRET is 32 random bytes in hexadecimal

Its issuer stores only the SHA-256. The prefix helps scanners for leaked secrets.

A local token lets a coordinator on loopback without TLS recognize processes of its own user. It is
written into two folders that only this user can read, as a client may lack the variable:

    $XDG_RUNTIME_DIR/lipt/PORT.token
    TEMPORARY/lipt-UID/PORT.token

The coordinator locks the file for the life of its process, so a dead coordinator's token is never
sent to the port's next user.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from lipt.common.errors import ConfigError

_FORM = re.compile(r"lipt_([a-z0-9]{1,20})_[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Token:
    """A token; `token_id` is public, `text` is never logged."""

    token_id: str
    text: str = field(repr=False)

    @classmethod
    def draw(cls, token_id: str) -> Self:
        """A new token."""
        return cls(token_id, f"lipt_{token_id}_{secrets.token_hex(32)}")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The token in a text; None for another format."""
        form = _FORM.match(text.strip())
        return cls(form[1], form[0]) if form else None

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, in hexadecimal; one round suffices for 32 random bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class TokenSource:
    """A token, or a file with one that is read for every call."""

    path: Path | None = None
    text: str = field(default="", repr=False)

    @classmethod
    def from_options(cls, path: Path | None, text: str | SecretStr | None) -> Self | None:
        """The token of `--token-file`, else of LIPT_TOKEN, else None."""
        if isinstance(text, SecretStr):
            text = text.get_secret_value()
        if path is None and not text:
            return None
        source = cls(path, "" if path is not None else text or "")
        source.read()
        return source

    def read(self) -> str:
        """The token."""
        try:
            text = self.text if self.path is None else self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(
                f"--token-file {self.path} cannot be read: {why}. Give a file with the output of "
                "lipt token create."
            ) from None
        token = Token.parse(text)
        if token is None:
            where = "LIPT_TOKEN" if self.path is None else f"--token-file {self.path}"
            raise ConfigError(f"{where} holds no token. lipt token create prints one.")
        return token.text


# A worker proves its id, a hash, by its secret, the random `instance_id`.
WORKER_SECRET = "lipt-worker-secret"  # noqa: S105 - the name of a metadata key
# 128 bits in hexadecimal.
MIN_SECRET_CHARACTERS = 32

METADATA_KEY = "lipt-local-token"

_OTHERS = 0o077
_MAX_BYTES = 1000


def find_local_token(port: int) -> str | None:
    """The token of this user's running coordinator on a loopback port, if any."""
    for folder in _folders():
        with suppress(OSError):
            if (token := _read(folder / f"{port}.token")) is not None:
                return token
    return None


@contextmanager
def published(port: int, token: str) -> Iterator[tuple[Path, ...]]:
    """Publish the token to this user's clients during the block."""
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
    with suppress(OSError):  # no writable directory
        yield Path(tempfile.gettempdir()) / f"lipt-{os.geteuid()}"


def _publish(path: Path, token: str) -> int:
    with suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    _require_own(path.parent.lstat(), stat.S_ISDIR)
    with suppress(FileNotFoundError):
        # Another coordinator may use this port on another loopback address.
        if _read(path) is not None:
            raise FileExistsError(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.write(descriptor, token.encode())
        # Lock before publishing: an unlocked token counts as a dead coordinator's.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        Path(temporary).replace(path)
    except BaseException:
        os.close(descriptor)
        Path(temporary).unlink(missing_ok=True)
        raise
    return descriptor


def _withdraw(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        # Another coordinator may have taken the port.
        if os.path.samestat(path.lstat(), os.fstat(descriptor)):
            path.unlink()
    os.close(descriptor)


def _read(path: Path) -> str | None:
    _require_own(path.parent.lstat(), stat.S_ISDIR)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _require_own(os.fstat(descriptor), stat.S_ISREG)
        with suppress(BlockingIOError):
            # Shared, so that two clients do not mistake each other for the coordinator.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        return os.read(descriptor, _MAX_BYTES).decode("ascii", errors="replace")
    finally:
        os.close(descriptor)


def _require_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    own = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS
    if not own or not is_kind(found.st_mode):
        raise PermissionError("it is not this user's alone")
