"""What the greedy soup takes, and what saves some of it, on one run's learners.

    grid            as it was before: one mixture after another, to the end, its inputs made
                    anew, all threads at work on each layer
    one thread      the same on one thread
    together        as many mixtures at a time as there are threads; inputs made once, and a
                    mixture is given up as soon as it cannot be above the soup (exact: the
                    theta_p of one thread, to the bit)
    coarse to fine  as together, about the square root of the ratios, then those around the best

All take turns. Learners are trained here, as a worker trains them; with --head-only their heads
alone, on frozen features of a theta* that was trained for an epoch.

    python -m benchmarks.soup [--source S] [--steps K] [--head-only] [--rounds 3]

Images are those of $LIPT_DATA/cifar10-jpeg (or ../shared/data), else scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from benchmarks.out_of_shard import run_of, train
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lipt.common.config.run_config import (
    InitializationConfig,
    LearnersConfig,
    RunConfig,
    SoupSearch,
)
from lipt.common.config.settings import load_settings
from lipt.common.determinism import pinned_kernels
from lipt.common.inputs.model_input import num_stored
from lipt.common.weights.specs import Weights, specs_of
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import CutShards, InitializeWeights, MakeSoup
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.evaluation import Evaluator, Evaluators, OpenWeights, Scored, evaluate_for_soup
from lipt.core.pipeline import soup_evaluator
from lipt.core.results import LearnerReader
from lipt.core.soup import Soup, greedy_soup

GRID, ONE_THREAD, TOGETHER = "grid", "one thread", "together"
COARSE = "coarse to fine"


@dataclass
class Measured:
    """One side's turns.

    images: put through the model, or in the end through its head, in one turn.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    evaluations: int = 0
    images: int = 0
    soup: Soup | None = None


@dataclass(frozen=True)
class Bench:
    """Learners of one run, and what evaluates them."""

    new_evaluator: Callable[[], Evaluator]
    evaluate: Callable[[Evaluator], Evaluators]
    learners: list[OpenWeights]
    num_alphas: int
    threads: int

    def turn(self, side: str, into: Measured) -> None:
        """Make the soup one side's way."""
        evaluator = self.new_evaluator()
        evaluate_all = self.evaluate(evaluator)
        num_evaluations, num_images = 0, 0

        def count(_module: object, arguments: tuple[Tensor, ...]) -> None:
            nonlocal num_images
            num_images += num_stored(arguments[0])

        for twin in evaluate_all.evaluators:
            twin.model.register_forward_pre_hook(count)

        def evaluate(weights: Sequence[OpenWeights], floor: float) -> Iterator[Scored]:
            nonlocal num_evaluations
            num_evaluations += len(weights)
            if side in (GRID, ONE_THREAD):
                # Another one each time: nothing is kept from one to the next.
                yield from (replace(evaluator)(opened()) for opened in weights)
            else:
                yield from evaluate_all(weights, floor)

        started, cpu_started = time.perf_counter(), time.process_time()
        with pinned_kernels(self.threads if side == GRID else 1):
            into.soup = greedy_soup(
                self.learners,
                evaluate,
                num_alphas=self.num_alphas,
                on_progress=lambda *_: None,
                search=SoupSearch.COARSE_TO_FINE if side == COARSE else SoupSearch.GRID,
            )
        into.seconds.append(time.perf_counter() - started)
        into.cpu_seconds.append(time.process_time() - cpu_started)
        into.evaluations, into.images = num_evaluations, num_images


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of the greedy soup.")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    photographs = Path(os.environ.get("LIPT_DATA", beside)) / "cifar10-jpeg" / "train.parquet"
    found = f"parquet:{photographs}" if photographs.exists() else "digits-train"
    parser.add_argument("--source", default=found)
    parser.add_argument("--learners", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10, help="K")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--head-only", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=RunConfig().evaluation_threads)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    config = RunConfig(
        model="resnet8",
        seed=given.seed,
        evaluation_threads=given.threads,
        initialization=InitializationConfig(epochs=1.0 if given.head_only else 0.0),
        learners=LearnersConfig(
            num_learners=given.learners,
            batch_size=given.batch_size,
            num_steps=given.steps,
            learning_rate=given.learning_rate,
            frozen=("all-but-head",) if given.head_only else (),
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        flags = {"state_dir": folder, "dataset": {"source": given.source}, "device": "cpu"}
        settings = load_settings(CoordinatorSettings, config=None, flags=flags)
        bench = prepare(Context(settings, send=lambda _: None), config)
        sides = {name: Measured() for name in (GRID, ONE_THREAD, TOGETHER, COARSE)}
        for _ in range(given.rounds):
            for name, measured in sides.items():
                bench.turn(name, measured)
    show(sides, f"{given.source}, {given.learners} learners, K={given.steps}")


def prepare(context: Context, config: RunConfig) -> Bench:
    """Train the run's learners, one after another."""
    with pinned_kernels(config.learners.cpu_threads):
        initial = InitializeWeights(config).run(context)
        run = run_of(context, config, initial.inputs)
        committed = [
            train(context, run, record, initial.inputs) for record in CutShards(config).run(context)
        ]
    results = tuple((learner.index, learner.result) for learner in committed)
    job = MakeSoup(config, initial.inputs, initial.weights, results)
    model = context.new_model(config)
    weights = context.read_weights(initial.weights, model)
    reader = LearnerReader.of(specs_of(weights), weights, context.frozen(config, model))

    def opened(number: int) -> OpenWeights:
        return lambda: reader.open(context.blobs.verified_path(results[number][1]))

    learners = [opened(number) for number in range(len(results))]
    return Bench(
        lambda: soup_evaluator(context, job.config, job.inputs),
        lambda evaluator: evaluate_for_soup(
            evaluator, job.config, lambda: context.new_model(job.config)
        ),
        learners,
        config.soup.num_alphas,
        config.evaluation_threads,
    )


def show(sides: Mapping[str, Measured], title: str) -> None:
    """A row for each side; choices and bits are compared with those of one thread."""
    plain = sides[GRID]
    table = Table(
        "side", "evaluations", "images", "seconds", "grid / it", "CPU s", "accuracy", "same", "bits"
    )
    table.title = f"greedy soup, {title}; medians of {len(plain.seconds)} turns"
    for name, side in sides.items():
        seconds, cpu = statistics.median(side.seconds), statistics.median(side.cpu_seconds)
        table.add_row(
            name,
            f"{side.evaluations:,}",
            f"{side.images:,}",
            f"{seconds:.2f}",
            f"{statistics.median(plain.seconds) / seconds:.2f}",
            f"{cpu:.2f}",
            "" if side.soup is None else f"{side.soup.accuracy:.1%}",
            "yes" if same_choices(sides[ONE_THREAD].soup, side.soup) else "no",
            "yes" if same_bits(sides[ONE_THREAD].soup, side.soup) else "no",
        )
    Console().print(table)


def same_choices(first: Soup | None, second: Soup | None) -> bool:
    """Whether the same learners went into two soups, by the same ratios."""
    if first is None or second is None:
        return False
    return all(second.ingredients[at].alpha == part.alpha for at, part in first.ingredients.items())


def same_bits(first: Soup | None, second: Soup | None) -> bool:
    """Whether two soups are the same to the bit."""
    if first is None or second is None:
        return False
    left: Weights = first.weights
    return all(torch.equal(left[name], second.weights[name]) for name in left)


if __name__ == "__main__":
    main()
