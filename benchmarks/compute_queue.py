"""How long what is done in a moment takes while much else is computed and asked for.

A coordinator of 50,000 made-up 32x32 images of 10 classes, a run that is ready, and its limits as
they are by default. One connection asks for subsets by labels alone (`uniform`), one after another
and each of another size: first with nothing else to do, then while facility location of all
examples is computed, ten other connections ask for 60 subsets by facility location each, and all
of these are cancelled after a while.
Run: python benchmarks/compute_queue.py [--requests 300]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import torch
from rich.console import Console
from rich.table import Table

from lipt.common.network.tls import split_address
from lipt.common.rpc.channel import local_credentials
from lipt.common.rpc.status import from_rpc_error
from lipt.trainer import Client
from lipt.trainer.cli.demo.processes import Children
from lipt.v1 import subset_pb2 as pb
from lipt.v1 import subset_pb2_grpc

NUM_EXAMPLES, NUM_CLASSES = 50_000, 10
NUM_CONNECTIONS, NUM_OTHERS_EACH = 10, 60
ROOT = Path(__file__).resolve().parents[1]
RUN = {
    "model": "resnet8",
    "learners": {"num_learners": 1, "num_steps": 1, "batch_size": 32},
    "soup": {"num_alphas": 2, "batch_norm_examples": 64},
    "validation": {"fraction": 0.01},
}


def images() -> list[tuple[torch.Tensor, int]]:
    """What the coordinator serves."""
    drawn = torch.Generator().manual_seed(0)
    images_NCHW = torch.randint(
        0, 256, (NUM_EXAMPLES, 3, 32, 32), dtype=torch.uint8, generator=drawn
    )
    return [(image, number % NUM_CLASSES) for number, image in enumerate(images_NCHW)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=300)
    num_requests = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with Children(scratch, {**os.environ, "PYTHONPATH": str(ROOT)}) as children:
            address = start(children, scratch)
            with Client(address) as client:
                client.wait(client.start_run(RUN, name="r").run_id)
            latencies, ends = asyncio.run(measure(address, num_requests))
    show(latencies)
    print(f"{NUM_CONNECTIONS * NUM_OTHERS_EACH} others: {dict(ends.most_common())}")


def start(children: Children, scratch: Path) -> str:
    file = scratch / "address"
    children.start(
        "coordinator",
        [
            *("-m", "lipt.coordinator", "--data", "benchmarks.compute_queue:images"),
            *("--allow-module", "benchmarks.compute_queue", "--model", "resnet8"),
            *("--device", "cpu", "--listen", "127.0.0.1:0", "--address-file", str(file)),
            *("--state-dir", str(scratch / "state")),
        ],
    )
    while not file.exists():
        children.check()
        time.sleep(0.05)
    address = file.read_text().strip()
    worker = ["-m", "lipt.worker", "--coordinator", address, "--device", "cpu"]
    children.start("worker", [*worker, "--cache-dir", str(scratch / "cache")])
    return address


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    """A connection of its own, as another peer has it."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    credentials = local_credentials(split_address(address)[1])
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        yield subset_pb2_grpc.SubsetServiceStub(channel)


async def measure(address: str, num_requests: int) -> tuple[dict[str, list[float]], Counter[str]]:
    async with AsyncExitStack() as stack:
        honest = await stack.enter_async_context(connected(address))
        latencies = {"alone": [await timed(honest, 1 + n) for n in range(num_requests)]}
        others = [
            await stack.enter_async_context(connected(address)) for _ in range(NUM_CONNECTIONS)
        ]
        dear = asyncio.create_task(ask(honest, "facility_location", NUM_EXAMPLES // 10))
        asking = [
            asyncio.create_task(ask(other, "facility_location", 100 + NUM_OTHERS_EACH * place + n))
            for place, other in enumerate(others)
            for n in range(NUM_OTHERS_EACH)
        ]
        meanwhile = latencies["meanwhile"] = []
        for n in range(num_requests):
            if n == num_requests // 2:
                for task in asking:
                    task.cancel()
            meanwhile.append(await timed(honest, 1 + num_requests + n))
        ends = Counter(await asyncio.gather(*asking))
        ends["facility location goes on"] = int(not dear.done())
        dear.cancel()
        await asyncio.gather(dear, return_exceptions=True)
    return latencies, ends


async def timed(stub: Any, budget: int) -> float:
    began = time.perf_counter()
    assert await ask(stub, "uniform", budget) == "answered"
    return time.perf_counter() - began


async def ask(stub: Any, strategy: str, budget: int) -> str:
    """How a request for a subset ended."""
    request = pb.GetSubsetRequest(run_id="r", strategy=strategy, budget=budget)
    try:
        async for _ in stub.GetSubset(request):
            pass
    except asyncio.CancelledError:
        return "cancelled"
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason
    return "answered"


def show(latencies: dict[str, list[float]]) -> None:
    table = Table("uniform", "requests", "median ms", "p99 ms", "max ms", "within 1 s")
    for name, seconds in latencies.items():
        ordered = torch.tensor(sorted(seconds), dtype=torch.float64)
        median, p99, longest = (1000 * ordered.quantile(q).item() for q in (0.5, 0.99, 1.0))
        within = (ordered < 1.0).double().mean().item()
        table.add_row(
            name,
            str(len(seconds)),
            *(f"{ms:.0f}" for ms in (median, p99, longest)),
            f"{within:.1%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
