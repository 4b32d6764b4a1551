"""How long control calls take while the coordinator computes.

A coordinator and a worker run the whole pipeline on digits; meanwhile one client
asks for the run again and again, 50 times a second, and notes how long each answer
took and what the run was doing. Run: python benchmarks/control_calls.py
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lipt.trainer import Client
from lipt.trainer.cli.demo.processes import Children

LIMIT_MS = 250.0
INTERVAL_SECONDS = 0.02
RUN = {
    "learners": {"num_learners": 6, "num_steps": 5, "batch_size": 128},
    "soup": {"num_alphas": 20},
}


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        Children(Path(scratch), dict(os.environ)) as children,
    ):
        address = start(children, Path(scratch))
        latencies = measure(address)
    table = Table("while the run is", "calls", "median ms", "p99 ms", "max ms", "within 250 ms")
    for activity, values in latencies.items():
        values.sort()
        table.add_row(
            activity,
            str(len(values)),
            f"{values[len(values) // 2]:.1f}",
            f"{values[min(len(values) - 1, int(0.99 * len(values)))]:.1f}",
            f"{values[-1]:.1f}",
            f"{sum(value <= LIMIT_MS for value in values) / len(values):.1%}",
        )
    Console().print(table)


def start(children: Children, scratch: Path) -> str:
    file = scratch / "address"
    children.start(
        "coordinator",
        [
            *("-m", "lipt.coordinator", "--data", "digits", "--model", "resnet8"),
            *("--listen", "127.0.0.1:0", "--state-dir", str(scratch / "state")),
            *("--address-file", str(file)),
        ],
    )
    while not file.exists():
        children.check()
        time.sleep(0.05)
    address = file.read_text().strip()
    children.start(
        "worker",
        [
            *("-m", "lipt.worker", "--coordinator", address, "--device", "cpu"),
            *("--cache-dir", str(scratch / "cache")),
        ],
    )
    return address


def measure(address: str) -> dict[str, list[float]]:
    latencies: dict[str, list[float]] = defaultdict(list)
    activity = ["waiting"]
    ended = threading.Event()

    def ask(run_id: str) -> None:
        with Client(address) as client:
            while not ended.wait(INTERVAL_SECONDS):
                started = time.perf_counter()
                client.run(run_id)
                latencies[activity[0]].append((time.perf_counter() - started) * 1000)

    with Client(address) as client:
        run = client.start_run(RUN)
        asking = threading.Thread(target=ask, args=(run.run_id,))
        asking.start()
        for view in client.watch(run.run_id):
            activity[0] = view.state.value
        activity[0] = "selecting"
        client.subset(run.run_id, "grand", fraction=0.1)
        client.subset(run.run_id, "grand", fraction=0.1, options={"parameters": "all"})
        ended.set()
        asking.join()
    return latencies


if __name__ == "__main__":
    main()
