"""Tokens: their form, where a caller reads its own, and the secret of a worker."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from lipt.common.errors import ConfigError

# Token: a secret text that says who shows it, as files hold it and calls carry it.
#
#     lipt_ID_SECRET    ID names it where it is listed, SECRET is 32 random bytes in hexadecimal
#
# It is as good as whoever has it: only its SHA-256 is kept by the side that made it. The prefix is
# for programs that look for secrets where none should be.

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

        One round is enough: unlike a password, 32 random bytes cannot be tried one by one.
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
        text = self.text if self.path is None else _content(self.path)
        token = Token.parse(text)
        if token is None:
            where = "LIPT_TOKEN" if self.path is None else f"--token-file {self.path}"
            raise ConfigError(
                f"{where} holds no token. One begins with lipt_ and is what lipt token create "
                "has printed."
            )
        return token.text


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"--token-file {path} cannot be read: {why}. Give a file with what lipt token create "
            "has printed."
        ) from None


# A worker proves with its secret, the random `instance_id`, that it is itself. Its id is a hash.

WORKER_SECRET = "lipt-worker-secret"  # noqa: S105 - the name of a metadata key
# 128 bits in hexadecimal.
MIN_SECRET_CHARACTERS = 32
