"""A store's files, as a disk that damages them sees them."""

from __future__ import annotations

from pathlib import Path


def blob_file(store: Path, sha256: str) -> Path:
    """Where a store keeps a blob; without opening the store, which may be another process's."""
    return store / "blobs" / sha256[:2] / sha256


def flip_a_bit(path: Path, byte: int, bit: int = 0) -> None:
    """Change one bit of a file; a negative `byte` counts from the end."""
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)
