"""What long lists of examples cost to serve: bytes, seconds, and memory at both ends.

A server process has the list in a blob, as selection leaves it there, and answers by the
coordinator's own servicer over gRPC on loopback; trainers are processes with the client's own
code. Peaks of memory are the kernel's (VmHWM), without what the process took before. "Plain" is
what trainers before protocol 1.6 are sent. Run: python benchmarks/serving_subsets.py [--huge]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc.aio
import numpy as np

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.rpc.status import ErrorInterceptor
from lipt.coordinator.rpc.subsets import SubsetService
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import SubsetRecord
from lipt.coordinator.subsets.sending import Accepted, Sending, SubsetContents
from lipt.coordinator.subsets.service import Answer
from lipt.coordinator.subsets.verification import Verification
from lipt.trainer.client.subset_reception import Reception
from lipt.trainer.client.subset_stream import fetch_subset, subset_request
from lipt.trainer.connection.connection import Connection
from lipt.trainer.connection.reconnection import Reconnection
from lipt.v1 import subset_pb2_grpc

_BLOCK = 2**20
_NUM_TRAINERS = 100
_PROCESSES = 2


@dataclass(frozen=True)
class Case:
    """A list: so many examples, every n-th in the mean, with weights or without."""

    name: str
    num_examples: int
    one_of: int
    weighted: bool = False


CASES = (
    Case("1.3 M of 13 M", 1_300_000, 10),
    Case("1.3 M of 13 M, with weights", 1_300_000, 10, weighted=True),
    Case("1.3 M, all of them", 1_300_000, 1),
)
HUGE = Case("130 M of 1.3 G", 130_000_000, 10)


def write_blob(case: Case, folder: Path) -> BlobName:
    """Store a list as selection does, a block at a time."""
    draw, path, last = np.random.default_rng(0), folder / "list", -1
    with path.open("wb") as file:
        for start in range(0, case.num_examples, _BLOCK):
            count = min(_BLOCK, case.num_examples - start)
            gaps = draw.geometric(1 / case.one_of, count)
            indices = last + np.cumsum(gaps, dtype="<i8")
            last = int(indices[-1])
            indices.tofile(file)
        for start in range(0, case.num_examples, _BLOCK):
            count = min(_BLOCK, case.num_examples - start)
            weights = draw.random(count, np.float32) if case.weighted else np.ones(count, "<f4")
            weights.tofile(file)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = folder / "store" / "blobs" / digest[:2] / digest
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return BlobName(digest, target.stat().st_size)


class StoredSubset:
    """Answers every question with one stored subset."""

    def __init__(self, folder: Path, database: Database, record: SubsetRecord) -> None:
        self._verification = Verification(BlobStore(folder / "store", max_blob_bytes=2**40))
        self._contents = SubsetContents(database, self._verification)
        self._record = record

    async def get(self, *_: object) -> Answer:
        """As a coordinator does where the answer is there."""
        assert await self._verification.is_whole(self._record.blob)
        return Answer(self._record)

    async def sending(self, subset: SubsetRecord, accepted: Accepted) -> Sending:
        """The coordinator's own."""
        return await self._contents.sending(subset, accepted)


