"""What a coordinator takes that has ten thousand ended runs, and a terabyte of blobs.

A state directory is made by the store's own code, then served: noted are the seconds from the
process's start until it serves, its memory, and what its calls take. Then its garbage is collected
in a process whose loop notes how late it is woken. Files are of the size that they would have, and
holes: what is measured never reads them.

With --against FOLDER, a folder with another version's `lipt` (of a checkout that was installed,
build/__editable__.lipt-*), it comes first, on a directory of its own.
Run: python benchmarks/many_runs.py [--runs N] [--learners N] [--against FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.images.formats import ImageFormat
from lipt.common.observability.logs import Events
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import LearnerRecord, RunRecord, SoupRecord
from lipt.coordinator.storage.accounts import Accounts, Quota
from lipt.coordinator.storage.collector import Collector
from lipt.core.results import Ingredient
from lipt.trainer import Client
from lipt.trainer.cli.demo.processes import Children
from lipt.v1 import run_pb2

BLOB_BYTES = 5_600_000
NUM_SNAPSHOTS = 2
FIRST_AT, EVERY_SECONDS = 1.7e9, 600.0
# Long enough ago for what nobody needs to go.
FILES_AT = 1.7e9
NUM_AT_ONCE = 500
CALLS = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=("make", "collect"))
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--directory", type=Path, help="of a part")
    parser.add_argument("--fingerprint", help="of the data that the runs are of, of a part")
    arguments = parser.parse_args()
    if arguments.part == "make":
        arguments.directory.mkdir()
        asyncio.run(
            make(arguments.directory, arguments.runs, arguments.learners, arguments.fingerprint)
        )
    elif arguments.part == "collect":
        print(json.dumps(asyncio.run(collect(arguments.directory))))
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    versions = {"against": arguments.against} if arguments.against else {}
    load = os.getloadavg()[0]
    found = {
        name: measure(arguments.runs, arguments.learners, path)
        for name, path in {**versions, "this": None}.items()
    }
    table = Table(
        "",
        *found,
        title=f"{arguments.runs} ended runs, {arguments.learners} learners each; load {load:.1f}"
        f" before, {os.getloadavg()[0]:.1f} after",
    )
    for row in next(iter(found.values())):
        table.add_row(row, *(f"{figures[row]:,.1f}" for figures in found.values()))
    Console(width=110).print(table)


def measure(num_runs: int, num_learners: int, against: Path | None) -> dict[str, float]:
    """All figures of one version."""
    environment = dict(os.environ)
    if against is not None:
        environment["PYTHONPATH"] = str(against)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        state = scratch / "state"
        figures = {
            "s to the first service, no runs": serve(scratch, scratch / "empty", environment)
        }
        sizes = ("--runs", str(num_runs), "--learners", str(num_learners))
        own = ("--fingerprint", served(scratch / "empty"))
        part("make", state, environment, *sizes, *own)
        # Once before: the schema is brought up to date, and files are in the system's cache.
        serve(scratch, state, environment)
        figures |= calls(scratch, state, environment, num_runs)
        return figures | json.loads(part("collect", state, environment))


def served(state: Path) -> str:
    """The fingerprint of the data that a directory was served with."""
    with contextlib.closing(sqlite3.connect(state / "lipt.db")) as connection:
        return str(connection.execute("SELECT fingerprint FROM data_sets").fetchone()[0])


def part(name: str, directory: Path, environment: dict[str, str], *more: str) -> str:
    command = [sys.executable, __file__, name, "--directory", str(directory), *more]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def start(children: Children, scratch: Path, state: Path) -> tuple[str, int, float]:
    """Address and process of a coordinator, and after how many seconds it served."""
    file = scratch / "address"
    file.unlink(missing_ok=True)
    began = time.perf_counter()
    pid = children.start(
        "coordinator",
        [
            *("-m", "lipt.coordinator", "--listen", "127.0.0.1:0", "--insecure"),
            *("--data", "digits", "--model", "resnet8"),
            *("--state-dir", str(state), "--address-file", str(file)),
        ],
    )
    while not file.exists():
        children.check()
        time.sleep(0.02)
    return file.read_text().strip(), pid, time.perf_counter() - began


def serve(scratch: Path, state: Path, environment: dict[str, str]) -> float:
    with Children(scratch, environment) as children:
        return start(children, scratch, state)[2]


def calls(
    scratch: Path, state: Path, environment: dict[str, str], num_runs: int
) -> dict[str, float]:
    """Start, memory, and milliseconds of calls."""
    with Children(scratch, environment) as children:
        address, pid, seconds = start(children, scratch, state)
        resident = resident_mb(pid)
        with Client(address) as client:
            client.run()
            pages = list(timed_pages(client))
            chosen = random.Random(0).sample(range(num_runs), CALLS)
            found = [timed(lambda place=place: client.run(name_of(place))) for place in chosen]
            started = []
            for _ in range(CALLS):
                started.append(timed(lambda: client.start_run({"model": "resnet8"})))
                client.cancel("latest")
            return {
                "s to the first service": seconds,
                "MB resident then": resident,
                "MB resident after the calls": resident_mb(pid),
                "ms for the first page": statistics.median(
                    next(timed_pages(client)) for _ in range(CALLS)
                ),
                "ms for a page further on": statistics.median(pages[1:] or pages),
                "ms for a run's start": statistics.median(started),
                "ms to find a run": statistics.median(found),
            }


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def timed_pages(client: Client) -> Iterator[float]:
    """Milliseconds of each page of a hundred, none of which was asked for before."""
    token = ""
    while True:
        request = run_pb2.ListRunsRequest(page_token=token)
        began = time.perf_counter()
        # The client's own list asks for all pages.
        page = client._connection.unary(lambda of: of.runs.ListRuns, request)  # noqa: SLF001
        yield 1000 * (time.perf_counter() - began)
        token = page.next_page_token
        if not token:
            return


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def collect(directory: Path) -> dict[str, float]:
    """A collection of all garbage, in a process that has nothing else to do."""
    quota = Quota(2**50, 2**50, 512, 32)
    accounts = Accounts(quota, clock=time.monotonic, is_live=lambda _: False)
    expiry = BlobStore(directory, max_blob_bytes=2**40).expiry
    num_files = sum(1 for _ in (directory / "blobs").glob("*/*"))
    collector = Collector(directory, expiry, accounts, StorageSettings(), Events(), time.time)
    late: list[float] = []
    noting = asyncio.create_task(note_lateness(late))
    await asyncio.sleep(0.1)
    late.clear()
    began = time.perf_counter()
    await collector.collect()
    seconds = time.perf_counter() - began
    noting.cancel()
    num_left = sum(1 for _ in (directory / "blobs").glob("*/*"))
    return {
        "files before the collection": num_files,
        "files after it": num_left,
        "s of the collection": seconds,
        "files a second": num_files / seconds,
        "ms that the loop was late at most": 1000 * max(late),
        "ms that it was late, 99 of 100": 1000 * statistics.quantiles(late, n=100)[-1],
        "MB at the most": peak_mb(),
    }


async def note_lateness(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - began - 0.001)


def peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024 / 1e6


async def make(directory: Path, num_runs: int, num_learners: int, fingerprint: str) -> None:
    """Ended runs, every tenth of which has failed, and their blobs."""
    database = Database.open(directory / "lipt.db")
    for first in range(0, num_runs, NUM_AT_ONCE):
        runs = [
            ended_run(place, num_learners, fingerprint)
            for place in range(first, min(first + NUM_AT_ONCE, num_runs))
        ]
        await asyncio.gather(*(database.save_run(run, run.learners) for run in runs))
        for run in runs:
            make_blobs(directory, run)
    await database.close()


def make_blobs(directory: Path, run: RunRecord) -> None:
    blobs = [run.initial_weights, run.pretrained_weights]
    for learner in run.learners:
        blobs += [learner.shard, learner.result, *learner.snapshots]
    for blob in filter(None, blobs):
        path = directory / "blobs" / blob.sha256[:2] / blob.sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(blob.size_bytes)
        os.utime(path, (FILES_AT, FILES_AT))


def name_of(place: int) -> str:
    return f"many-{place}"


def ended_run(place: int, num_learners: int, fingerprint: str) -> RunRecord:
    name, at = name_of(place), FIRST_AT + EVERY_SECONDS * place
    failed = place % 10 == 9
    learners = tuple(
        LearnerRecord(
            index=index,
            density=0.9,
            shard=blob(f"{name} shard {index}"),
            state=LearnerState.DONE,
            epoch=1,
            worker_id=hashlib.sha256(name.encode()).hexdigest()[:32],
            worker_name=f"worker-{index}",
            device="cpu",
            result=blob(f"{name} result {index}"),
            snapshots=tuple(blob(f"{name} {index} {it}") for it in range(NUM_SNAPSHOTS)),
            loss=0.5,
            train_seconds=100.0,
            leased_at=at + 10.0,
            committed_at=at + 110.0,
            bytes_received=BLOB_BYTES,
            ingredient=Ingredient(
                position=index, accuracy=0.8, soup_accuracy=0.85, alpha=0.5, kept=True
            ),
        )
        for index in range(num_learners)
    )
    soup = SoupRecord(
        initial_accuracy=0.1,
        mean_learner_accuracy=0.8,
        best_learner_accuracy=0.82,
        soup_accuracy=0.85,
        num_kept=num_learners,
        num_validation_examples=179,
    )
    return RunRecord(
        run_id=hashlib.sha256(name.encode()).hexdigest()[:12],
        name=name,
        request_id=f"request-{name}",
        created_at=at,
        config=RunConfig(model="resnet8", learners=LearnersConfig(num_learners=num_learners)),
        fingerprint=fingerprint,
        num_classes=10,
        state=RunState.FAILED if failed else RunState.READY,
        ended_at=at + 200.0,
        message="too few learners" if failed else "",
        inputs=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,)),
        initial_weights=blob(f"{name} theta*"),
        pretrained_weights=None if failed else blob(f"{name} theta_p"),
        learners=learners,
        training_started_at=at + 10.0,
        soup=None if failed else soup,
    )


def blob(what: str) -> BlobName:
    return BlobName(hashlib.sha256(what.encode()).hexdigest(), BLOB_BYTES)


if __name__ == "__main__":
    main()
