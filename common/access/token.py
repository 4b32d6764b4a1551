"""Token: a secret text that says who shows it, as files hold it and calls carry it.

    lipt_ID_SECRET    ID names it where it is listed, SECRET is 32 random bytes in hexadecimal

It is as good as whoever has it: only its SHA-256 is kept by the side that made it. The prefix is
for programs that look for secrets where none should be.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Self

_FORM = re.compile(r"lipt_([a-z0-9]{1,20})_[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Token:
    """A token.

    token_id: names it; no secret.
    text: all of it, which no log and no error may show.
    """

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
