"""The demo's experiment: a diagnosis, subsets of a run, main training on each, and two pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.data import Dataset
from lipt.common.errors import RunFailedError
from lipt.trainer.cli.demo.cluster import MODEL
from lipt.trainer.cli.demo.known_errors import FoundErrors, count_found
from lipt.trainer.cli.demo.runs_ahead import RunsAhead
from lipt.trainer.cli.display.waiting import Say
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.compare import compare
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.comparison.plan import Plan
from lipt.trainer.comparison.trial import read_trials
from lipt.trainer.main_training import Recipe
from lipt.trainer.report.diagnosis_page import render_diagnosis
from lipt.trainer.report.examining import examine
from lipt.trainer.report.gathering import gather
from lipt.trainer.report.page import render
from lipt.trainer.report.stories import count_classes
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import DatasetView, RunView
from lipt.trainer.writing.files import write_atomically
from lipt.trainer.writing.jsonable import to_jsonable

FRACTION = 0.1

PLAN = Plan(
    strategies=("auto", "facility_location"),
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
    """One strategy's subset: how many of each class are in it, and how many wrong labels."""

    strategy: str
    num_examples: int
    class_counts: tuple[int, ...]
    num_wrong: int
    digest: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class DemoResult:
    """What the demo ends with.

    found: what the diagnosis made of the wrong labels.
    run, subsets: of the first seed.
    outcomes: of main training, over all seeds of the whole pipeline.
    verdict: whether a strategy beat random, in a sentence.
    seconds: of the whole demo, the processes' start and end included.
    """

    dataset: DatasetView
    found: FoundErrors
    run: RunView
    subsets: tuple[SubsetResult, ...]
    outcomes: tuple[Outcome, ...]
    verdict: str
    files: tuple[Path, ...]
    report: Path
    diagnosis: Path
    seconds: float = 0.0


def conduct(
    train: Dataset,
    test: Dataset,
    is_wrong_N: NDArray[np.bool_],
    client: Client,
    finish: Callable[[RunView], RunView],
    directory: Path,
    say: Say,
) -> DemoResult:
    """Diagnose the data, take subsets of the first seed's run, compare those of all seeds.

    Args:
        train: the coordinator's data.
        test: what accuracy is measured on.
        is_wrong_N: which of the data's labels are wrong.
        client: connected to the coordinator.
        finish: waits until a run is ready, and gives it as it is then.
        directory: where results are written.
        say: prints a line.
    """
    record, weights, trials, page, diagnosis_page = (
        directory / name
        for name in (
            *("run.json", "theta_p.safetensors", "comparison.jsonl"),
            *("report.html", "diagnosis.html"),
        )
    )
    say(f"{is_wrong_N.sum()} of the {len(train)} labels of {train.source} are wrong on purpose")
    runs = RunsAhead(client, PLAN, finish)
    runs.start(PLAN.seeds[0])
    diagnosis = client.diagnose()
    write_atomically(diagnosis_page, render_diagnosis(examine(diagnosis, train)).encode())
    found = count_found(diagnosis, is_wrong_N)
    say(str(found))
    run = runs.ready(PLAN.seeds[0])
    write_atomically(record, f"{json.dumps(to_jsonable(run), indent=2)}\n".encode())
    subsets = tuple(
        _save(subset, train, is_wrong_N, directory) for subset in runs.subsets(PLAN.seeds[0])
    )
    for item in subsets:
        say(f"subset by {item.strategy}: {item.num_examples} examples, digest {item.digest[:12]}")
    trials.unlink(missing_ok=True)  # of an earlier demo; this one is not to go on with it
    # A net this small trains fastest on one thread, and to the same bits on every machine.
    torch.set_num_threads(1)
    compare(client, PLAN, train, test, out=trials, device="cpu", say=say, pretrain=runs.ready)
    client.save_weights(weights, run.run_id, "pretrained")
    stories = [(strategy, FRACTION) for strategy in PLAN.strategies]
    found_trials = read_trials(trials)
    report = gather(
        client, run, train, stories, found_trials, diagnosis=diagnosis, now=datetime.now(UTC)
    )
    write_atomically(page, render(report).encode())
    if report.info.dataset is None:
        raise RunFailedError("the coordinator does not say which data it has.")
    return DemoResult(
        dataset=report.info.dataset,
        found=found,
        run=run,
        subsets=subsets,
        outcomes=report.outcomes,
        verdict=report.verdict,
        files=(
            *(file for result in subsets for file in result.files),
            *(weights, record, trials, directory / "logs"),
        ),
        report=page,
        diagnosis=diagnosis_page,
    )


def _save(
    subset: Subset, train: Dataset, is_wrong_N: NDArray[np.bool_], directory: Path
) -> SubsetResult:
    return SubsetResult(
        strategy=subset.strategy,
        num_examples=len(subset),
        class_counts=count_classes(train, subset.indices),
        num_wrong=int(is_wrong_N[subset.indices].sum()),
        digest=subset.digest,
        files=tuple(
            subset.save(directory / f"subset-{subset.strategy}{suffix}")
            for suffix in (".npy", ".csv")
        ),
    )
