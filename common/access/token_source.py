"""Token source: where a client has its token from, read anew for every call."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lipt.common.access.token import Token
from lipt.common.errors import ConfigError


@dataclass(frozen=True)
class TokenSource:
    """A file with a token, or the token itself.

    A file is read for every call: one that was renewed is picked up.
    """

    path: Path | None = None
    text: str = field(default="", repr=False)

    @classmethod
    def from_options(cls, path: Path | None, text: str | None) -> Self | None:
        """That of `--token-file` or, where none is given, LIPT_TOKEN; None where neither is.

        Raises:
            ConfigError: as `read`.
        """
        if path is None and not text:
            return None
        source = cls(path, "" if path is not None else text or "")
        source.read()
        return source

    def read(self) -> str:
        """The token.

        Raises:
            ConfigError: the file cannot be read, or what is given is no token; it is not shown.
        """
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
