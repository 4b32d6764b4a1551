"""Transfers over a network that cuts and damages them, to a coordinator of its own process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lipt.common.blobs import transfer
from lipt.common.blobs.chunks import chunk_data
from lipt.common.blobs.name import BlobName
from lipt.common.blobs.retry import RetryPolicy
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptChunkError
from lipt.common.protocol import CHUNK_BYTES
from lipt.common.rpc.channel import open_channel
from lipt.v1.blob_pb2_grpc import BlobServiceStub
from tests.end_to_end.cluster import Cluster, LoggedProcess
from tests.faults.conftest import Record
from tests.faults.proxy import Fault, Proxy

NUM_CUTS = 10
POLICY = RetryPolicy(max_failures=20, first_seconds=0.05, max_seconds=0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def coordinator(cluster: Cluster) -> LoggedProcess:
    return cluster.start_coordinator()


@pytest.fixture
def cache(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache", max_blob_bytes=2**30)


def content(seed: int, num_chunks: int = 20) -> bytes:
    return random.Random(seed).randbytes(num_chunks * CHUNK_BYTES + 5)


def store(address: str, data: bytes) -> BlobName:
    with open_channel(address) as channel:
        return transfer.upload(BlobServiceStub(channel), data)


def fetch(
    address: str, name: BlobName, cache: BlobStore, on_bytes: transfer.OnBytes | None = None
) -> bytes:
    with open_channel(address) as channel:
        transfer.download(
            BlobServiceStub(channel),
            name,
            cache,
            on_bytes=on_bytes,
            policy=POLICY,
            idle_seconds=2.0,
        )
    return cache.read_bytes(name)


def send(address: str, data: bytes) -> BlobName:
    with open_channel(address) as channel:
        return transfer.upload(BlobServiceStub(channel), data, policy=POLICY, idle_seconds=2.0)


def cuts(seed: int, *, upstream: bool) -> list[Fault]:
    """Each connection gets four to five chunks far."""
    draw = random.Random(seed)
    return [
        Fault(
            upstream=upstream,
            offset_bytes=draw.randrange(4 * CHUNK_BYTES, 5 * CHUNK_BYTES),
        )
        for _ in range(NUM_CUTS)
    ]


def test_download_that_is_cut_ten_times_goes_on_where_it_had_read_to(
    cluster: Cluster, coordinator: LoggedProcess, cache: BlobStore, record: Record
) -> None:
    # No connection carries more than a tenth: one that starts over never ends.
    data = content(1, num_chunks=5 * NUM_CUTS)
    name = store(cluster.address, data)
    received: list[int] = []
    with Proxy(cluster.address, cuts(1, upstream=False)) as proxy:
        assert fetch(proxy.address, name, cache, received.append) == data
        assert not proxy.faults
    # What had come in whole is not asked for again, not one chunk of it.
    assert sum(received) == len(data)
    again = proxy.bytes_down - len(data)
    record(f"{again / NUM_CUTS / 1000:.0f} kB more per cut")
    assert 0 < again < NUM_CUTS * 5 * CHUNK_BYTES


def test_upload_that_is_cut_ten_times_goes_on_where_the_coordinator_had_read_to(
    cluster: Cluster, coordinator: LoggedProcess, cache: BlobStore, record: Record
) -> None:
    # No connection carries more than a tenth: one that starts over never ends.
    data = content(2, num_chunks=5 * NUM_CUTS)
    with Proxy(cluster.address, cuts(2, upstream=True)) as proxy:
        name = send(proxy.address, data)
        assert not proxy.faults
    # What lay in sockets and windows when it was cut; it cannot be more than was sent.
    again = proxy.bytes_up - len(data)
    record(f"{again / NUM_CUTS / 1000:.0f} kB more per cut")
    assert 0 < again < NUM_CUTS * 5 * CHUNK_BYTES
    assert fetch(cluster.address, name, cache) == data


LONG = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("num_flips", [10, pytest.param(200, marks=LONG)])
def test_flipped_bit_in_a_download_is_noticed_and_asked_for_again(
    cluster: Cluster,
    coordinator: LoggedProcess,
    tmp_path: Path,
    num_flips: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged: list[CorruptChunkError] = []

    def watched(*arguments: Any, **keywords: Any) -> bytes:
        try:
            return chunk_data(*arguments, **keywords)
        except CorruptChunkError as error:
            damaged.append(error)
            raise

    monkeypatch.setattr(transfer, "chunk_data", watched)
    draw = random.Random(num_flips)
    data = content(3, num_chunks=4)
    name = store(cluster.address, data)
    for number in range(num_flips):
        fault = Fault(False, draw.randrange(len(data)), draw.randrange(8))
        with Proxy(cluster.address, [fault]) as proxy:
            cache = BlobStore(tmp_path / f"cache-{number}", max_blob_bytes=2**30)
            assert fetch(proxy.address, name, cache) == data, fault
    # The others fell on headers and broke the connection.
    assert len(damaged) >= 0.9 * num_flips


@pytest.mark.parametrize("num_flips", [10, pytest.param(200, marks=LONG)])
def test_flipped_bit_in_an_upload_is_data_loss_and_is_sent_again(
    cluster: Cluster, coordinator: LoggedProcess, cache: BlobStore, num_flips: int
) -> None:
    draw = random.Random(num_flips)
    before = coordinator.text().count("CORRUPT_CHUNK")
    for number in range(num_flips):
        data = content(1000 * num_flips + number, num_chunks=4)
        fault = Fault(True, draw.randrange(len(data)), draw.randrange(8))
        with Proxy(cluster.address, [fault]) as proxy:
            name = send(proxy.address, data)
        assert fetch(cluster.address, name, cache) == data, fault
    assert coordinator.text().count("CORRUPT_CHUNK") - before >= 0.9 * num_flips
