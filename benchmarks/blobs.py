"""How fast one blob moves between two processes, as a share of a raw TCP copy.

The server is a process of its own, as in life. The raw copy sends the same bytes
over loopback with sendall and recv_into, in the same run, so that the share
says more than the MB/s of this machine. At last a whole round of a worker that trains
nothing: register, fetch theta*, hand it in as it is, and have it acknowledged, durable.
Run: python -m benchmarks.blobs [--mb 256]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import grpc
import grpc.aio
import torch
from safetensors.torch import load_file

from benchmarks.processes import serving
from lipt import Client
from lipt.common.blobs import transfer
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.observability.logs import Events
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.messages import CHUNK_BYTES
from lipt.coordinator.rpc import blobs
from lipt.coordinator.rpc.handlers import Interceptor, refusals
from lipt.coordinator.uploads import Accounts, Quota, Uploads
from lipt.models.encodings import encode_sparse
from lipt.v1 import blob_pb2_grpc, worker_pb2
from lipt.worker.client import CoordinatorClient
from lipt.worker.settings import WorkerSettings

REPEATS = 5
MAX_BLOB_BYTES = 2**40


@contextmanager
def chunks_of(num_bytes: int) -> Iterator[None]:
    """Change what this process sends in one message; readers take any size."""
    with (
        patch.object(transfer, "CHUNK_BYTES", num_bytes),
        patch.object(blobs, "CHUNK_BYTES", num_bytes),
    ):
        yield


def serve(pipe: Connection, root: Path, chunk_bytes: int) -> None:
    """Serve a store until the other end of the pipe closes."""

    async def run() -> None:
        server = grpc.aio.server(interceptors=[Interceptor(lambda _: (refusals(Events()),))])
        store = BlobStore(root, max_blob_bytes=MAX_BLOB_BYTES)
        quota = Quota(MAX_BLOB_BYTES, MAX_BLOB_BYTES, 100, 100)
        accounts = Accounts(quota, clock=time.monotonic, is_live=lambda _: False)
        service = blobs.BlobService(store, Uploads(store, accounts))
        blob_pb2_grpc.add_BlobServiceServicer_to_server(service, server)
        pipe.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await asyncio.to_thread(pipe.poll, None)
        await server.stop(0)

    with chunks_of(chunk_bytes):
        asyncio.run(run())


def serve_raw(pipe: Connection, num_bytes: int) -> None:
    """Send and receive raw bytes in turn until the peer closes."""
    data, buffer = os.urandom(num_bytes), bytearray(CHUNK_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            while command := connection.recv(1):
                if command == b"r":
                    connection.sendall(data)
                else:
                    receive(connection, buffer, num_bytes)
                    connection.sendall(b"k")


def receive(connection: socket.socket, buffer: bytearray, num_bytes: int) -> None:
    """Take bytes and drop them."""
    while num_bytes:
        num_bytes -= connection.recv_into(buffer, min(len(buffer), num_bytes))


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run a server in a process of its own; gives its port."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=target, args=(there, *arguments), daemon=True)
    server.start()
    there.close()
    yield here.recv()
    here.close()
    server.join()


def median_seconds(action: Callable[[], object], prepare: Callable[[], object]) -> float:
    """The median of some calls, after one that warms up."""
    seconds = []
    for _ in range(REPEATS + 1):
        prepare()
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])[REPEATS // 2]


def measure_raw(num_bytes: int) -> tuple[float, float]:
    """Seconds to receive and to send over a bare socket."""
    data, buffer = os.urandom(num_bytes), bytearray(CHUNK_BYTES)
    with (
        process(serve_raw, num_bytes) as port,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):

        def down() -> None:
            connection.sendall(b"r")
            receive(connection, buffer, num_bytes)

        def up() -> None:
            connection.sendall(b"w")
            connection.sendall(data)
            connection.recv(1)

        return median_seconds(down, int), median_seconds(up, int)


def measure_blobs(num_bytes: int, chunk_bytes: int) -> tuple[float, float, float]:
    """Seconds to download into memory, into a store, and to upload, durably."""
    data = os.urandom(num_bytes)
    with tempfile.TemporaryDirectory() as folder, chunks_of(chunk_bytes):
        root = Path(folder) / "coordinator"
        theirs = BlobStore(root, max_blob_bytes=MAX_BLOB_BYTES)
        ours = BlobStore(Path(folder) / "cache", max_blob_bytes=MAX_BLOB_BYTES)
        name = theirs.put_bytes(data)

        def forget(store: BlobStore) -> None:
            if store.has(name):
                store.path(name).unlink()

        with (
            process(serve, root, chunk_bytes) as port,
            open_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub = blob_pb2_grpc.BlobServiceStub(channel)
            memory = median_seconds(
                lambda: Transfers(stub).download_bytes(name, max_bytes=num_bytes), int
            )
            file = median_seconds(
                lambda: Transfers(stub).download(name, ours), lambda: forget(ours)
            )
            up = median_seconds(lambda: Transfers(stub).upload(data), lambda: forget(theirs))
    return memory, file, up


def measure_round() -> tuple[float, float]:
    """MB of ResNet-18's theta*, and seconds of an identity round, the median of some."""
    run = {
        "model": "resnet18",
        "learners": {"num_learners": REPEATS + 1, "batch_size": 1},
        "pruning": {"method": "none"},
    }
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving(Path(scratch), "digits", "resnet18") as service,
    ):
        with Client(service.address) as client:
            client.start_run(run)
            next(view for view in client.watch() if view.learners)
        caches = [Path(scratch) / str(number) for number in range(REPEATS + 1)]
        rounds = [identity_round(service.address, cache) for cache in caches]
    return rounds[0][0], sorted(seconds for _, seconds in rounds[1:])[REPEATS // 2]


def identity_round(address: str, cache: Path) -> tuple[float, float]:
    """MB and seconds of one round of a new worker."""
    store = BlobStore(cache, max_blob_bytes=MAX_BLOB_BYTES)
    start = time.perf_counter()
    with open_channel(address) as channel:
        client = CoordinatorClient(channel)
        client.register(cache.name, WorkerSettings(name="idle"), torch.device("cpu"))
        assignment = client.acquire()
        assert assignment is not None
        path = Transfers(client.blobs).download(assignment.initial_weights, store)
        weights = load_file(path)
        result = Transfers(client.blobs).upload(encode_sparse(weights))
        client.commit(assignment, [result], worker_pb2.LearnerReport())
        return assignment.initial_weights.size_bytes / 1e6, time.perf_counter() - start


def main() -> None:
    """Print a row per way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=45, help="size of the blob, in MB")
    num_bytes = parser.parse_args().mb * 1_000_000
    raw_down, raw_up = measure_raw(num_bytes)
    print(f"{'what':<46} {'MB/s':>6} {'of raw TCP':>10}")

    def row(what: str, seconds: float, raw: float) -> None:
        print(f"{what:<46} {num_bytes / seconds / 1e6:>6.0f} {raw / seconds:>10.0%}")

    row("raw TCP, received", raw_down, raw_down)
    row("raw TCP, sent", raw_up, raw_up)
    for chunk_bytes in (CHUNK_BYTES, 64 * 1024):
        memory, file, up = measure_blobs(num_bytes, chunk_bytes)
        size = f"{chunk_bytes // 1024} KiB chunks"
        row(f"download into memory, {size}", memory, raw_down)
        row(f"download into a store, durable, {size}", file, raw_down)
        row(f"upload, durable, {size}", up, raw_up)
    megabytes, seconds = measure_round()
    print(f"identity round of {megabytes:.1f} MB: {seconds:.2f} s")


if __name__ == "__main__":
    main()