def serve(pipe: Pipe, folder: Path, case: Case, blob: BlobName) -> None:
    """Serve a list; says its peak of memory, in bytes, whenever it is asked."""

    async def run() -> None:
        record = SubsetRecord(
            key="k",
            run_id="r",
            strategy="made up",
            num_examples=case.num_examples,
            balanced=False,
            fingerprint="f",
            digest=blob.sha256,
            weights_sha256="w",
            manifest={},
            blob=blob,
            created_at=0.0,
        )
        database = Database.open(folder / "database")
        server = grpc.aio.server(interceptors=[ErrorInterceptor()])
        subsets: Any = StoredSubset(folder, database, record)
        subset_pb2_grpc.add_SubsetServiceServicer_to_server(SubsetService(subsets), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        before = peak_bytes()
        pipe.send(f"127.0.0.1:{port}")
        while await asyncio.to_thread(pipe.recv):
            pipe.send(peak_bytes() - before)
        await server.stop(0)
        await database.close()

    asyncio.run(run())


def train(pipe: Pipe, address: str, *, packed: bool, at_once: int) -> None:
    """Fetch the list in some threads; tells bytes of its messages, seconds, and the peak."""
    counted: list[int] = []
    add = Reception.add

    def counting(self: Reception, kind: str, part: Any) -> None:
        counted.append(part.ByteSize())
        add(self, kind, part)

    def fetch(_: int) -> int:
        request = subset_request(
            "r", "made up", fraction=None, budget=1, balanced=None, options=None
        )
        request.accept_packed = packed
        patience = Reconnection(600.0, expected=True)
        connection = Connection(address, None)
        subset = fetch_subset(connection, request, None, previous=None, reconnection=patience)
        connection.close()
        return len(subset)

    before = peak_bytes()
    pipe.send(None)
    pipe.recv()
    with patch.object(Reception, "add", counting), ThreadPoolExecutor(at_once) as threads:
        started = time.perf_counter()
        fetched = list(threads.map(fetch, range(at_once)))
        seconds = time.perf_counter() - started
    assert len(set(fetched)) == 1
    pipe.send((sum(counted), seconds, peak_bytes() - before))


def peak_bytes() -> int:
    """The most memory that this process has had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell the peak of memory")


@contextmanager
def process(target: Any, *arguments: object, **keywords: object) -> Iterator[Pipe]:
    """A process and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=target, args=(there, *arguments), kwargs=keywords)
    child.start()
    there.close()
    yield here
    child.join()


def fetched(address: str, *, packed: bool, at_once: int = 1) -> tuple[int, float, int]:
    """Bytes of messages, seconds, and the trainer's peak, with so many in one process."""
    with process(train, address, packed=packed, at_once=at_once) as pipe:
        pipe.recv()
        pipe.send(None)
        found: tuple[int, float, int] = pipe.recv()
    return found


def measure(case: Case, *, packed: bool) -> None:
    """A row: the list fetched by one trainer, whose coordinator has just started."""
    with tempfile.TemporaryDirectory() as scratch:
        blob = write_blob(case, Path(scratch))
        with process(serve, Path(scratch), case, blob) as server:
            size, seconds, theirs = fetched(server.recv(), packed=packed)
            server.send(True)
            ours = server.recv()
            server.send(False)
    print(
        f"{case.name:<28} {'packed' if packed else 'plain':<6} {size / 1e6:>8.2f} MB "
        f"{8 * size / case.num_examples:>5.1f} bits/id {seconds:>7.2f} s "
        f"{ours / 1e6:>7.0f} MB {theirs / 1e6:>7.0f} MB "
        f"({12 * case.num_examples / 1e6:.0f} MB are the arrays)",
        flush=True,
    )


def measure_many(case: Case, *, packed: bool) -> None:
    """A row: a hundred trainers that come at once, in a few processes."""
    each = _NUM_TRAINERS // _PROCESSES
    with tempfile.TemporaryDirectory() as scratch:
        blob = write_blob(case, Path(scratch))
        with process(serve, Path(scratch), case, blob) as server:
            address = server.recv()
            with (
                process(train, address, packed=packed, at_once=each) as first,
                process(train, address, packed=packed, at_once=each) as second,
            ):
                for pipe in (first, second):
                    pipe.recv()
                for pipe in (first, second):
                    pipe.send(None)
                found = [pipe.recv() for pipe in (first, second)]
            server.send(True)
            ours = server.recv()
            server.send(False)
    size, seconds = sum(one[0] for one in found), max(one[1] for one in found)
    print(
        f"{_NUM_TRAINERS} trainers: {case.name}, {'packed' if packed else 'plain'}: "
        f"{size / 1e6:.0f} MB in {seconds:.1f} s, the coordinator's peak {ours / 1e6:.0f} MB",
        flush=True,
    )


def main() -> None:
    """Print a row for each list, plain and packed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--huge", action="store_true", help="130 M examples alone: 1.6 GB")
    if parser.parse_args().huge:
        measure(HUGE, packed=True)
        measure(HUGE, packed=False)
        return
    for case in CASES:
        for packed in (False, True):
            measure(case, packed=packed)
    for packed in (False, True):
        measure_many(CASES[0], packed=packed)


if __name__ == "__main__":
    main()
