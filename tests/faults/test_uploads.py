"""Peers that send without end, and a coordinator that is killed while it removes what they left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import pytest

from lipt.common.blobs.blob import BlobName, blob_to_proto, fill_chunk
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import from_rpc_error
from lipt.common.rpc.channel import open_channel
from lipt.coordinator.state.maintenance import check_state
from lipt.v1 import blob_pb2, blob_pb2_grpc
from tests.cluster import Cluster
from tests.coordinator.state.conftest import StateBench, state
from tests.faults.conftest import Record
from tests.serving import own_user_channel

__all__ = ["state"]

_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
NUM_UPLOADS, NUM_CONNECTIONS = 1000, 10
FOUR_GIB = 4 * 1024**3
OLD = ["ready shard 0", "ready shard 1", "training shard 0", "uploaded weights"]
KEPT = ["ready result 0", "training shard 1", "cancelled theta*", "ready theta_p", "x" * 24]


async def begin(stub: Any, name: BlobName) -> str:
    """Declare a blob, send one byte of it and leave; the reason of the answer."""
    request = blob_pb2.WriteBlobRequest(blob=blob_to_proto(name))
    fill_chunk(request.chunk, 0, b"x")
    try:
        await stub.WriteBlob(iter([request]), timeout=60)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason
    return "OK"


async def begin_many(address: str, size_bytes: int) -> Counter[str]:
    draw, ends = random.Random(size_bytes), Counter[str]()

    async def send(channel: grpc.aio.Channel) -> None:
        stub = blob_pb2_grpc.BlobServiceStub(channel)
        for _ in range(NUM_UPLOADS // NUM_CONNECTIONS):
            ends[await begin(stub, BlobName(draw.randbytes(32).hex(), size_bytes))] += 1

    channels = [own_user_channel(address, _OPTIONS) for _ in range(NUM_CONNECTIONS)]
    await asyncio.gather(*map(send, channels))
    for channel in channels:
        await channel.close()
    return ends


@pytest.mark.parametrize("size_bytes", [10, FOUR_GIB])
def test_a_thousand_unfinished_uploads_leave_few_files_and_room_for_others(
    cluster: Cluster, size_bytes: int, record: Record
) -> None:
    settings = f"[storage]\nmax_bytes = {10 * FOUR_GIB}\nmax_bytes_per_peer = {FOUR_GIB}\n"
    cluster.start_coordinator(*cluster.config(settings))
    ends = asyncio.run(begin_many(cluster.address, size_bytes))
    files = list((cluster.state / "uploads").iterdir())
    record(f"{len(files)} files of {NUM_UPLOADS} uploads of {size_bytes} bytes: {dict(ends)}")
    # Of each connection 32, or as many as 4 GiB hold.
    most = 32 if size_bytes == 10 else 1
    assert ends == {
        "WRONG_OFFSET": most * NUM_CONNECTIONS,
        "STORAGE_FULL": NUM_UPLOADS - most * NUM_CONNECTIONS,
    }
    assert len(files) == most * NUM_CONNECTIONS
    if size_bytes == 10:
        with open_channel(cluster.address) as channel:
            honest = Transfers(blob_pb2_grpc.BlobServiceStub(channel))
            assert honest.upload(b"weights") == BlobName.of(b"weights")


def test_coordinator_killed_in_the_midst_of_removing_loses_nothing(
    cluster: Cluster, state: StateBench
) -> None:
    assert cluster.state == state.directory
    for path in (*state.directory.glob("blobs/*/*"),):
        os.utime(path, (1000.0, 1000.0))
    flags = cluster.config("[storage]\ncollect_every_seconds = 0.2\n")
    program = ("-m", "tests.faults.dying_coordinator", "removal", "4", "--")
    dying = cluster.launch_coordinator(*flags, program=program)
    assert dying.wait() == -signal.SIGKILL
    # Three were removed before that; not one of those that records need.
    assert len([text for text in OLD if state.has(text)]) > 0
    assert [text for text in KEPT if not state.has(text)] == []
    assert check_state(state.directory).problems == ()
    coordinator = cluster.start_coordinator(*flags)
    coordinator.wait_for(r"event=expired detail=blobs files=5 ")
    assert [text for text in OLD if state.has(text)] == []
    assert [text for text in KEPT if not state.has(text)] == []
    assert coordinator.stop() == 0
    assert check_state(state.directory).problems == ()
