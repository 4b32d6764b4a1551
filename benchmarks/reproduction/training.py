"""Trainings of the bench: the service that they ask, their results on disk, and who does which."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import json_lines, processes
from benchmarks.reproduction.cells import (
    AUTO,
    EVERYTHING,
    FIELDS,
    LIPT,
    RESAMPLED,
    Cell,
    Scale,
    name_of,
    with_defaults,
)
from lipt.common.errors import LiptError
from lipt.common.process.devices import device_name, resolve_device, versions
from lipt.common.requests import Budget
from lipt.common.states import RunState
from lipt.data.dataset import Dataset
from lipt.data.loading import open_dataset
from lipt.trainer.client.client import Client
from lipt.trainer.main_training import Schedule, TrainingPaused, evenly, fit
from lipt.trainer.main_training.training import MakeSubsetSource, SubsetSource
from lipt.trainer.resampling.reselection import Reselection
from lipt.trainer.resampling.samplers import RepeatedRandom
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView

_SECONDS_BETWEEN_QUESTIONS = 1.0


@contextmanager
def serving(scale: Scale, work: Path) -> Iterator[str]:
    """The address of a coordinator with workers, whose state stays for the next start."""
    work.mkdir(parents=True, exist_ok=True)
    with processes.serving(
        work,
        scale.train,
        scale.model,
        num_workers=scale.num_workers,
        device=scale.device,
        environment={"OMP_NUM_THREADS": str(scale.threads)},
    ) as service:
        yield service.address


@dataclass(frozen=True)
class Service:
    """Requests of cells to a coordinator."""

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
        """Arguments of requests for a cell's subsets."""
        options: dict[str, object] = {}
        if cell.strategy == AUTO and self.scale.same_steps:
            options["training"] = "short"
        if cell.pretraining not in ("", LIPT):
            options["pretraining"] = cell.pretraining
        return {"fraction": cell.fraction, "options": options}

    def subset(self, cell: Cell, run: RunView) -> Subset:
        """Subset by the cell's strategy."""
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


_AT_THE_END = Schedule(test_at=(), subset_at=None)
_ON_THE_WAY = Schedule(test_at=evenly(10), subset_at=None)


# A cell's and a digest's result in another cell.
Known = Callable[[Cell, str], Mapping[str, Any] | None]
# What a result has of main training alone.
_TRAINED = ("accuracy", "num_examples", "num_steps", "training_seconds", "looks")


@dataclass(frozen=True)
class Result:
    """Result of a cell.

    accuracy: on the test set.
    looks: (steps, seconds of training without looks, accuracy).
    pretraining_seconds: of LiPT's run, or of the ordinary warm-up; 0 where nothing looked at a
        model. stages: their parts.
    selection_seconds: of the first subset; the first strategy that asks for signals pays for them.
    waited_seconds: how long training stood still for subsets chosen again.
    bytes_sent: between the coordinator and its workers.
    soup: accuracies on the validation split of theta*, the learners in the mean, and theta_p, and
        how many learners were kept.
    """

    accuracy: float
    num_examples: int
    num_steps: int
    training_seconds: float
    looks: tuple[tuple[int, float, float], ...] = ()
    pretraining_seconds: float = 0.0
    selection_seconds: float = 0.0
    waited_seconds: float = 0.0
    bytes_sent: int = 0
    stages: Mapping[str, float] | None = None
    soup: Mapping[str, float] | None = None
    digest: str = ""
    said: str = ""


@dataclass(frozen=True)
class Bench:
    """State that all trainings of a process share.

    checkpoints: a folder where a training that is paused goes on from.
    time_left: how many more seconds training may take; one that needs longer is paused.
    known: what the same examples came to before.
    """

    scale: Scale
    service: Service
    data: Dataset
    test: Dataset
    checkpoints: Path
    time_left: Callable[[], float]
    known: Known


def train(cell: Cell, bench: Bench) -> Result:
    """Train on what the cell says, unless the very same examples were trained on before.

    Raises:
        TrainingPaused: the time is over; the same call goes on.
    """
    service, data = bench.service, bench.data
    budget = Budget(cell.fraction).of(len(data))
    if cell.strategy == EVERYTHING:
        return _fit(cell, bench, None, None)
    if cell.strategy == RESAMPLED:
        resampled = RepeatedRandom(data, budget, cell.seed)
        return _fit(cell, bench, resampled.subset, resampled)
    run = service.run(cell)
    subset = service.subset(cell, run)
    costs = costs_of(cell, run, subset)
    if same := bench.known(cell, subset.digest):
        return Result(**{name: same[name] for name in _TRAINED}, **costs)
    if not cell.every:
        return _fit(cell, bench, subset, None, costs)
    made: list[Reselection] = []

    def reselect(model: nn.Module, first: Subset | None) -> Reselection:
        asked = {"run": run.run_id, "fraction": cell.fraction, "every": cell.every, "first": first}
        made.append(Reselection(service.client, model, cell.strategy, **asked))  # type: ignore[arg-type]
        return made[0]

    trained = _fit(cell, bench, subset, reselect, costs)
    waited = sum(chosen.waited_seconds for chosen in made[0].history)
    return _without_waiting(trained, waited)


