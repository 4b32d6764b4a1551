"""Trials of a comparison: the plan of what is trained, and each training as a line of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lipt.common.config.values import merge
from lipt.common.determinism import derive_seed
from lipt.common.errors import ConfigError
from lipt.trainer.comparison.baselines import BASELINES, EVERYTHING, FIXED, REDRAWN
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.records import Look
from lipt.trainer.writing.files import write_atomically
from lipt.trainer.writing.formatting import differences

# Accuracy on the subset that is this high, or has moved less than this since
# four fifths of the steps, has levelled off.
_SATURATED = 0.995
_STILL = 0.01
LATE = 0.8


@dataclass(frozen=True)
class Cell:
    """One place in a comparison, which one trial fills."""

    seed: int
    strategy: str
    fraction: float
    every: int = 0
    repeat: int = 0


@dataclass(frozen=True)
class Trial:
    """What one training came to. Files of older versions lack the fields that have defaults.

    seed: of the whole pipeline: run, subset, and main training.
    pretraining_seconds: of the run whose learners or soup were looked at for the subset; 0 where
        none were. (Older files: of every run that a subset was asked of, but for random ones.)
    selection_seconds: of the first subset, as the coordinator counted them. The first
        strategy that asks for signals pays for them.
    training_seconds: of main training, without the time that accuracies took. (Older files:
        with it.)
    bytes_sent: between the coordinator and its workers in that run.
    subset_accuracy: at the end; None where the examples changed, and for everything.
    levelled_off: whether accuracy on the subset had, so that more steps would change little.
    digest: of the first subset; empty for everything.
    every, repeat: as in `Cell`.
    waited_seconds: how long training stood still for subsets that were chosen again.
    looks: test accuracy over the course of training, whose seconds count from its start.
    score_name: what accuracies are; of other targets than classes another score.
    """

    seed: int
    strategy: str
    fraction: float
    num_examples: int
    num_steps: int
    weighted: bool
    test_accuracy: float
    subset_accuracy: float | None
    levelled_off: bool
    pretraining_seconds: float
    selection_seconds: float
    training_seconds: float
    bytes_sent: int
    digest: str
    every: int = 0
    repeat: int = 0
    waited_seconds: float = 0.0
    looks: tuple[Look, ...] = ()
    score_name: str = "accuracy"

    @property
    def cell(self) -> Cell:
        """The place that it fills."""
        return Cell(self.seed, self.strategy, self.fraction, self.every, self.repeat)

    @property
    def choosing_seconds(self) -> float:
        """Pre-training, the first selection, and those that training waited for."""
        return self.pretraining_seconds + self.selection_seconds + self.waited_seconds

    @property
    def total_seconds(self) -> float:
        """Choosing and main training."""
        return self.choosing_seconds + self.training_seconds

    @property
    def course(self) -> tuple[Look, ...]:
        """The looks, their seconds with the choosing before training included."""
        before = self.pretraining_seconds + self.selection_seconds
        return tuple(replace(look, seconds=before + look.seconds) for look in self.looks)

    def reached(self, target: float) -> tuple[int, float] | None:
        """When a look first found this accuracy: steps and seconds, choosing included."""
        for look in self.course:
            if look.accuracy >= target:
                return look.step, look.seconds
        return None


def levelled_off(subset_accuracies: Iterable[tuple[int, float]], num_steps: int) -> bool:
    """Whether accuracy on the subset has stopped rising.

    Args:
        subset_accuracies: (step, accuracy without augmentation), in order, the last step
            included.
        num_steps: how many steps there were.
    """
    accuracies = list(subset_accuracies)
    final = accuracies[-1][1]
    before = [accuracy for step, accuracy in accuracies if step <= LATE * num_steps]
    return final >= _SATURATED or (bool(before) and final - before[-1] < _STILL)


class TrialFile:
    """File of trials: a line of JSON that says what is compared, then a line for each trial.

    Args:
        path: the file; made where it is missing.
        identity: what all trials have in common: data, model, recipe, run settings.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._path = path
        self.trials: list[Trial] = []
        if path.exists() and path.stat().st_size:
            found, self.trials = read_trials(path)
            # Without a trial nothing is lost: a comparison that was refused has left it.
            if self.trials and found != identity:
                raise ConfigError(
                    f"{path} is another comparison: {differences(found, identity)}. Give --out "
                    "another name, or remove the file."
                )
        # What a kill has cut in two is written again.
        lines = [json.dumps(identity), *(json.dumps(asdict(trial)) for trial in self.trials)]
        write_atomically(path, ("\n".join(lines) + "\n").encode())

    def find(self, cell: Cell) -> Trial | None:
        """The trial, if it has been done."""
        return next((trial for trial in self.trials if trial.cell == cell), None)

    def add(self, trial: Trial) -> None:
        """Write one more, on disk at once."""
        self.trials.append(trial)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(trial)) + "\n")


