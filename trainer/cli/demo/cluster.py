"""The demo's cluster: a coordinator and workers, started here, until they have found each other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lipt.common.errors import UnreachableError
from lipt.trainer.cli.demo.processes import Children
from lipt.trainer.cli.display.waiting import SILENCE_SECONDS
from lipt.trainer.client.client import Client

FoundT = TypeVar("FoundT")

Say = Callable[[str], None]

_POLL_SECONDS = 0.1
_START_SECONDS = 120.0


def environment() -> dict[str, str]:
    """Environment of the children: without the LIPT_* settings, which are for other processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LIPT_")}


def start_coordinator(children: Children, scratch: Path, data: str, model: str, say: Say) -> Path:
    """Start a coordinator on a free port.

    Returns:
        The file that its address will stand in.
    """
    address_file = scratch / "address"
    options = {
        "--listen": "127.0.0.1:0",
        "--state-dir": str(scratch / "state"),
        "--data": data,
        "--model": model,
        "--device": "cpu",
        "--address-file": str(address_file),
    }
    pid = children.start("coordinator", ["-m", "lipt.coordinator", *_flatten(options)])
    say(f"coordinator started (process {pid}), {data} data, model {model}")
    return address_file


def start_workers(
    children: Children, scratch: Path, address: str, num_workers: int, say: Say
) -> None:
    """Start workers; they join by themselves."""
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


def wait_for_address(address_file: Path, children: Children, say: Say) -> str:
    """Where the coordinator listens, as soon as it does."""

    def read() -> str | None:
        return address_file.read_text().strip() or None if address_file.exists() else None

    return _wait_for(read, "the coordinator to listen", children, say)


def wait_for_workers(client: Client, num_workers: int, children: Children, say: Say) -> None:
    """Return when all have joined: else the first one there would do all the work alone."""
    _wait_for(
        lambda: len(client.info().workers) >= num_workers or None,
        f"{num_workers} workers to join",
        children,
        say,
    )


def _flatten(options: dict[str, str]) -> list[str]:
    return [word for option in options.items() for word in option]


def _wait_for(look: Callable[[], FoundT | None], what: str, children: Children, say: Say) -> FoundT:
    """Call `look` until it finds something, while all children are alive."""
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
