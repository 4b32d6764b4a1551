"""The service of a scale: one coordinator and its workers, and the runs and subsets of cells."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reproduction.cells import AUTO, LIPT, Cell, with_defaults
from benchmarks.reproduction.scales import Scale
from benchmarks.value.pipeline import wait_for_address
from lipt.common.errors import LiptError
from lipt.common.states import RunState
from lipt.trainer.cli.demo.processes import Children
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView

_SECONDS_BETWEEN_QUESTIONS = 1.0


@contextmanager
def serving(scale: Scale, work: Path) -> Iterator[str]:
    """A coordinator and its workers; its address. Their state stays, so that nothing is done twice.

    Args:
        scale: which data and model.
        work: a folder of this scale for states, caches and logs.
    """
    work.mkdir(parents=True, exist_ok=True)
    address_file = work / "address"
    address_file.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name[:5] != "LIPT_"}
    environment["OMP_NUM_THREADS"] = str(scale.threads)
    with Children(work, environment) as children:
        where = ["--listen", "127.0.0.1:0", "--address-file", str(address_file)]
        served = ["--data", scale.train, "--model", scale.model, "--state-dir", str(work / "state")]
        common = ["--device", scale.device]
        children.start("coordinator", ["-m", "lipt.coordinator", *common, *served, *where])
        address = wait_for_address(children, address_file, log=work / "coordinator.log")
        for number in range(scale.num_workers):
            own = ["--cache-dir", str(work / f"cache-{number}"), "--name", f"worker-{number}"]
            children.start(
                f"worker-{number}", ["-m", "lipt.worker", *common, "--coordinator", address, *own]
            )
        yield address


@dataclass(frozen=True)
class Service:
    """What cells ask of a coordinator."""

    client: Client
    scale: Scale

    def run(self, cell: Cell) -> RunView:
        """The cell's run, which several cells share; ready where the cell needs its soup."""
        overrides = with_defaults(cell, self.scale.run, cell.seed, self.scale.model)
        settings = json.dumps(overrides, sort_keys=True).encode()
        name = f"paper-{hashlib.sha256(settings).hexdigest()[:12]}"
        same = [run for run in self.client.runs() if run.name == name]
        run = same[0] if same else self._started(overrides, name)
        if not cell.needs_soup:
            return self._with_initial_weights(run)
        ready = self.client.wait(run.run_id)
        if ready.state is not RunState.READY:
            raise LiptError(f"the run of {cell} is {ready.state}: {ready.message}")
        return ready

    def asked(self, cell: Cell) -> dict[str, Any]:
        """What a cell's subsets are asked for by."""
        options: dict[str, object] = {}
        if cell.strategy == AUTO and self.scale.same_steps:
            options["training"] = "short"
        if cell.pretraining not in ("", LIPT):
            options["pretraining"] = cell.pretraining
        return {"fraction": cell.fraction, "options": options}

    def subset(self, cell: Cell, run: RunView) -> Subset:
        """What the cell's strategy chooses."""
        return self.client.subset(run.run_id, cell.strategy, **self.asked(cell))

    def _started(self, overrides: dict[str, Any], name: str) -> RunView:
        started = self.client.start_run(overrides, name=name)
        # Another process of the bench may have had the same thought: the older one counts.
        same = [run for run in self.client.runs() if run.name == name]
        return same[-1] if same else started

    def _with_initial_weights(self, run: RunView) -> RunView:
        while True:
            found = self.client.run(run.run_id)
            if found.state.ended or found.state in (RunState.TRAINING, RunState.MERGING):
                return found
            time.sleep(_SECONDS_BETWEEN_QUESTIONS)
