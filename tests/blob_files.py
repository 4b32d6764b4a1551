"""A store's files, as a disk that damages them sees them, and its servicer without a quota."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lipt.common.blobs.store import BlobStore
from lipt.coordinator.rpc.blobs import BlobService
from lipt.coordinator.uploads import Accounts, Quota, Uploads
from tests.clock import Clock


def blob_file(store: Path, sha256: str) -> Path:
    """Where a store keeps a blob; without opening the store, which may be another process's."""
    return store / "blobs" / sha256[:2] / sha256


def flip_a_bit(path: Path, byte: int) -> None:
    """Change one bit of a file; a negative `byte` counts from the end."""
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


def files_of(store: BlobStore) -> list[str]:
    return sorted(
        str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()
    )


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writes beyond it fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


PLENTY = Quota(2**50, 2**50, 10_000, 10_000)


def uploads_into(store: BlobStore) -> Uploads:
    accounts = Accounts(PLENTY, clock=Clock(), is_live=lambda _: False)
    return Uploads(store, accounts)


def blob_service(store: BlobStore, **options: Any) -> BlobService:
    return BlobService(store, uploads_into(store), **options)
