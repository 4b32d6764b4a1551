"""What `lipt demo` does: start the three processes, run the pipeline, collect its results."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lipt.common.errors import RunFailedError, SubsetError, UnreachableError
from lipt.common.extras import import_extra
from lipt.trainer.cli.follow import Display, follow
from lipt.trainer.cli.waiting import SILENCE_SECONDS, run_talking
from lipt.trainer.client import Client
from lipt.trainer.demo.processes import Children, ending_in_order
from lipt.trainer.files import write_atomically
from lipt.trainer.views import DatasetView, RunState, RunView, to_jsonable

if TYPE_CHECKING:
    from lipt.common.data import Dataset

FoundT = TypeVar("FoundT")

DATA = "digits"
MODEL = "resnet8"
FRACTION = 0.1
STRATEGIES = ("uniform", "uniform_per_class", "grand", "craig")

# Sizes for 1,797 images of 8x8: 8 x 1 x 64 examples are shipped, 28% of the set. Images
# this small cost next to nothing, so statistics are estimated from more of them.
OVERRIDES: dict[str, Any] = {
    "model": MODEL,
    "learners": {
        "num_learners": 8,
        "num_minibatches": 1,
        "num_steps": 10,
        "batch_size": 64,
        "learning_rate": 0.2,
    },
    "soup": {"batch_norm_examples": 1024},
}

_POLL_SECONDS = 0.1
_START_SECONDS = 120.0

# The children are on this machine: when they are away, they are gone.
_RECONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class SubsetResult:
    """One strategy's subset, and how many of each class are in it."""

    strategy: str
    num_examples: int
    class_counts: tuple[int, ...]
    digest: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class DemoResult:
    """What the demo ends with."""

    dataset: DatasetView
    run: RunView
    subsets: tuple[SubsetResult, ...]
    files: tuple[Path, ...]
    seconds: float


def run_demo(
    directory: Path,
    *,
    num_workers: int,
    make_display: Callable[[], Display],
    say: Callable[[str], None],
) -> DemoResult:
    """Run the whole pipeline on this machine.

    Args:
        directory: results and logs are written here; made where it is missing.
        num_workers: how many worker processes to start.
        make_display: where the run is shown, asked for when it has started.
        say: prints a line.

    Raises:
        MissingExtraError: scikit-learn, which brings the data, is not installed.
        ProcessEndedError: one of the processes died; the message has the end of its log.
        RunFailedError: the run failed.
        OSError: `directory` cannot be written to.
    """
    started = time.monotonic()
    import_extra("sklearn", package="scikit-learn", extra="demo", needed_for="lipt demo")
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (
        ending_in_order(),
        tempfile.TemporaryDirectory(prefix="lipt-demo-", ignore_cleanup_errors=True) as scratch,
        Children(logs, _environment()) as children,
    ):
        address_file = _start_coordinator(children, Path(scratch), say)
        data = run_talking(_open_data, say)
        address = _wait_for(
            partial(_read_address, address_file), "the coordinator to listen", children, say
        )
        _start_workers(children, Path(scratch), address, num_workers, say)
        with Client(address, reconnect_seconds=_RECONNECT_SECONDS) as client:
            try:
                # Without this, the first one there would do all the work alone.
                joined = partial(_all_joined, client, num_workers)
                _wait_for(joined, f"{num_workers} workers to join", children, say)
                run = _pretrain(client, children, make_display)
                dataset = client.info().dataset
                if dataset is None:
                    raise RunFailedError("the coordinator does not say which data it has.")
                subsets = _select(client, run, dataset, data, directory, say)
                weights = directory / "theta_p.safetensors"
                client.save_weights(weights, run.run_id, "pretrained")
            except UnreachableError:
                children.check()  # a dead process is the better explanation
                raise
        say("stopping the processes")
    record = directory / "run.json"
    write_atomically(record, f"{json.dumps(to_jsonable(run), indent=2)}\n".encode())
    files = (*(file for subset in subsets for file in subset.files), weights, record, logs)
    return DemoResult(dataset, run, subsets, files, time.monotonic() - started)


