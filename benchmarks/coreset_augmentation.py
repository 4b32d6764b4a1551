"""Coreset augmentation: what it gives to augment only some examples strongly.

All rows have the same optimizer steps and initial weights. RandAugment (after crop and flip) is the
strong augmentation, crop and flip the mild one. A row with copies is trained on all examples
under the mild one, and on copies of a coreset under the strong one. "Strong" is the share of the
images trained on that were augmented strongly, and "augmenting" the seconds that all of
the training's augmentation took, timed alone afterwards.

    python -m benchmarks.coreset_augmentation [--examples 5000] [--steps 1200] [--seeds 2]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import lipt
from benchmarks.json_lines import append, read
from benchmarks.proxies import cut
from lipt.common.data.dataset import Dataset
from lipt.trainer.main_training import Recipe, fit
from lipt.trainer.main_training.augmenting import augmented
from lipt.trainer.main_training.examples import Examples
from lipt.trainer.subsets.subset import Subset
from tests.session import Session

CPU = torch.device("cpu")
# By their names: how the data is augmented, and which strategy's coreset has copies.
ROWS: dict[str, tuple[str, str]] = {
    "nothing augmented": ("none", ""),
    "all mildly": ("crop_flip", ""),
    "all strongly": ("randaugment", ""),
    "all mildly, copies of craig's coreset strongly": ("crop_flip", "craig"),
    "all mildly, copies of the highest error norms strongly": ("crop_flip", "el2n"),
    "all mildly, copies of random examples strongly": ("crop_flip", "uniform"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/cifar10-jpeg"))
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--fraction", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("coreset_augmentation.jsonl"))
    given = parser.parse_args()
    train = cut(lipt.open_dataset(f"parquet:{given.data}/train.parquet"), given.examples)
    test = cut(lipt.open_dataset(f"parquet:{given.data}/test.parquet"), 5000)
    for seed in range(given.seeds):
        done = {row["name"] for row in read(given.out) if row["seed"] == seed}
        coresets = chosen(train, given.fraction, seed) if len(done) < len(ROWS) else {}
        for name in ROWS:
            if name not in done:
                append(given.out, trained(name, train, test, coresets, given.steps, seed))
    show(list(read(given.out)))


def chosen(train: Dataset, fraction: float, seed: int) -> dict[str, Subset]:
    """The coresets, all by one run's theta_p."""
    with Session(train, "resnet8") as session:
        run = session.pretrain({}, seed=seed)
        names = {strategy for _, strategy in ROWS.values() if strategy}
        return {name: session.client.subset(run.run_id, name, fraction=fraction) for name in names}


def trained(
    name: str, train: Dataset, test: Dataset, coresets: dict[str, Subset], steps: int, seed: int
) -> dict[str, object]:
    augmentation, strategy = ROWS[name]
    settings = {"steps": steps, "batch_size": 128, "learning_rate": 0.05, "seed": seed}
    recipe = Recipe.model_validate({**settings, "augmentation": augmentation})
    coreset = coresets.get(strategy)
    result = fit("resnet8", train, coreset=coreset, test=test, recipe=recipe)
    seconds, images, strong = 0.0, 0, 0
    for step, (examples_B, copies_K) in enumerate(batches(train, coreset, recipe)):
        began = time.perf_counter()
        augmented(recipe, step, examples_B, copies_K)
        seconds += time.perf_counter() - began
        images += len(examples_B)
        everything = augmentation == "randaugment"
        strong += len(examples_B) if everything else 0 if copies_K is None else len(copies_K)
    return {
        "name": name,
        "seed": seed,
        "accuracy": result.test_accuracy,
        "seconds": result.seconds,
        "augmenting_seconds": seconds,
        "strong": strong / images,
    }


def batches(
    train: Dataset, coreset: Subset | None, recipe: Recipe
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Batches as main training has them, in another order."""
    examples = Examples(None, train, CPU, weighted=True, coreset=coreset)
    left = recipe.num_steps(len(examples))
    while left > 0:
        positions = recipe.batches(torch.randperm(len(examples)))[:left]
        for batch in examples.batches(positions):
            assert isinstance(batch.examples_B, torch.Tensor)
            yield batch.examples_B, batch.copies_K
        left -= len(positions)


def show(rows: list[dict[str, float]]) -> None:
    table = Table("augmented", "strong", "accuracy, %", "training, s", "augmenting, s")
    for name in ROWS:
        own = [row for row in rows if row["name"] == name]
        accuracies = [100 * row["accuracy"] for row in own]
        spread = f" ± {statistics.stdev(accuracies):.1f}" if len(own) > 1 else ""
        table.add_row(
            name,
            f"{statistics.fmean(row['strong'] for row in own):.0%}",
            f"{statistics.fmean(accuracies):.1f}{spread}",
            f"{statistics.fmean(row['seconds'] for row in own):.0f}",
            f"{statistics.fmean(row['augmenting_seconds'] for row in own):.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
