"""What a peer that takes all it can get costs an honest worker and an honest trainer.

A coordinator of digits serves; one process plays a worker (polls and heartbeats' cost: Register,
AcquireAssignment) and a trainer (GetInfo, ListRuns, the upload and download of 1 MiB), a call after
another. A greedy process loops over one connection, as fast as it is answered: GetInfo, Register,
and uploads of which it sends one byte. With the limits of `[limits.per_peer]` and `[storage]`, and
with none; rounds take turns, so that what else the machine does hits all alike.
Run: python benchmarks/greedy_peer.py [--seconds 8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import secrets
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from rich.console import Console
from rich.table import Table

from lipt.common.blobs.blob import BlobName, blob_to_proto, fill_chunk
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.status import from_rpc_error
from lipt.trainer.cli.demo.processes import Children
from lipt.v1 import (
    blob_pb2,
    blob_pb2_grpc,
    info_pb2,
    info_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from lipt.worker.client import with_secret

NO_LIMITS = """
[limits.per_peer]
calls_per_second = 0
registrations_per_minute = 0
max_calls = 0
max_streams = 0
[storage]
max_unfinished = 1_000_000
max_unfinished_per_peer = 1_000_000
"""
CONFIGS = {"limits": "", "no limits": NO_LIMITS}
NUM_AT_ONCE = 16
INTERVAL_SECONDS = 0.02
# What it may have at once is used up then.
WARM_UP_SECONDS = 3.0
MIB = 2**20
PROTOCOL = worker_pb2.ProtocolVersion(major=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    latencies: dict[tuple[str, bool], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    files: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for name, text in CONFIGS.items():
                scratch = Path(folder) / f"{number} {name}".replace(" ", "-")
                scratch.mkdir()
                with serving(scratch, text) as address:
                    honest(address, scratch, arguments.seconds, latencies[name, False])
                    with greedy(address, answers[name]):
                        honest(address, scratch, arguments.seconds, latencies[name, True])
                    files[name] += len(list((scratch / "state" / "uploads").iterdir()))
    show(latencies)
    for name, counts in answers.items():
        seconds = (arguments.seconds + WARM_UP_SECONDS) * arguments.rounds
        rates = {reason: f"{count / seconds:.0f}/s" for reason, count in counts.most_common()}
        print(f"greedy, {name}: {rates}; {files[name]} files in uploads/")


@contextmanager
def serving(scratch: Path, config: str) -> Iterator[str]:
    (scratch / "config.toml").write_text(config)
    file = scratch / "address"
    with Children(scratch, dict(os.environ)) as children:
        children.start(
            "coordinator",
            [
                *("-m", "lipt.coordinator", "--data", "digits", "--model", "resnet8"),
                *("--config", str(scratch / "config.toml"), "--insecure"),
                *("--listen", "127.0.0.1:0"),
                *("--state-dir", str(scratch / "state"), "--address-file", str(file)),
            ],
        )
        while not file.exists():
            children.check()
            time.sleep(0.05)
        yield file.read_text().strip()


def honest(address: str, scratch: Path, seconds: float, latencies: dict[str, list[float]]) -> None:
    """Call one after another, with a pause in between, for so long."""
    store = BlobStore(scratch / f"cache-{time.time_ns()}", max_blob_bytes=MIB)
    with open_channel(address) as channel:
        secret = secrets.token_hex(16)
        workers = worker_pb2_grpc.WorkerServiceStub(with_secret(channel, lambda: secret))
        transfers = Transfers(blob_pb2_grpc.BlobServiceStub(channel))
        request = worker_pb2.RegisterRequest(instance_id=secret, protocol=PROTOCOL)
        worker_id = workers.Register(request).worker_id
        stored: list[BlobName] = []
        calls: dict[str, Any] = {
            "Register": lambda: workers.Register(request),
            "AcquireAssignment": lambda: workers.AcquireAssignment(
                worker_pb2.AcquireAssignmentRequest(worker_id=worker_id)
            ),
            "GetInfo": lambda: info_pb2_grpc.InfoServiceStub(channel).GetInfo(
                info_pb2.GetInfoRequest()
            ),
            "ListRuns": lambda: run_pb2_grpc.RunServiceStub(channel).ListRuns(
                run_pb2.ListRunsRequest()
            ),
            "upload 1 MiB": lambda: stored.append(transfers.upload(random.randbytes(MIB))),
            "download 1 MiB": lambda: transfers.download(stored[-1], store),
        }
        for call in calls.values():  # connects
            call()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, call in calls.items():
                started = time.perf_counter()
                call()
                latencies[name].append((time.perf_counter() - started) * 1000)
                time.sleep(INTERVAL_SECONDS)


@contextmanager
def greedy(address: str, answers: Counter[str]) -> Iterator[None]:
    """Have a process that takes all it can get, during the block; how it was answered."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=take_all, args=(address, there), daemon=True)
    process.start()
    here.recv()
    time.sleep(WARM_UP_SECONDS)
    try:
        yield
    finally:
        here.send("enough")
        answers.update(here.recv())
        process.join()


def take_all(address: str, pipe: Connection) -> None:
    asyncio.run(_take_all(address, pipe))


async def _take_all(address: str, pipe: Connection) -> None:
    answers: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(address) as channel:
        info: Any = info_pb2_grpc.InfoServiceStub(channel)
        workers: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)

        def upload() -> Any:
            name = BlobName(random.randbytes(32).hex(), MIB)
            request = blob_pb2.WriteBlobRequest(blob=blob_to_proto(name))
            fill_chunk(request.chunk, 0, b"x")
            return blobs.WriteBlob(iter([request]))

        calls = {
            "GetInfo": lambda: info.GetInfo(info_pb2.GetInfoRequest()),
            "Register": lambda: workers.Register(
                worker_pb2.RegisterRequest(instance_id=secrets.token_hex(16), protocol=PROTOCOL)
            ),
            "WriteBlob": upload,
        }

        async def loop(name: str) -> None:
            while True:
                try:
                    await calls[name]()
                    answers[f"{name} OK"] += 1
                except grpc.aio.AioRpcError as error:
                    answers[f"{name} {from_rpc_error(error).reason}"] += 1

        tasks = [asyncio.create_task(loop(name)) for name in calls for _ in range(NUM_AT_ONCE)]
        pipe.send("begun")
        await asyncio.to_thread(pipe.recv)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    pipe.send(answers)


def show(latencies: dict[tuple[str, bool], dict[str, list[float]]]) -> None:
    columns = [f"{name}: {what}" for name in CONFIGS for what in ("alone", "beside", "ratio")]
    table = Table("honest call, p50 / p99 ms", *columns)
    for call in latencies["limits", False]:
        cells = []
        for name in CONFIGS:
            alone, beside = (quantiles(latencies[name, other][call]) for other in (False, True))
            ratios = tuple(after / before for before, after in zip(alone, beside, strict=True))
            cells += [" / ".join(f"{value:.1f}" for value in it) for it in (alone, beside, ratios)]
        table.add_row(call, *cells)
    Console(width=160).print(table)


def quantiles(values: list[float]) -> tuple[float, float]:
    values = sorted(values)
    return values[len(values) // 2], values[int(0.99 * (len(values) - 1))]


if __name__ == "__main__":
    main()