def read_trials(path: Path) -> tuple[dict[str, Any], list[Trial]]:
    """What a comparison's file holds: the identity and the trials."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    identity = _parsed(lines[0]) if lines else None
    if identity is None or "model" not in identity:
        raise ConfigError(
            f"{path} is not a file that 'lipt compare' wrote. Name one, or a file that is not "
            "there yet."
        )
    try:
        trials = [_trial(values) for line in lines[1:] if (values := _parsed(line)) is not None]
    except TypeError as error:
        raise ConfigError(
            f"{path} was written by another version: {error}. Name another file."
        ) from None
    return identity, trials


def _trial(values: dict[str, Any]) -> Trial:
    looks = tuple(Look(**look) for look in values.pop("looks", ()))
    return Trial(**values, looks=looks)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except json.JSONDecodeError:
        return None
    return values if isinstance(values, dict) else None


@dataclass(frozen=True)
class Plan:
    """What is compared.

    recipe: of every training; its steps are the same for all, its seed is decided here.
        Without `steps`, they are its epochs on the largest subset.
    run_overrides: settings of the runs, nested as in `RunConfig`.
    proxy: what judges the examples, as in `client.subset`; each strategy's default where None.
    baselines: what the strategies are compared with, of `BASELINES`.
    every: epochs after which strategies choose again, on the weights of that moment, and a
        random subset is drawn again beside them; 0 for subsets that stay.
    training_seeds: how many trainings each seed of the pipeline has, with initial weights
        and orders that all strategies share.
    """

    strategies: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    model: str
    recipe: Recipe
    run_overrides: Mapping[str, Any] = field(default_factory=dict)
    baselines: tuple[str, ...] = BASELINES
    every: int = 0
    training_seeds: int = 1
    proxy: str | None = None

    def overrides(self, seed: int) -> dict[str, Any]:
        """The settings of a seed's run."""
        return merge(self.run_overrides, {"model": self.model, "seed": seed})

    def asked(self) -> dict[str, Any]:
        """What every subset is asked for besides its strategy and size."""
        return {} if self.proxy is None else {"proxy": self.proxy}

    def all_strategies(self) -> tuple[str, ...]:
        """The fixed kinds of random first, then what was asked for, each once."""
        fixed = [name for name in FIXED if name in self.baselines]
        return tuple(dict.fromkeys((*fixed, *self.strategies)))

    def cells(self, seed: int) -> Iterator[Cell]:
        """What is trained for a seed: everything once, the rest for each fraction."""
        for repeat in range(self.training_seeds):
            if EVERYTHING in self.baselines:
                yield Cell(seed, EVERYTHING, 1.0, 0, repeat)
            for fraction in self.fractions:
                for strategy, every in self._within_fraction():
                    yield Cell(seed, strategy, fraction, every, repeat)

    def _within_fraction(self) -> list[tuple[str, int]]:
        strategies = self.all_strategies()
        found = [(name, 0) for name in strategies if name in FIXED]
        if REDRAWN in self.baselines:
            found += [(REDRAWN, every) for every in sorted({1, self.every} - {0})]
        return found + [(name, self.every) for name in strategies if name not in FIXED]


def training_seed(seed: int, repeat: int) -> int:
    """The recipe's seed of one of the trainings of a pipeline seed; the first has that very one."""
    return seed if repeat == 0 else derive_seed(seed, "compare-training", repeat)
