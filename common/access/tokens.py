"""Tokens: their form, where a caller reads its own, the secret of a worker, local tokens.

A token is a secret text that says who shows it, as files hold it and calls carry it:

    lipt_ID_SECRET    ID names it where it is listed, SECRET is 32 random bytes in hexadecimal

It is as good as whoever has it: only its SHA-256 is kept by the side that made it. The prefix is
for programs that look for secrets where none should be.

By a local token a coordinator on loopback knows the processes of its own user. Without TLS it
writes one into folders that only its user can read, where clients find it; both are written, as a
client may lack the variable:

    $XDG_RUNTIME_DIR/lipt/PORT.token
    TEMPORARY/lipt-UID/PORT.token

The coordinator holds a lock on the file, which ends with its process: a dead coordinator's token is
never shown to the next user of its port.
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
    """A token; `token_id` is no secret, `text` is never logged."""

    token_id: str
    text: str = field(repr=False)

    @classmethod
    def draw(cls, token_id: str) -> Self:
        """A new one, with a secret that nobody guesses."""
        return cls(token_id, f"lipt_{token_id}_{secrets.token_hex(32)}")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The token of this text, white space around it aside; None where it has another form."""
        form = _FORM.match(text.strip())
        return cls(form[1], form[0]) if form else None

    @property
    def sha256(self) -> str:
        """Digest of the text, in hexadecimal: what may be stored.

        One round is enough: 32 random bytes cannot be tried one by one.
        """
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class TokenSource:
    """A file with a token, or the token itself.

    A file is read for every call: one that was renewed is picked up.
    """

    path: Path | None = None
    text: str = field(default="", repr=False)

    @classmethod
    def from_options(cls, path: Path | None, text: str | SecretStr | None) -> Self | None:
        """That of `--token-file` or, where none is given, LIPT_TOKEN; None where neither is."""
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
                f"--token-file {self.path} cannot be read: {why}. Give a file with what lipt token "
                "create has printed."
            ) from None
        token = Token.parse(text)
        if token is None:
            where = "LIPT_TOKEN" if self.path is None else f"--token-file {self.path}"
            raise ConfigError(
                f"{where} holds no token. One begins with lipt_ and is what lipt token create "
                "has printed."
            )
        return token.text


# A worker proves with its secret, the random `instance_id`, that it is itself. Its id is a hash.

WORKER_SECRET = "lipt-worker-secret"  # noqa: S105 - the name of a metadata key
# 128 bits in hexadecimal.
MIN_SECRET_CHARACTERS = 32

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
