"""The demo's cluster: a coordinator and workers, started here, until they have found each other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lipt.common.errors import UnreachableError
from lipt.trainer.cli.demo.processes import Children
from lipt.trainer.cli.display.waiting import SILENCE_SECONDS, Say
from lipt.trainer.client.client import Client

FoundT = TypeVar("FoundT")

# Data as people have it: one label in twenty is wrong, here on purpose.
DATA, MODEL = "digits-mislabelled", "resnet8"

_POLL_SECONDS = 0.1
_START_SECONDS = 120.0


def environment() -> dict[str, str]:
    """Environment of the children: without the LIPT_* settings, which are for other processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LIPT_")}


@dataclass(frozen=True)
class Cluster:
    """The processes of the demo.

    children: takes the processes in, and ends them.
    scratch: a directory for what they keep.
    say: prints a line.
    """

    children: Children
    scratch: Path
    say: Say

    def start_coordinator(self) -> None:
        """Start a coordinator on a free port; it writes its address to a file."""
        pid = self._start(
            "coordinator",
            "lipt.coordinator",
            {
                "--listen": "127.0.0.1:0",
                "--state-dir": str(self.scratch / "state"),
                "--data": DATA,
                "--model": MODEL,
                "--address-file": str(self._address_file),
            },
        )
        self.say(f"coordinator started (process {pid}), {DATA} data, model {MODEL}")

    def start_workers(self, address: str, num_workers: int) -> None:
        """Start workers; they join by themselves."""
        for number in range(1, num_workers + 1):
            name = f"worker-{number}"
            cache = str(self.scratch / name)
            options = {"--coordinator": address, "--cache-dir": cache, "--name": name}
            pid = self._start(name, "lipt.worker", options)
            self.say(f"{name} started (process {pid}) for the coordinator at {address}")

    def wait_for_address(self) -> str:
        """Where the coordinator listens, as soon as it does."""
        file = self._address_file
        return self._wait_for(
            lambda: file.read_text().strip() if file.exists() else "", "the coordinator to listen"
        )

    def wait_for_workers(self, client: Client, num_workers: int) -> None:
        """Return when all have joined: else the first one there would do all the work alone."""
        self._wait_for(
            lambda: len(client.info().workers) >= num_workers, f"{num_workers} workers to join"
        )

    @property
    def _address_file(self) -> Path:
        return self.scratch / "address"

    def _start(self, name: str, module: str, options: dict[str, str]) -> int:
        words = [word for option in options.items() for word in option]
        return self.children.start(name, ["-m", module, "--device", "cpu", *words])

    def _wait_for(self, look: Callable[[], FoundT], what: str) -> FoundT:
        """Call `look` until it finds something, while all children are alive."""
        started, said = time.monotonic(), -math.inf
        while not (found := look()):
            self.children.check()
            now = time.monotonic()
            if now - started > _START_SECONDS:
                raise UnreachableError(
                    f"waited {now - started:.0f} s for {what}. See the logs of the processes, and "
                    "whether the machine is busy."
                )
            if now - said >= SILENCE_SECONDS:
                self.say(f"waiting for {what} (since {now - started:.0f} s)")
                said = now
            time.sleep(_POLL_SECONDS)
        return found
