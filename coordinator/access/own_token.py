"""Own token: the one that a coordinator makes for itself, in its state directory.

It makes an admin of whoever can read it, which is the user of the coordinator: the first token for
somebody else is made with it. It stays the same over restarts; another is made where the file was
deleted.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lipt.common.access.tokens import Token
from lipt.common.blobs.durable import publish, temporary_file, write_all

logger = logging.getLogger(__name__)

FILE = "admin.token"
_ID = "admin"


def keep_own_token(state_dir: Path) -> Token:
    """That of the directory; it is made where there is none."""
    path = state_dir / FILE
    try:
        found = Token.parse(path.read_text(encoding="ascii", errors="replace"))
        if found is not None and found.token_id == _ID:
            return found
    except FileNotFoundError:
        pass
    token = Token.draw(_ID)
    try:
        _write(path, token.text)
    except OSError as error:
        # A full disk is no reason not to serve: until the next start this one does.
        logger.warning("%s cannot be written: %s", path, error.strerror)
    return token


def _write(path: Path, text: str) -> None:
    with temporary_file(path.parent) as (file, temporary):
        write_all(file, f"{text}\n".encode())
        publish(file, temporary, path)
