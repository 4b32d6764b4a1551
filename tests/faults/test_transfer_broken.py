"""Transfers over a network that damages them, to a coordinator of its own process."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lipt.common.backoff import RetryPolicy
from lipt.common.blobs import transfer
from lipt.common.blobs.blob import BlobName, chunk_data
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import CorruptBlobError, LiptError, from_rpc_error
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.v1.blob_pb2_grpc import BlobServiceStub
from tests.cluster import Cluster, LoggedProcess
from tests.faults.proxy import Fault, Proxy

POLICY = RetryPolicy(max_failures=20, first_seconds=0.05, max_seconds=0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def coordinator(cluster: Cluster) -> LoggedProcess:
    # Behind the proxy its port is another: no local socket is found there.
    return cluster.start_coordinator("--insecure")


def fetch(address: str, name: BlobName, cache: BlobStore) -> bytes:
    with open_channel(address) as channel:
        Transfers(BlobServiceStub(channel), policy=POLICY, idle_seconds=2.0).download(name, cache)
    return cache.read_bytes(name)


def send(address: str, data: bytes) -> BlobName:
    with open_channel(address) as channel:
        return Transfers(BlobServiceStub(channel), policy=POLICY, idle_seconds=2.0).upload(data)


LONG = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("upstream", [False, True], ids=["download", "upload"])
@pytest.mark.parametrize("num_flips", [10, pytest.param(200, marks=LONG)])
def test_a_flipped_bit_in_transfer_is_detected_and_resent(
    cluster: Cluster,
    coordinator: LoggedProcess,
    tmp_path: Path,
    upstream: bool,
    num_flips: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged: list[CorruptBlobError] = []

    def watched(*arguments: Any, **keywords: Any) -> bytes:
        try:
            return chunk_data(*arguments, **keywords)
        except CorruptBlobError as error:
            damaged.append(error)
            raise

    def refused(error: grpc.RpcError) -> LiptError:
        found = from_rpc_error(error)
        damaged.extend([found] if isinstance(found, CorruptBlobError) else [])
        return found

    # On the way down the client notices, on the way up the coordinator tells it.
    monkeypatch.setattr(transfer, "chunk_data", watched)
    monkeypatch.setattr(transfer, "from_rpc_error", refused)
    draw = random.Random(num_flips)
    for number in range(num_flips):
        # Of its own: what is there already is not sent.
        seed = 1000 * num_flips + 500 * upstream + number
        data = random.Random(seed).randbytes(4 * CHUNK_BYTES + 5)
        fault = Fault(upstream, draw.randrange(len(data)), draw.randrange(8))
        cache = BlobStore(tmp_path / f"cache-{number}", max_blob_bytes=2**30)
        with Proxy(cluster.address, [fault]) as proxy:
            sending, fetching = proxy.address, cluster.address
            if not upstream:
                sending, fetching = fetching, sending
            assert fetch(fetching, send(sending, data), cache) == data, fault
    # The others fell on headers and broke the connection.
    assert len(damaged) >= 0.9 * num_flips
