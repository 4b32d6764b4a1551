"""Distillation: what few synthetic images are worth beside as many real ones.

For each data set and number of images per class: accuracy after training on images distilled in one
stage and in several (with and without the easiest real ones in later stages; after each, trained
on stage by stage and all at once), on random images, and on chosen subsets. Equal steps, the
same model; the spread is over seeds of training, random images being drawn anew by each.

    python -m benchmarks.distillation [--data digits cifar10-jpeg] [--per-class 1 10]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.json_lines import append, read
from benchmarks.proxies import cut
from lipt.common.data import Dataset, open_dataset
from lipt.trainer.distillation import Distillation, distill
from lipt.trainer.distillation.synthetic import evaluate
from lipt.trainer.main_training import Recipe
from lipt.trainer.subsets.subset import Subset
from tests.session import Session

# By name: train and test, how many images are trained on (0: all), and how they are shifted.
DATA = {
    "digits": ("digits-train", "digits-test", 0, {"augmentation": "crop", "padding": 1}),
    "cifar10-jpeg": ("parquet:{}/train.parquet", "parquet:{}/test.parquet", 5000, {"padding": 2}),
}
# Of photographs, a side in pixels: a core's minutes go four times as far as with 32.
SIDE = 16
# Stages and share of the easiest that later stages leave out, by images per class.
WAYS = {
    1: ((1, 0.0),),
    10: ((1, 0.0), (2, 0.0), (2, 0.3), (5, 0.0)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("../shared/data/cifar10-jpeg"))
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--per-class", nargs="+", type=int, default=list(WAYS))
    parser.add_argument("--networks", type=int, default=6, help="of each stage")
    parser.add_argument("--matches", type=int, default=10)
    parser.add_argument("--stages", nargs="+", type=int, default=[1, 2, 5])
    parser.add_argument("--strategies", nargs="+", default=["herding", "craig"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("distillation.jsonl"))
    given = parser.parse_args()
    done = {
        (row["data"], row["per_class"], row["stages"], row["discard"]) for row in read(given.out)
    }
    for name in given.data:
        train, test = opened(name, given.folder)
        for per_class in given.per_class:
            for stages, discard in WAYS[per_class]:
                if (name, per_class, stages, discard) in done or stages not in given.stages:
                    continue
                # Real images do not depend on the stages.
                chosen = subsets(train, per_class, given.strategies) if stages == 1 else {}
                wanted = Distillation(
                    per_class=per_class,
                    stages=stages,
                    discard=discard,
                    networks=given.networks,
                    matches=given.matches,
                    **DATA[name][3],
                )
                append(given.out, measured(name, train, test, wanted, chosen, given))
    show(list(read(given.out)))


def opened(name: str, folder: Path) -> tuple[Dataset, Dataset]:
    train, test, size, _ = DATA[name]
    if not size:
        return open_dataset(train), open_dataset(test)
    found = [open_dataset(source.format(folder), image_size=SIDE) for source in (train, test)]
    return cut(found[0], size), cut(found[1], 2000)


def subsets(train: Dataset, per_class: int, strategies: list[str]) -> dict[str, Subset]:
    """The same number of real images of each class, chosen on one run's theta_p."""
    budget = per_class * len(train.class_names)
    with Session(train, "resnet8") as session:
        run = session.pretrain({}, seed=0)
        return {
            strategy: session.client.subset(run.run_id, strategy, budget=budget, balanced=True)
            for strategy in strategies
        }


def measured(
    name: str,
    train: Dataset,
    test: Dataset,
    wanted: Distillation,
    chosen: dict[str, Subset],
    given: argparse.Namespace,
) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        synthetic = distill(train, "convnet", wanted, Path(folder))
        seconds = time.perf_counter() - began
    recipe = Recipe(
        steps=given.steps,
        learning_rate=0.01,
        augmentation=wanted.augmentation,
        padding=wanted.padding,
    )
    outcomes = evaluate(
        synthetic, train, test, "convnet", recipe, seeds=range(given.seeds), chosen=chosen
    )
    return {
        "data": name,
        "per_class": wanted.per_class,
        "stages": wanted.stages,
        "discard": wanted.discard,
        "networks": wanted.networks,
        "matches": wanted.matches,
        "steps": given.steps,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "rounding": [stage["rounding"] for stage in synthetic.manifest["stages"]],
        "distance": [stage["distance"] for stage in synthetic.manifest["stages"]],
        "accuracies": {outcome.name: outcome.accuracies for outcome in outcomes},
    }


def show(rows: list[dict[str, object]]) -> None:
    table = Table("data", "per class", "trained on", "accuracy, %", "distilling, s")
    for row in rows:
        for name, accuracies in row["accuracies"].items():  # type: ignore[attr-defined]
            of_stages = f" ({row['stages']} stages, {row['discard']:.0%} discarded)"
            distilled = name.startswith("distilled")
            if name == "random" and row["stages"] != 1:
                continue
            percent = [100 * accuracy for accuracy in accuracies]
            table.add_row(
                str(row["data"]),
                str(row["per_class"]),
                name + (of_stages if distilled else ""),
                f"{statistics.fmean(percent):.1f} ± {statistics.stdev(percent):.1f}",
                f"{row['seconds']:.0f}" if distilled else "-",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
