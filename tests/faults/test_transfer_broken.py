"""Transfers over a network that cuts and damages them, to a coordinator of its own process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipt.common.backoff import RetryPolicy
from lipt.common.blobs import transfer
from lipt.common.blobs.blob import BlobName, blob_to_proto, chunk_data
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import CorruptBlobError
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.v1 import blob_pb2
from lipt.v1.blob_pb2_grpc import BlobServiceStub
from tests.cluster import Cluster, LoggedProcess
from tests.faults.conftest import Record
from tests.faults.proxy import Fault, Proxy

NUM_CUTS = 10
POLICY = RetryPolicy(max_failures=20, first_seconds=0.05, max_seconds=0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def coordinator(cluster: Cluster) -> LoggedProcess:
    # Behind the proxy its port is another: no local socket is found there.
    return cluster.start_coordinator("--insecure")


@pytest.fixture
def cache(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache", max_blob_bytes=2**30)


def content(seed: int, num_chunks: int = 20) -> bytes:
    return random.Random(seed).randbytes(num_chunks * CHUNK_BYTES + 5)


def fetch(address: str, name: BlobName, cache: BlobStore) -> bytes:
    with open_channel(address) as channel:
        Transfers(BlobServiceStub(channel), policy=POLICY, idle_seconds=2.0).download(name, cache)
    return cache.read_bytes(name)


def send(address: str, data: bytes) -> BlobName:
    with open_channel(address) as channel:
        return Transfers(BlobServiceStub(channel), policy=POLICY, idle_seconds=2.0).upload(data)


def cuts(seed: int, *, upstream: bool) -> list[Fault]:
    """Each connection gets four to five chunks far."""
    draw = random.Random(seed)
    return [
        Fault(upstream=upstream, offset_bytes=draw.randrange(4 * CHUNK_BYTES, 5 * CHUNK_BYTES))
        for _ in range(NUM_CUTS)
    ]


def test_download_that_is_cut_ten_times_goes_on_where_it_had_read_to(
    cluster: Cluster, coordinator: LoggedProcess, cache: BlobStore, record: Record
) -> None:
    data = content(1, num_chunks=5 * NUM_CUTS)
    name = send(cluster.address, data)
    received: list[int] = []
    with (
        Proxy(cluster.address, cuts(1, upstream=False)) as proxy,
        open_channel(proxy.address) as channel,
    ):
        stub = BlobServiceStub(channel)
        Transfers(stub, on_bytes=received.append, policy=POLICY).download(name, cache)
        assert not proxy.faults
    assert cache.read_bytes(name) == data
    # Nothing was read twice; what lay in sockets and windows was sent again.
    assert sum(received) == len(data)
    record(f"{(proxy.bytes_down - len(data)) / NUM_CUTS / 1000:.0f} kB more per cut")


def test_upload_that_is_cut_ten_times_goes_on_where_the_coordinator_had_read_to(
    cluster: Cluster, coordinator: LoggedProcess, cache: BlobStore, record: Record
) -> None:
    data = content(2, num_chunks=5 * NUM_CUTS)
    name = BlobName.of(data)
    kept: list[int] = []
    with open_channel(cluster.address) as direct:
        status = BlobServiceStub(direct).GetUploadStatus
        request = blob_pb2.GetUploadStatusRequest(blob=blob_to_proto(name))

        def after_a_cut(_: float) -> None:
            kept.append(status(request).committed_offset_bytes)

        with (
            Proxy(cluster.address, cuts(2, upstream=True)) as proxy,
            open_channel(proxy.address) as channel,
        ):
            policy = replace(POLICY, sleep=after_a_cut)
            Transfers(BlobServiceStub(channel), policy=policy, idle_seconds=2.0).upload(data)
            assert not proxy.faults
    # What was there stayed there.
    assert len(kept) >= NUM_CUTS
    assert kept == sorted(kept)
    assert kept[-1] > 0
    # What lay in sockets and windows when it was cut.
    record(f"{(proxy.bytes_up - len(data)) / NUM_CUTS / 1000:.0f} kB more per cut")
    assert fetch(cluster.address, name, cache) == data


LONG = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("upstream", [False, True], ids=["download", "upload"])
@pytest.mark.parametrize("num_flips", [10, pytest.param(200, marks=LONG)])
def test_flipped_bit_is_noticed_and_what_it_was_in_is_sent_again(
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

    monkeypatch.setattr(transfer, "chunk_data", watched)
    draw = random.Random(num_flips)
    before = coordinator.text().count("CORRUPT_BLOB")
    for number in range(num_flips):
        # Of its own: what is there already is not sent.
        data = content(1000 * num_flips + 500 * upstream + number, num_chunks=4)
        fault = Fault(upstream, draw.randrange(len(data)), draw.randrange(8))
        cache = BlobStore(tmp_path / f"cache-{number}", max_blob_bytes=2**30)
        with Proxy(cluster.address, [fault]) as proxy:
            sending, fetching = proxy.address, cluster.address
            if not upstream:
                sending, fetching = fetching, sending
            assert fetch(fetching, send(sending, data), cache) == data, fault
    # The others fell on headers and broke the connection.
    noticed = coordinator.text().count("CORRUPT_BLOB") - before if upstream else len(damaged)
    assert noticed >= 0.9 * num_flips
