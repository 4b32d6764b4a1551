"""The demo's experiment: subsets of a run, main training on each, and a report about both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from lipt.common.data import Dataset
from lipt.common.errors import RunFailedError
from lipt.trainer.cli.demo.cluster import MODEL
from lipt.trainer.cli.display.waiting import Say
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.compare import compare
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.comparison.plan import Plan
from lipt.trainer.comparison.trial import read_trials
from lipt.trainer.main_training import Recipe
from lipt.trainer.report.gathering import count_classes, gather
from lipt.trainer.report.page import render
from lipt.trainer.views import DatasetView, RunView
from lipt.trainer.writing.files import write_atomically
from lipt.trainer.writing.jsonable import to_jsonable

FRACTION = 0.1

PLAN = Plan(
    strategies=("facility_location", "craig"),
    fractions=(FRACTION,),
    seeds=(0, 1, 2),
    model=MODEL,
    # 50 passes over 144 images, after which accuracy on them has levelled off. Digits are
    # not to be mirrored, and 4 pixels are half of one.
    recipe=Recipe(steps=150, batch_size=48, augmentation="crop", padding=1),
    # Sizes for 1,442 images of 8x8: 8 x 1 x 64 examples are shipped, 36% of the set. Images
    # this small cost next to nothing, so statistics are estimated from more of them.
    run_overrides={
        "learners": {
            "num_learners": 8,
            "num_minibatches": 1,
            "num_steps": 10,
            "batch_size": 64,
            "learning_rate": 0.2,
        },
        "soup": {"batch_norm_examples": 1024},
    },
)


@dataclass(frozen=True)
class SubsetResult:
    """One strategy's subset, and how many of each class are in it."""

    strategy: str
    num_examples: int
    class_counts: tuple[int, ...]
    digest: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class DemoResult:
    """What the demo ends with.

    run, subsets: of the first seed.
    outcomes: of main training, over all seeds of the whole pipeline.
    verdict: whether a strategy beat random, in a sentence.
    seconds: of the whole demo, the processes' start and end included.
    """

    dataset: DatasetView
    run: RunView
    subsets: tuple[SubsetResult, ...]
    outcomes: tuple[Outcome, ...]
    verdict: str
    files: tuple[Path, ...]
    report: Path
    seconds: float = 0.0


def conduct(
    train: Dataset,
    test: Dataset,
    client: Client,
    finish: Callable[[RunView], RunView],
    directory: Path,
    say: Say,
) -> DemoResult:
    """Take subsets of the first seed's run, compare those of all seeds, and report on both.

    Args:
        train: the coordinator's data.
        test: what accuracy is measured on.
        client: connected to the coordinator.
        finish: waits until a run is ready, and gives it as it is then.
        directory: where results are written.
        say: prints a line.
    """

    @cache  # the comparison asks for the first seed's run, too
    def pretrain(seed: int) -> RunView:
        return finish(client.start_run(PLAN.overrides(seed), name=f"demo-{seed}"))

    record, weights, trials, page = (
        directory / name
        for name in ("run.json", "theta_p.safetensors", "comparison.jsonl", "report.html")
    )
    run = pretrain(PLAN.seeds[0])
    write_atomically(record, f"{json.dumps(to_jsonable(run), indent=2)}\n".encode())
    subsets = []
    for strategy in PLAN.all_strategies():
        subset = client.subset(run.run_id, strategy, fraction=FRACTION)
        files = tuple(
            subset.save(directory / f"subset-{strategy}{suffix}") for suffix in (".npy", ".csv")
        )
        counts = count_classes(train, subset.indices)
        subsets.append(SubsetResult(strategy, len(subset), counts, subset.digest, files))
        say(f"subset by {strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
    trials.unlink(missing_ok=True)  # of an earlier demo; this one is not to go on with it
    # A net this small trains fastest on one thread, and to the same bits on every machine.
    torch.set_num_threads(1)
    compare(client, PLAN, train, test, out=trials, device="cpu", say=say, pretrain=pretrain)
    client.save_weights(weights, run.run_id, "pretrained")
    stories = [(PLAN.strategies[0], FRACTION)]
    report = gather(client, run, train, stories, read_trials(trials))
    write_atomically(page, render(report).encode())
    if report.info.dataset is None:
        raise RunFailedError("the coordinator does not say which data it has.")
    return DemoResult(
        dataset=report.info.dataset,
        run=run,
        subsets=tuple(subsets),
        outcomes=report.outcomes,
        verdict=report.verdict,
        files=(
            *(file for result in subsets for file in result.files),
            *(weights, record, trials, directory / "logs"),
        ),
        report=page,
    )
