"""The blob servicer as a coordinator has it, with a quota that is not reached by accident."""

from __future__ import annotations

from typing import Any

from lipt.common.blobs.store import BlobStore
from lipt.coordinator.rpc.blobs import BlobService
from lipt.coordinator.storage import Accounts, Quota, Uploads
from tests.clock import Clock

PLENTY = Quota(2**50, 2**50, 10_000, 10_000)


def uploads_into(store: BlobStore) -> Uploads:
    accounts = Accounts(PLENTY, clock=Clock(), is_live=lambda _: False)
    return Uploads(store, accounts)


def blob_service(store: BlobStore, **options: Any) -> BlobService:
    return BlobService(store, uploads_into(store), **options)
