"""Trials of a comparison: the plan of all trainings, and each training as a line of a file.

Fixed random subsets are the baselines where examples cost: labels, storage, sharing. Where only
training time costs, the baselines are resampled random examples and all of the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lipt.common.config.run_config import merge
from lipt.common.errors import ConfigError
from lipt.common.nested import parse_json
from lipt.trainer.files import write_atomically
from lipt.trainer.formatting import differences
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.records import Evaluation

# The coordinator's random strategies.
FIXED = ("uniform", "uniform_per_class")
RESAMPLED = "resampled"
EVERYTHING = "everything"
BASELINES = (*FIXED, RESAMPLED, EVERYTHING)
# Of texts for a target: theta* itself, random examples, and everything for as many steps.
UNTRAINED = "untrained"
BASELINES_OF_TEXTS = (UNTRAINED, FIXED[0], EVERYTHING)
# Suffix of a row that is trained with soft labels; its baseline is the same row without them.
SOFT = "+soft"

# Accuracy on a subset has converged if it is saturated, or rose by less than _STILL since LATE.
_SATURATED, _STILL, LATE = 0.995, 0.01, 0.8
# Odds of a right answer, as a multiple of chance's, up to which a training has learned nothing.
_MAX_ODDS_AT_CHANCE = 1.5


def label(strategy: str) -> str:
    if strategy.endswith(SOFT):
        return f"{label(strategy.removesuffix(SOFT))} {SOFT}"
    if strategy in FIXED:
        return f"random ({strategy})"
    names = {RESAMPLED: "random resampled every epoch", UNTRAINED: "no training"}
    return names.get(strategy, strategy)


@dataclass(frozen=True)
class Cell:
    seed: int
    strategy: str
    fraction: float

    @property
    def name(self) -> str:
        return self.strategy.removesuffix(SOFT)

    @property
    def is_soft(self) -> bool:
        return self.strategy.endswith(SOFT)


@dataclass(frozen=True, kw_only=True)
class Trial(Cell):
    """Results of one training: a line of a comparison's file.

    pretraining_seconds: of the run whose learners or soup the selection used; else 0.
    selection_seconds: signals count for the first strategy that requests them.
    training_seconds: without evaluations.
    subset_accuracy: at the end; None where the examples change, and for all examples.
    chance: score of the best constant answer, such as the largest class of the test set.
    test_loss, test_loss_error, exact_match: of a target's held-out texts, as in `TextScores`.
    """

    num_examples: int
    num_steps: int
    weighted: bool
    test_accuracy: float
    subset_accuracy: float | None
    converged: bool
    pretraining_seconds: float = 0.0
    selection_seconds: float = 0.0
    training_seconds: float
    bytes_sent: int = 0
    digest: str
    chance: float
    evaluations: tuple[Evaluation, ...] = ()
    score_name: str = "accuracy"
    test_loss: float | None = None
    test_loss_error: float = 0.0
    exact_match: float | None = None

    @property
    def cell(self) -> Cell:
        return Cell(self.seed, self.strategy, self.fraction)

    @property
    def choosing_seconds(self) -> float:
        return self.pretraining_seconds + self.selection_seconds

    @property
    def learned(self) -> bool:
        """Whether the odds of a right answer are well above chance's; true of texts.

        Their trainings start from theta*, which has learned.
        """
        if self.test_loss is not None:
            return True
        score, chance = self.test_accuracy, self.chance
        return score * (1 - chance) > _MAX_ODDS_AT_CHANCE * chance * (1 - score)

    def reached(self, target: float) -> tuple[int, float] | None:
        """Steps, and seconds with the selection, of the first evaluation with this accuracy."""
        reaching = (evaluation for evaluation in self.evaluations if evaluation.accuracy >= target)
        return next(
            (
                (evaluation.step, self.choosing_seconds + evaluation.seconds)
                for evaluation in reaching
            ),
            None,
        )


def converged(subset_accuracies: Iterable[tuple[int, float]], num_steps: int) -> bool:
    accuracies = list(subset_accuracies)
    final = accuracies[-1][1]
    before = [accuracy for step, accuracy in accuracies if step <= LATE * num_steps]
    return final >= _SATURATED or (bool(before) and final - before[-1] < _STILL)


class TrialFile:
    """File of trials: a JSON line with the comparison's identity, then a line for each trial."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._path = path
        self.trials: list[Trial] = []
        if path.exists() and path.stat().st_size:
            stored, self.trials = read_trials(path)
            # A comparison that failed before its first trial may be replaced.
            if self.trials and stored != identity:
                raise ConfigError(
                    f"{path} is another comparison: {differences(stored, identity)}. Give --out "
                    "another name, or remove the file."
                )
        lines = [json.dumps(identity), *(json.dumps(asdict(trial)) for trial in self.trials)]
        write_atomically(path, ("\n".join(lines) + "\n").encode())

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(trial)) + "\n")


def read_trials(path: Path) -> tuple[dict[str, Any], list[Trial]]:
    """Read a comparison's identity and trials, except a last line that a kill has truncated."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            records.append(parse_json(line))
    if not records or not isinstance(records[0], dict) or "model" not in records[0]:
        raise ConfigError(f"{path} is no file of 'lipt compare'. Name one, or a new file.")
    identity, *lines = records
    try:
        evaluations = [
            tuple(Evaluation(**values) for values in line.pop("evaluations")) for line in lines
        ]
        trials = [
            Trial(**line, evaluations=each) for line, each in zip(lines, evaluations, strict=True)
        ]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} was written by another version: {error}. Name another file."
        ) from None
    return identity, trials


@dataclass(frozen=True)
class ComparisonPlan:
    """Strategies, baselines and settings of a comparison.

    recipe: its steps, or its epochs on the largest subset, are those of every training.
    run_overrides: settings of the runs, nested as in `RunConfig`.
    proxy: as in `client.subset`; each strategy's default where None.
    soft_labels: whether to train each row but resampled random with soft labels as well.
    """

    strategies: tuple[str, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    model: str
    recipe: Recipe
    run_overrides: Mapping[str, Any] = field(default_factory=dict)
    baselines: tuple[str, ...] = BASELINES
    proxy: str | None = None
    soft_labels: bool = False

    def overrides(self, seed: int) -> dict[str, Any]:
        return merge(self.run_overrides, {"model": self.model, "seed": seed})

    def cells(self, seed: int) -> Iterator[Cell]:
        """The trials of a seed: everything once, the rest for each fraction."""
        names = {*self.baselines, *self.strategies}
        random = (name for name in (*FIXED, RESAMPLED) if name in names)
        rows = dict.fromkeys((*random, *self.strategies))
        cells = [Cell(seed, UNTRAINED, 0.0)] if UNTRAINED in self.baselines else []
        cells += [Cell(seed, EVERYTHING, 1.0)] if EVERYTHING in self.baselines else []
        cells += [Cell(seed, name, fraction) for fraction in self.fractions for name in rows]
        for cell in cells:
            yield cell
            if self.soft_labels and cell.strategy != RESAMPLED:
                yield replace(cell, strategy=cell.strategy + SOFT)
