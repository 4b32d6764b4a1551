"""One cell's main training, and what it and the choice before it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.reproduction.cells import EVERYTHING, LIPT, REDRAWN, Cell, name_of
from benchmarks.reproduction.scales import Scale
from benchmarks.reproduction.service import Service
from lipt.common.data import Dataset
from lipt.common.subsets import budget_from_fraction
from lipt.trainer.main_training import Schedule, evenly, fit
from lipt.trainer.main_training.examples import MakeSubsetSource, SubsetSource
from lipt.trainer.main_training.redrawn import RedrawnRandom
from lipt.trainer.reselection.reselection import Reselection
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView

_AT_THE_END = Schedule(test_at=(), subset_at=None)
_ON_THE_WAY = Schedule(test_at=evenly(10), subset_at=None, within_epochs=True)


# A cell's and a digest's result in another cell.
Known = Callable[[Cell, str], Mapping[str, Any] | None]
# What a result has of main training alone.
_TRAINED = ("accuracy", "num_examples", "num_steps", "training_seconds", "looks")


@dataclass(frozen=True)
class Result:
    """What a cell came to.

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
    """What all trainings of a process share.

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
    budget = budget_from_fraction(cell.fraction, len(data))
    if cell.strategy == EVERYTHING:
        return _fit(cell, bench, None, None)
    if cell.strategy == REDRAWN:
        redrawn = RedrawnRandom(data, budget, cell.seed)
        return _fit(cell, bench, redrawn.subset, redrawn)
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
    """What choosing cost, as the coordinator counted it."""
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
        accuracy=trained.looks[-1].accuracy,
        num_examples=len(data) if subset is None else len(subset),
        num_steps=trained.num_steps,
        training_seconds=trained.seconds - trained.evaluation_seconds,
        looks=tuple((look.step, look.seconds, look.accuracy) for look in trained.looks),
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
