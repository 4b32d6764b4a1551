"""Waiting times of a thousand workers that submit at once, and of ten thousand heartbeats.

A coordinator serves one run of tiny learners; processes play its workers, each with a connection of
its own. `commits`: everybody has a learner, and its result is uploaded; then all submit at one
moment. `heartbeats`: everybody sends one every ten seconds, as under the default lease, each at a
moment of its own. Noted are what the callers wait for, and the CPU time that the coordinator takes,
which other load on the machine moves less.

With --against FOLDER, a folder with another version's `lipt` (of a checkout that was installed,
build/__editable__.lipt-*), its coordinator takes turns with this one's.
Run: python benchmarks/control_path.py {commits,heartbeats} [--workers N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import grpc.aio
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import nn

from benchmarks.processes import serving
from lipt import Client
from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto, fill_chunk
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.core.pretraining.pruning import masks_of_largest
from lipt.models.encodings import encode_sparse
from lipt.v1 import blob_pb2, blob_pb2_grpc, worker_pb2, worker_pb2_grpc

NUM_EXAMPLES, NUM_CLASSES = 24_000, 10
# No lease ends: thousands of workers that are made on a busy machine are not there at once.
CONFIG = """
[limits.per_peer]
registrations_per_minute = 0
[lease]
duration_seconds = 3600
"""
RUN = {"soup": {"method": "uniform", "reestimate_batch_norm": False}}
CALL_SECONDS = 300.0
# Of one process's preparations; what is measured is not held back.
NUM_AT_ONCE = 64
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


def data() -> list[tuple[torch.Tensor, int]]:
    """Images of one byte and enough of them for a shard each."""
    images_NCHW = torch.arange(NUM_EXAMPLES).remainder(251).to(torch.uint8).reshape(-1, 1, 1, 1)
    return [(image, index % NUM_CLASSES) for index, image in enumerate(images_NCHW)]


def model(num_classes: int) -> nn.Module:
    """So small that what is measured is the service."""
    return nn.Sequential(nn.Flatten(), nn.Linear(1, num_classes))


@dataclass(frozen=True)
class Plan:
    """Load of one process."""

    address: str
    state: Path
    first: int
    num_workers: int
    num_per_connection: int
    seconds: float
    every_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--workers", type=int, help="default: 1000 or 10000")
    parser.add_argument("--per-connection", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="of heartbeats")
    parser.add_argument("--every-seconds", type=float, default=10.0, help="under the default lease")
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    versions = {"this": None} | ({"against": arguments.against} if arguments.against else {})
    rows = defaultdict(list)
    load = os.getloadavg()[0]
    for _ in range(arguments.rounds):
        for name, path in versions.items():
            rows[name].append(measure(arguments, path))
    title = (
        f"{arguments.what}; load of the machine {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    show(rows, title)


def measure(arguments: argparse.Namespace, against: Path | None) -> tuple[list[float], float]:
    """Seconds of each call, ascending, and of the coordinator's CPU, for one call."""
    num_workers = arguments.workers or {"commits": 1000, "heartbeats": 10_000}[arguments.what]
    share = -(-num_workers // arguments.processes)
    shares = range(0, num_workers, share)
    # Those who play, and this process, which notes the time that they begin at.
    barrier = multiprocessing.get_context("spawn").Barrier(len(shares) + 1)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with coordinator(scratch, against) as (address, pid), Client(address) as client:
            learners = {"num_learners": num_workers, "num_steps": 1, "batch_size": 1}
            client.start_run({**RUN, "learners": learners})
            plans = [
                Plan(
                    address,
                    scratch / "state",
                    first,
                    min(share, num_workers - first),
                    arguments.per_connection,
                    arguments.seconds,
                    arguments.every_seconds,
                )
                for first in shares
            ]
            with playing(PARTS[arguments.what], plans, barrier) as pipes:
                barrier.wait()
                before = cpu_seconds(pid)
                seconds = sorted(value for pipe in pipes for value in pipe.recv())
                cpu = cpu_seconds(pid) - before
    return seconds, cpu / len(seconds)


@contextmanager
def coordinator(scratch: Path, against: Path | None) -> Iterator[tuple[str, int]]:
    """A coordinator of this version or another, its address and process."""
    config, here = scratch / "config.toml", Path(__file__)
    config.write_text(CONFIG)
    path = os.pathsep.join(map(str, [here.parent, *([against] if against else [])]))
    with serving(
        scratch,
        f"{here.stem}:data",
        f"{here.stem}:model",
        flags=["--insecure", "--config", str(config)],
        environment={"PYTHONPATH": path},
    ) as service:
        yield service.address, service.process_ids[0]


@contextmanager
def playing(
    part: Callable[[Plan, Barrier], Awaitable[list[float]]], plans: list[Plan], barrier: Barrier
) -> Iterator[list[Connection]]:
    """A process for each plan, and where it sends the seconds of its calls."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for plan in plans:
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=play, args=(part, plan, barrier, theirs)))
        pipes.append(ours)
    for process in processes:
        process.start()
    try:
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def play(part: Any, plan: Plan, barrier: Barrier, pipe: Connection) -> None:
    torch.set_num_threads(1)
    pipe.send(asyncio.run(part(plan, barrier)))


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Player:
    """One worker."""

    def __init__(self, number: int, channel: grpc.aio.Channel) -> None:
        self._secret = f"{number:032x}"
        self._workers: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        self._blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)
        self._held: dict[str, Any] = {}

    async def take(self) -> Any:
        """Register, and take a learner."""
        registered = await self._call(
            self._workers.Register,
            worker_pb2.RegisterRequest(
                instance_id=self._secret,
                name=f"worker-{int(self._secret, 16)}",
                protocol=worker_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
                device="cpu",
                allowed_modules=[Path(__file__).stem],
            ),
        )
        poll = worker_pb2.AcquireAssignmentRequest(
            worker_id=registered.worker_id, wait_seconds=60.0
        )
        while True:
            answer = await self._call(self._workers.AcquireAssignment, poll)
            if answer.HasField("assignment"):
                break
        self._held = {
            "worker_id": registered.worker_id,
            "assignment_id": answer.assignment.assignment_id,
            "epoch": answer.assignment.lease.epoch,
        }
        return answer.assignment

    async def upload(self, assignment: Any, state: Path) -> Any:
        """Send a learner that is as good as any."""
        sha256 = blob_from_proto(assignment.initial_weights).sha256
        path = state / "blobs" / sha256[:2] / sha256
        weights = load_file(path)
        scores = {name: tensor.abs() for name, tensor in weights.items() if tensor.ndim > 1}
        masks = masks_of_largest(scores, assignment.task.density)
        factor = 1.0 + assignment.learner_index / 1e5  # no two are equal
        pruned = {name: weights[name] * mask * factor for name, mask in masks.items()}
        content = encode_sparse(weights | pruned)
        write = blob_pb2.WriteBlobRequest(blob=blob_to_proto(BlobName.of(content)))
        fill_chunk(write.chunk, 0, content)
        return (await self._call(self._blobs.WriteBlob, iter([write]))).blob

    async def commit(self, result: Any) -> float:
        """Hand it in; the seconds that this took."""
        request = worker_pb2.CommitResultRequest(**self._held, result=result)
        return await self._timed(self._workers.CommitResult, request)

    async def beat(self, step: int) -> float:
        """Send a heartbeat; the seconds that this took."""
        progress = worker_pb2.LearnerProgress(
            phase=worker_pb2.LEARNER_PHASE_TRAINING, step=step, loss=1.0 / step
        )
        request = worker_pb2.HeartbeatRequest(**self._held, progress=progress)
        return await self._timed(self._workers.Heartbeat, request)

    async def _timed(self, method: Any, request: Any) -> float:
        started = time.perf_counter()
        await self._call(method, request)
        return time.perf_counter() - started

    async def _call(self, method: Any, request: Any) -> Any:
        return await method(
            request, timeout=CALL_SECONDS, metadata=((WORKER_SECRET, self._secret),)
        )


async def players(plan: Plan, stack: AsyncExitStack) -> list[Player]:
    """The workers of a plan, so many to a connection."""
    made: list[Player] = []
    for first in range(0, plan.num_workers, plan.num_per_connection):
        channel = grpc.aio.insecure_channel(plan.address, options=OPTIONS)
        await stack.enter_async_context(channel)
        share = range(first, min(first + plan.num_per_connection, plan.num_workers))
        made += [Player(plan.first + number + 1, channel) for number in share]
    return made


async def commits(plan: Plan, barrier: Barrier) -> list[float]:
    """Hand in at one moment, with all other processes."""
    some = asyncio.Semaphore(NUM_AT_ONCE)
    async with AsyncExitStack() as stack:
        workers = await players(plan, stack)

        async def prepare(worker: Player) -> tuple[Player, Any]:
            async with some:
                return worker, await worker.upload(await worker.take(), plan.state)

        prepared = await asyncio.gather(*map(prepare, workers))
        await asyncio.to_thread(barrier.wait)
        return list(await asyncio.gather(*(worker.commit(result) for worker, result in prepared)))


async def heartbeats(plan: Plan, barrier: Barrier) -> list[float]:
    """Send them for some seconds, once the workers of all processes have a learner."""
    some = asyncio.Semaphore(NUM_AT_ONCE)
    measured: list[float] = []
    state = {"measures": False, "ends": False}

    async def beat(worker: Player) -> None:
        async with some:
            await worker.take()
        due, step = time.perf_counter() + random.uniform(0, plan.every_seconds), 0
        while not state["ends"]:
            await asyncio.sleep(due - time.perf_counter())
            due, step = due + plan.every_seconds, step + 1
            measures = state["measures"]
            seconds = await worker.beat(step)
            if measures:
                measured.append(seconds)
            else:
                begun.add(worker)

    begun: set[Player] = set()
    async with AsyncExitStack() as stack:
        tasks = [asyncio.ensure_future(beat(worker)) for worker in await players(plan, stack)]
        while len(begun) < plan.num_workers:
            await asyncio.sleep(0.1)
            for task in tasks:
                if task.done():
                    task.result()
        await asyncio.to_thread(barrier.wait)
        state["measures"] = True
        await asyncio.sleep(plan.seconds)
        state["ends"] = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return measured


PARTS = {"commits": commits, "heartbeats": heartbeats}


def show(rows: dict[str, list[tuple[list[float], float]]], title: str) -> None:
    table = Table("version", "calls", "median ms", "p99 ms", "max ms", "CPU ms a call", title=title)
    for name, rounds in rows.items():
        for seconds, cpu in rounds:
            at = [seconds[int(part * (len(seconds) - 1))] for part in (0.5, 0.99, 1.0)]
            table.add_row(
                name,
                str(len(seconds)),
                *(f"{1000 * value:.1f}" for value in at),
                f"{1000 * cpu:.2f}",
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
