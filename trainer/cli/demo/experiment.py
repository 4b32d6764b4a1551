"""The demo's experiment: subsets of a run, main training on each, and a report about both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lipt.common.data import Dataset, open_dataset
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.compare import Plan, compare
from lipt.trainer.comparison.trial import read_trials
from lipt.trainer.comparison.verdict import Outcome, outcomes
from lipt.trainer.main_training import Recipe
from lipt.trainer.report.gathering import gather, kept_per_class
from lipt.trainer.report.page import render
from lipt.trainer.views import RunView
from lipt.trainer.writing.files import write_atomically

FRACTION = 0.1
STRATEGIES = ("facility_location", "craig")
SEEDS = (0, 1, 2)

# Sizes for 1,442 images of 8x8: 8 x 1 x 64 examples are shipped, 36% of the set. Images
# this small cost next to nothing, so statistics are estimated from more of them.
RUN: dict[str, Any] = {
    "learners": {
        "num_learners": 8,
        "num_minibatches": 1,
        "num_steps": 10,
        "batch_size": 64,
        "learning_rate": 0.2,
    },
    "soup": {"batch_norm_examples": 1024},
}

# 50 passes over 144 images, after which accuracy on them has levelled off. Digits are
# not to be mirrored, and 4 pixels are half of one.
RECIPE = Recipe(steps=150, batch_size=48, augmentation="crop", padding=1)


@dataclass(frozen=True)
class SubsetResult:
    """One strategy's subset, and how many of each class are in it."""

    strategy: str
    num_examples: int
    class_counts: tuple[int, ...]
    digest: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Experiment:
    """The demo's data sets, and the plan of what is compared on them."""

    train: Dataset
    test: Dataset
    plan: Plan

    @classmethod
    def on(cls, data: str, test: str, model: str) -> Self:
        """Open both data sets, and plan the demo's comparison of strategies."""
        plan = Plan(
            strategies=STRATEGIES,
            fractions=(FRACTION,),
            seeds=SEEDS,
            model=model,
            recipe=RECIPE,
            run_overrides=RUN,
        )
        return cls(open_dataset(data), open_dataset(test), plan)

    def save_subsets(
        self, client: Client, run: RunView, directory: Path, say: Callable[[str], None]
    ) -> tuple[SubsetResult, ...]:
        """Write every strategy's subset of a run."""
        results = []
        for strategy in self.plan.all_strategies():
            subset = client.subset(run.run_id, strategy, fraction=FRACTION)
            files = tuple(
                subset.save(directory / f"subset-{strategy}{suffix}") for suffix in (".npy", ".csv")
            )
            counts = kept_per_class(subset, self.train)
            results.append(SubsetResult(strategy, len(subset), counts, subset.digest, files))
            say(f"subset by {strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
        return tuple(results)

    def compare(
        self,
        client: Client,
        first: RunView,
        pretrain: Callable[[int], RunView],
        out: Path,
        say: Callable[[str], None],
    ) -> list[Outcome]:
        """Train on every subset of every seed.

        Args:
            client: connected to the coordinator.
            first: the first seed's run, which is there already.
            pretrain: gives another seed's run, ready.
            out: where the trials are written.
            say: prints a line.
        """
        out.unlink(missing_ok=True)  # of an earlier demo; this one is not to go on with it
        trials = compare(
            client,
            self.plan,
            self.train,
            self.test,
            out=out,
            device="cpu",
            say=say,
            pretrain=lambda seed: first if seed == self.plan.seeds[0] else pretrain(seed),
        )
        return outcomes(trials)

    def write_report(self, client: Client, run: RunView, trials: Path, page: Path) -> None:
        """Write the page about a run and the comparison."""
        stories = [(STRATEGIES[0], FRACTION)]
        report = gather(client, run, self.train, stories, read_trials(trials))
        write_atomically(page, render(report).encode())