def costs_of(cell: Cell, run: RunView, subset: Subset) -> dict[str, Any]:
    """Cost of choosing, as counted by the coordinator."""
    costs = subset.manifest.get("costs", {})
    found: dict[str, Any] = {
        "selection_seconds": float(costs.get("selection_seconds", 0.0)),
        "said": str((subset.manifest.get("findings") or {}).get("words", "")),
        "digest": subset.digest,
    }
    if cell.needs_soup and run.costs is not None and run.soup is not None:
        names = ("initialization", "sharding", "training", "merging")
        stages = {name: float(getattr(run.costs, f"{name}_seconds")) for name in names}
        found |= {
            "stages": stages,
            "pretraining_seconds": sum(stages.values()),
            "bytes_sent": run.costs.bytes_to_workers + run.costs.bytes_from_workers,
            "soup": {
                "initial": run.soup.initial_accuracy,
                "mean_learner": run.soup.mean_learner_accuracy,
                "soup": run.soup.soup_accuracy,
                "kept": run.soup.num_kept,
            },
        }
    elif cell.pretraining not in ("", LIPT):
        seconds = float(costs.get("warm_up_seconds", 0.0))
        found |= {"stages": {"warm-up": seconds}, "pretraining_seconds": seconds}
    return found


def _fit(
    cell: Cell,
    bench: Bench,
    subset: Subset | None,
    source: SubsetSource | MakeSubsetSource | None,
    costs: Mapping[str, Any] | None = None,
) -> Result:
    scale, data = bench.scale, bench.data
    checkpoint = bench.checkpoints / f"{name_of(cell)}.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(scale.threads)
    trained = fit(
        scale.model,
        data,
        subset=subset,
        test=bench.test,
        recipe=scale.recipe_for(cell.fraction, len(data), cell.seed),
        schedule=_ON_THE_WAY if cell.is_watched else _AT_THE_END,
        device=scale.device,
        reselect=source,
        checkpoint=checkpoint,
        max_seconds=bench.time_left(),
    )
    checkpoint.unlink(missing_ok=True)
    return Result(
        accuracy=trained.evaluations[-1].accuracy,
        num_examples=len(data) if subset is None else len(subset),
        num_steps=trained.num_steps,
        training_seconds=trained.seconds - trained.evaluation_seconds,
        looks=tuple((one.step, one.seconds, one.accuracy) for one in trained.evaluations),
        **(costs or {}),
    )


def _without_waiting(result: Result, waited: float) -> Result:
    return Result(
        **{
            **vars(result),
            "waited_seconds": waited,
            "training_seconds": result.training_seconds - waited,
        }
    )


class Results:
    """A file of results. Several processes may write; a line cut in two by a kill is no result."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[Cell, dict[str, Any]]:
        """Recorded results by cell."""
        rows = json_lines.read(self._path)
        return {Cell(**{name: row.pop(name) for name in FIELDS}): row for row in rows}

    def of_the_same_examples(self, cell: Cell, digest: str) -> dict[str, Any] | None:
        """Result of the same training on the same subset, if there is one."""
        if cell.every:
            return None
        for other, row in self.read().items():
            alike = replace(other, strategy="", pretraining="", run="") == replace(
                cell, strategy="", pretraining="", run=""
            )
            if alike and row["digest"] == digest and other.is_watched >= cell.is_watched:
                return row
        return None

    def add(self, cell: Cell, result: Result, facts: Mapping[str, object]) -> None:
        """Write one more, synced."""
        json_lines.append(self._path, {**asdict(cell), **asdict(result), **facts})


@contextmanager
def claimed(cell: Cell, folder: Path) -> Iterator[bool]:
    """Whether the cell is this process's; the kernel lets go of it with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name_of(cell)).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


_ROOT = Path(__file__).resolve().parents[2]


def run(
    cells: Sequence[Cell],
    scale: Scale,
    address: str,
    results: Results,
    work: Path,
    *,
    minutes: float,
) -> int:
    """Do what is missing, and write each result as it comes.

    Args:
        cells: in the order in which they are wanted.
        scale: of all of them.
        address: the coordinator's.
        results: what there is.
        work: where claims are kept.
        minutes: how long; a training that needs longer is paused, and goes on the next time.

    Returns:
        How many could not be done.
    """
    until = time.monotonic() + 60 * minutes
    data, test = open_dataset(scale.train), open_dataset(scale.test)
    facts = machine(scale)
    num_failed = 0
    with Client(address) as client:
        bench = Bench(
            scale,
            Service(client, scale),
            data,
            test,
            checkpoints=work / "checkpoints",
            time_left=lambda: max(0.0, until - time.monotonic()),
            known=results.of_the_same_examples,
        )
        for cell in cells:
            if time.monotonic() > until:
                break
            with claimed(cell, work / "claims") as mine:
                if not mine or cell in results.read():
                    continue
                started = time.monotonic()
                try:
                    result = train(cell, bench)
                except TrainingPaused as paused:
                    at = f"step {paused.progress.step} of {paused.progress.num_steps}"
                    print(f"paused at {at}, to go on from there: {cell}", flush=True)
                    break
                except LiptError as error:
                    print(f"left out, {cell}: {error}", flush=True)
                    num_failed += 1
                    continue
                results.add(cell, result, {**facts, "load": os.getloadavg()[0]})
                seconds = time.monotonic() - started
                print(f"{result.accuracy:.1%} in {seconds:.0f} s: {cell}", flush=True)
    return num_failed


def machine(scale: Scale) -> dict[str, str]:
    """Where and with what a result was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    device = resolve_device(scale.device)
    where = device_name(device) if device.type != "cpu" else _processor()
    return {"commit": commit, "machine": where, "torch": versions()["torch"]}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.processor()
