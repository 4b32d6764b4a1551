"""Blob name: the digest and the size of a content, so that equal contents are stored once."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lipt.common.errors import InvalidBlobNameError

# `$` would let a line break follow.
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class BlobName:
    """A digest and a size; every instance is well formed, so it is safe in a path.

    Attributes:
        sha256: lower-case hexadecimal SHA-256 of the content.
        size_bytes: the content's length.

    Raises:
        InvalidBlobNameError: the digest or the size has another form.
    """

    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        if not _SHA256.match(self.sha256):
            raise InvalidBlobNameError(
                f"{self.sha256[:80]!r} does not name a blob. "
                "Give 64 lower-case hexadecimal digits: the SHA-256 of its content."
            )
        if not 0 <= self.size_bytes < 2**63:
            raise InvalidBlobNameError(
                f"blob {self.sha256[:12]} cannot have {self.size_bytes} bytes. "
                "Give the length of its content."
            )

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The name of a content."""
        return cls(hashlib.sha256(data).hexdigest(), len(data))

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """The name of a file's content, which is read once, a piece at a time."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(digest.hexdigest(), file.tell())

    def __str__(self) -> str:
        return f"{self.sha256[:12]} ({self.size_bytes} bytes)"
