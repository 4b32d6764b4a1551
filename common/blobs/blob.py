"""Blob names, SHA-256 digest and size, and their messages."""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lipt.common.errors import (
    BlobTooLargeError,
    CorruptBlobError,
    InvalidRequestError,
    WrongOffsetError,
)
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.v1 import blob_pb2

# `$` would allow a final line break.
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class BlobName:
    """A valid SHA-256 digest and a size; safe in a path."""

    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        if not _SHA256.match(self.sha256) or not 0 <= self.size_bytes < 2**63:
            raise InvalidRequestError(
                f"no blob has the SHA-256 {self.sha256[:80]!r} and {self.size_bytes} bytes. "
                "Give the 64 lower-case hexadecimal digits and the length of its content."
            )

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(hashlib.sha256(data).hexdigest(), len(data))

    @classmethod
    def of_file(cls, path: Path) -> Self:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(digest.hexdigest(), file.tell())

    def __str__(self) -> str:
        return f"{self.sha256[:12]} ({self.size_bytes} bytes)"


# Accepts larger chunks than this version sends; far below gRPC's 4 MiB.
MAX_CHUNK_BYTES = 4 * CHUNK_BYTES


def blob_to_proto(name: BlobName) -> blob_pb2.BlobRef:
    return blob_pb2.BlobRef(sha256=name.sha256, size_bytes=name.size_bytes)


def blob_from_proto(message: blob_pb2.BlobRef) -> BlobName:
    return BlobName(message.sha256, message.size_bytes)


def fill_chunk(chunk: blob_pb2.Chunk, offset_bytes: int, data: bytes) -> None:
    """Fill a message's chunk in place: a constructor would copy it twice."""
    chunk.offset_bytes = offset_bytes
    chunk.data = data
    chunk.crc32 = zlib.crc32(data)


def chunk_data(chunk: blob_pb2.Chunk, *, blob: BlobName, offset_bytes: int) -> bytes:
    """A chunk's checked bytes, which continue a blob at `offset_bytes`."""
    data, end_bytes = chunk.data, offset_bytes + len(chunk.data)
    if len(data) > MAX_CHUNK_BYTES:
        raise BlobTooLargeError(
            f"a chunk of blob {blob} has {len(data)} bytes; at most {MAX_CHUNK_BYTES} are taken. "
            f"Send chunks of {CHUNK_BYTES} bytes."
        )
    if chunk.offset_bytes != offset_bytes:
        raise wrong_offset(blob, f"no chunk at {chunk.offset_bytes} follows {offset_bytes} bytes")
    if end_bytes > blob.size_bytes:
        raise wrong_offset(blob, f"a chunk ends at {end_bytes}, after the blob's end")
    if zlib.crc32(data) != chunk.crc32:
        raise CorruptBlobError(f"{blob} at {offset_bytes} differs from its CRC-32. Send it again.")
    return data


def wrong_offset(blob: BlobName, why: str) -> WrongOffsetError:
    return WrongOffsetError(f"blob {blob}: {why}. Ask for its status, and send the rest.")
