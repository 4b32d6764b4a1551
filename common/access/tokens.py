"""Tokens: their format and sources, and worker secrets.

A token is a secret text that identifies its bearer:

    lipt_ID_SECRET    ID names it in lists, SECRET is 32 random bytes in hexadecimal

Its issuer stores only the SHA-256. The prefix helps scanners for leaked secrets.
"""

from __future__ import annotations

import hashlib
import re
import secrets
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
        where, why = "LIPT_TOKEN", "holds no token"
        text = self.text
        if self.path is not None:
            where = f"--token-file {self.path}"
            try:
                text = self.path.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                why = f"cannot be read: {error.strerror}"
        token = Token.parse(text)
        if token is None:
            raise ConfigError(f"{where} {why}. lipt token create prints a token.")
        return token.text


# A worker proves its id, a hash, by its secret, the random `instance_id`.
WORKER_SECRET = "lipt-worker-secret"  # noqa: S105 - the name of a metadata key
# 128 bits in hexadecimal.
MIN_SECRET_CHARACTERS = 32