def _environment() -> dict[str, str]:
    # The user's own settings are meant for other processes than these.
    return {name: value for name, value in os.environ.items() if not name.startswith("LIPT_")}


def _start_coordinator(children: Children, scratch: Path, say: Callable[[str], None]) -> Path:
    address_file = scratch / "address"
    options = {
        "--listen": "127.0.0.1:0",
        "--state-dir": str(scratch / "state"),
        "--data": DATA,
        "--model": MODEL,
        "--device": "cpu",
        "--address-file": str(address_file),
    }
    pid = children.start("coordinator", ["-m", "lipt.coordinator", *_flatten(options)])
    say(f"coordinator started (process {pid}), {DATA} data, model {MODEL}")
    return address_file


def _start_workers(
    children: Children, scratch: Path, address: str, num_workers: int, say: Callable[[str], None]
) -> None:
    for number in range(1, num_workers + 1):
        name = f"worker-{number}"
        options = {
            "--coordinator": address,
            "--device": "cpu",
            "--cache-dir": str(scratch / name),
            "--name": name,
        }
        pid = children.start(name, ["-m", "lipt.worker", *_flatten(options)])
        say(f"{name} started (process {pid}) for the coordinator at {address}")


def _open_data(report: Callable[[str], None]) -> Dataset:
    report(f"reading {DATA}")
    # Imported late: torch takes seconds, in which the coordinator is already starting.
    from lipt.common.data import open_dataset  # noqa: PLC0415

    return open_dataset(DATA)


def _flatten(options: dict[str, str]) -> list[str]:
    return [word for option in options.items() for word in option]


def _read_address(address_file: Path) -> str | None:
    return address_file.read_text().strip() or None if address_file.exists() else None


def _all_joined(client: Client, num_workers: int) -> bool | None:
    return len(client.info().workers) >= num_workers or None


def _wait_for(
    look: Callable[[], FoundT | None], what: str, children: Children, say: Callable[[str], None]
) -> FoundT:
    """What `look` finds in the end; the children have to stay alive meanwhile."""
    started, said = time.monotonic(), -math.inf
    while (found := look()) is None:
        children.check()
        now = time.monotonic()
        if now - started > _START_SECONDS:
            raise UnreachableError(
                f"waited {now - started:.0f} s for {what}. See the logs of the processes, and "
                "whether the machine is busy."
            )
        if now - said >= SILENCE_SECONDS:
            say(f"waiting for {what} (since {now - started:.0f} s)")
            said = now
        time.sleep(_POLL_SECONDS)
    return found


def _pretrain(client: Client, children: Children, make_display: Callable[[], Display]) -> RunView:
    run = client.start_run(OVERRIDES, name="demo")
    changes = client.watch(run.run_id)
    final = follow(changes, make_display(), check=children.check) or run
    if final.state is not RunState.READY:
        raise RunFailedError(f"the run is {final.state}: {final.message}")
    return final


def _select(
    client: Client,
    run: RunView,
    dataset: DatasetView,
    data: Dataset,
    directory: Path,
    say: Callable[[str], None],
) -> tuple[SubsetResult, ...]:
    if data.fingerprint != dataset.fingerprint:
        raise SubsetError(
            f"the {DATA} data here has the fingerprint {data.fingerprint}, the coordinator's "
            f"{dataset.fingerprint}: indices of one do not fit the other."
        )
    labels_N = data.labels_N.numpy()
    results = []
    for strategy in STRATEGIES:
        subset = client.subset(run.run_id, strategy, fraction=FRACTION)
        files = tuple(
            subset.save(directory / f"subset-{strategy}{suffix}") for suffix in (".npy", ".csv")
        )
        counts = np.bincount(labels_N[subset.indices], minlength=len(data.class_names))
        results.append(
            SubsetResult(strategy, len(subset), tuple(counts.tolist()), subset.digest, files)
        )
        say(f"subset by {strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
    return tuple(results)
