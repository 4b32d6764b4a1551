from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.retry import RetryPolicy
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import download, upload
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.protocol import CHUNK_BYTES
from lipt.v1.blob_pb2_grpc import BlobServiceStub

DATA = random.Random(0).randbytes(20 * CHUNK_BYTES + 5)
NAME = BlobName.of(DATA)
NUM_CUTS = 10
POLICY = RetryPolicy(max_failures=20, first_seconds=0.05, max_seconds=0.5)


def offsets() -> list[int]:
    """How far the connections get: one to two chunks, so that all of them are cut."""
    draw = random.Random(1)
    return [draw.randrange(CHUNK_BYTES, 2 * CHUNK_BYTES) for _ in range(NUM_CUTS)]


@asynccontextmanager
async def cutting_proxy(address: str, *, upstream: bool, cuts: list[int]) -> AsyncIterator[str]:
    """Forwards TCP; resets each connection after so many bytes of one direction."""
    tasks: set[asyncio.Task[None]] = set()

    async def forward(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
    ) -> None:
        while data := await reader.read(65536):
            writer.write(data[:limit])
            await writer.drain()
            limit = None if limit is None else limit - len(data)
            if limit is not None and limit <= 0:
                return

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        limit = cuts.pop(0) if cuts else None
        server_reader, server_writer = await asyncio.open_connection(*address.split(":"))
        ways = [
            asyncio.ensure_future(forward(reader, server_writer, limit if upstream else None)),
            asyncio.ensure_future(forward(server_reader, writer, None if upstream else limit)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            server_writer.transport.abort()
            writer.transport.abort()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def stub_at(address: str) -> Iterator[BlobServiceStub]:
    with open_channel(address) as channel:
        yield BlobServiceStub(channel)


async def test_a_download_survives_a_network_that_is_cut_ten_times(
    blobs: Any, cache: BlobStore
) -> None:
    blobs.store.put_bytes(DATA)
    cuts, counted = offsets(), list[int]()
    async with cutting_proxy(blobs.address, upstream=False, cuts=cuts) as address:
        with stub_at(address) as stub:
            await asyncio.to_thread(
                download, stub, NAME, cache, on_bytes=counted.append, policy=POLICY
            )
    assert not cuts
    assert cache.read_bytes(NAME) == DATA
    # No byte that was kept is asked for again.
    assert sum(counted) == len(DATA)


async def test_an_upload_survives_a_network_that_is_cut_ten_times(blobs: Any) -> None:
    cuts = offsets()
    async with cutting_proxy(blobs.address, upstream=True, cuts=cuts) as address:
        with stub_at(address) as stub:
            await asyncio.to_thread(upload, stub, DATA, policy=POLICY)
    assert not cuts
    assert blobs.store.read_bytes(NAME) == DATA
    # A cut costs at most the chunk that had arrived and was not yet written.
    assert len(DATA) <= blobs.num_bytes <= len(DATA) + NUM_CUTS * CHUNK_BYTES
