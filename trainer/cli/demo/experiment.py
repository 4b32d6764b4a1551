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
from lipt.trainer.cli.demo import MODEL
from lipt.trainer.cli.display.output import Say
from lipt.trainer.cli.display.progress import run_lines
from lipt.trainer.client.client import Client
from lipt.trainer.comparison import table
from lipt.trainer.comparison.compare import compare
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.comparison.trial import Plan, read_trials
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.main_training import Recipe
from lipt.trainer.report.examination import examine, render_diagnosis
from lipt.trainer.report.report import count_classes, gather, render
from lipt.trainer.views import DatasetView, RunView
from lipt.trainer.writing.files import write_atomically
from lipt.trainer.writing.formatting import format_percent, table_lines, to_jsonable

NUM_WORST = 20
FRACTION = 0.1

PLAN = Plan(
    strategies=("auto", "facility_location"),
    fractions=(FRACTION,),
    seeds=(0, 1, 2),
    model=MODEL,
    # 50 passes over 144 images, after which accuracy on them has converged. Digits are not to
    # be mirrored, and 4 pixels are half of one.
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
class FoundErrors:
    """How many of the labels that are wrong on purpose a diagnosis found."""

    num_examples: int
    num_wrong: int
    num_worst: int
    wrong_of_worst: int
    num_suspects: int
    wrong_of_suspects: int

    def __str__(self) -> str:
        return (
            f"{self.num_wrong} of {self.num_examples} labels are wrong on purpose. The diagnosis, "
            f"which is not told of them, suspects {self.num_suspects} labels: "
            f"{self.wrong_of_suspects} of these are wrong, and {self.wrong_of_worst} of the first "
            f"{self.num_worst}."
        )


def count_found(diagnosis: Diagnosis, is_wrong_N: NDArray[np.bool_]) -> FoundErrors:
    """How many of the wrong labels are among the worst suspects and among all of them."""
    suspects = [issue.id for issue in diagnosis.label_issues()]  # the worst first
    worst = suspects[:NUM_WORST]
    return FoundErrors(
        num_examples=len(is_wrong_N),
        num_wrong=int(is_wrong_N.sum()),
        num_worst=len(worst),
        wrong_of_worst=int(is_wrong_N[worst].sum()),
        num_suspects=len(suspects),
        wrong_of_suspects=int(is_wrong_N[suspects].sum()),
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
    """Results and files of the demo."""

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
    """Diagnose the data, take subsets of the first seed's run, compare those of all seeds."""
    say(f"{is_wrong_N.sum()} of the {len(train)} labels of {train.source} are wrong on purpose")
    first = PLAN.seeds[0]
    # All start now: the workers train the next learners while others are merged and compared.
    runs = {
        seed: client.start_run(PLAN.overrides(seed), name=f"demo-{seed}") for seed in PLAN.seeds
    }
    diagnosis = client.diagnose()
    diagnosis_page = directory / "diagnosis.html"
    write_atomically(diagnosis_page, render_diagnosis(examine(diagnosis, train)).encode())
    found = count_found(diagnosis, is_wrong_N)
    say(str(found))
    run = finish(runs[first])
    record = directory / "run.json"
    write_atomically(record, f"{json.dumps(to_jsonable(run), indent=2)}\n".encode())
    subsets = []
    for strategy in PLAN.all_strategies():
        subset = client.subset(run.run_id, strategy, fraction=FRACTION)
        say(f"subset by {strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
        named = directory / f"subset-{strategy}"
        subsets.append(
            SubsetResult(
                strategy=strategy,
                num_examples=len(subset),
                class_counts=count_classes(train, subset.indices),
                num_wrong=int(is_wrong_N[subset.indices].sum()),
                digest=subset.digest,
                files=tuple(subset.save(f"{named}{suffix}") for suffix in (".npy", ".csv")),
            )
        )
    trials = directory / "comparison.jsonl"
    trials.unlink(missing_ok=True)  # of an earlier demo; this one is not to go on with it
    # A net this small trains fastest on one thread, and to the same bits on every machine.
    torch.set_num_threads(1)

    def pretrain(seed: int) -> RunView:
        return run if seed == first else finish(runs[seed])

    compare(client, PLAN, train, test, pretrain=pretrain, out=trials, device="cpu", say=say)
    weights = directory / "theta_p.safetensors"
    client.save_weights(weights, run.run_id, "pretrained")
    stories = [(strategy, FRACTION) for strategy in PLAN.strategies]
    now = datetime.now(UTC)
    report = gather(client, run, train, stories, read_trials(trials), diagnosis=diagnosis, now=now)
    page = directory / "report.html"
    write_atomically(page, render(report).encode())
    if report.info.dataset is None:
        raise RunFailedError("the coordinator does not say which data it has.")
    files = [file for result in subsets for file in result.files]
    return DemoResult(
        dataset=report.info.dataset,
        found=found,
        run=run,
        subsets=tuple(subsets),
        outcomes=report.outcomes,
        verdict=table.verdict(report.outcomes),
        files=(*files, weights, record, trials, directory / "logs"),
        report=page,
        diagnosis=diagnosis_page,
    )


def report_lines(result: DemoResult) -> list[str]:
    """The diagnosis, the run, accuracies beside each other, subsets, files, and the verdict."""
    dataset, soup = result.dataset, result.run.soup
    classes = len(dataset.class_names)
    lines = [
        "",
        f"{dataset.source}: {dataset.num_examples} examples, {dataset.inputs}, {classes} classes",
        str(result.found),
        *run_lines(result.run),
    ]
    if soup is not None:
        accuracies = [
            ("theta*", format_percent(soup.initial_accuracy)),
            ("mean learner", format_percent(soup.mean_learner_accuracy)),
            ("best learner", format_percent(soup.best_learner_accuracy)),
            ("soup (theta_p)", format_percent(soup.soup_accuracy)),
        ]
        lines += ["", *table_lines(("weights", "validation accuracy"), accuracies)]
    rows = [
        (
            item.strategy,
            str(item.num_examples),
            f"{min(item.class_counts)} to {max(item.class_counts)}",
            str(item.num_wrong),
            item.digest[:12],
            str(item.files[0]),
        )
        for item in result.subsets
    ]
    header = ("strategy", "examples", "per class", "wrong labels", "digest", "file")
    return [
        *lines,
        "",
        *table_lines(header, rows),
        "",
        *(f"wrote {file}" for file in result.files),
        "",
        *table.plain(result.outcomes),
        "",
        *result.verdict.splitlines(),
        "",
        f"diagnosis: {result.diagnosis}",
        f"report: {result.report}",
        f"done in {result.seconds:.1f} s",
    ]
