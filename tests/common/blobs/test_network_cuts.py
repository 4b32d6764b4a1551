from __future__ import annotations

import asyncio
import random
from typing import Any

from lipt.common.backoff import RetryPolicy
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.v1.blob_pb2_grpc import BlobServiceStub
from tests.faults.proxy import Fault, Proxy

DATA = random.Random(0).randbytes(20 * CHUNK_BYTES + 5)
NAME = BlobName.of(DATA)
NUM_CUTS = 10
POLICY = RetryPolicy(max_failures=20, first_seconds=0.05, max_seconds=0.5)


def cuts(*, upstream: bool) -> list[Fault]:
    """Connections get one to two chunks far, so that all of them are cut."""
    draw = random.Random(1)
    return [
        Fault(upstream=upstream, offset_bytes=draw.randrange(CHUNK_BYTES, 2 * CHUNK_BYTES))
        for _ in range(NUM_CUTS)
    ]


async def test_a_download_survives_a_network_that_is_cut_ten_times(
    blobs: Any, cache: BlobStore
) -> None:
    blobs.store.put_bytes(DATA)
    counted = list[int]()
    with (
        Proxy(blobs.address, cuts(upstream=False)) as proxy,
        open_channel(proxy.address) as channel,
    ):
        stub = BlobServiceStub(channel)
        await asyncio.to_thread(
            Transfers(stub, on_bytes=counted.append, policy=POLICY).download, NAME, cache
        )
    assert not proxy.faults
    assert cache.read_bytes(NAME) == DATA
    # No byte that was kept is asked for again.
    assert sum(counted) == len(DATA)


async def test_an_upload_survives_a_network_that_is_cut_ten_times(blobs: Any) -> None:
    with (
        Proxy(blobs.address, cuts(upstream=True)) as proxy,
        open_channel(proxy.address) as channel,
    ):
        await asyncio.to_thread(Transfers(BlobServiceStub(channel), policy=POLICY).upload, DATA)
    assert not proxy.faults
    assert blobs.store.read_bytes(NAME) == DATA
    # A cut costs at most the chunk that had arrived and was not yet written.
    assert len(DATA) <= blobs.num_bytes <= len(DATA) + NUM_CUTS * CHUNK_BYTES
