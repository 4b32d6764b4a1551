"""The demo's experiment: a diagnosis, subsets of a run, main training on each, and two pages.

Shapes: N examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.data import Dataset
from lipt.common.errors import RunFailedError
from lipt.trainer.cli.demo.processes import MODEL
from lipt.trainer.cli.display.output import Say
from lipt.trainer.cli.display.progress import run_lines
from lipt.trainer.client.client import Client
from lipt.trainer.comparison import table
from lipt.trainer.comparison.compare import compare
from lipt.trainer.comparison.outcomes import Outcome
from lipt.trainer.comparison.trial import Plan, read_trials
from lipt.trainer.main_training import Recipe
from lipt.trainer.report.examination import examine, render_diagnosis
from lipt.trainer.report.page import render
from lipt.trainer.report.report import count_classes, gather
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import DatasetView, RunView
from lipt.trainer.writing.files import write_atomically
from lipt.trainer.writing.formatting import format_percent, table_lines, to_jsonable

if TYPE_CHECKING:
    from lipt.trainer.diagnosis.diagnosis import Diagnosis

NUM_WORST = 20


@dataclass(frozen=True)
class FoundErrors:
    """What a diagnosis made of labels that are known to be wrong."""

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


def count_found(
    diagnosis: Diagnosis, is_wrong_N: NDArray[np.bool_], *, num_worst: int = NUM_WORST
) -> FoundErrors:
    """How many of the wrong labels are among the worst and among all suspects."""
    suspects = [issue.id for issue in diagnosis.label_issues()]  # the worst first
    worst = suspects[:num_worst]
    return FoundErrors(
        num_examples=len(is_wrong_N),
        num_wrong=int(is_wrong_N.sum()),
        num_worst=len(worst),
        wrong_of_worst=int(is_wrong_N[worst].sum()),
        num_suspects=len(suspects),
        wrong_of_suspects=int(is_wrong_N[suspects].sum()),
    )


class RunsAhead:
    """A run and its subsets for each seed of a plan of one fraction, each done once."""

    def __init__(self, client: Client, plan: Plan, finish: Callable[[RunView], RunView]) -> None:
        self._client, self._plan, self._finish = client, plan, finish
        self._started: dict[int, RunView] = {}
        self._ready: dict[int, tuple[RunView, list[Subset]]] = {}

    def start(self, seed: int) -> RunView:
        """The seed's run as it was when it started."""
        if seed not in self._started:
            overrides = self._plan.overrides(seed)
            self._started[seed] = self._client.start_run(overrides, name=f"demo-{seed}")
        return self._started[seed]

    def ready(self, seed: int) -> RunView:
        """The seed's run, ready; the next seed's has started."""
        return self._of(seed)[0]

    def subsets(self, seed: int) -> list[Subset]:
        """The subsets of the seed's run, in the plan's order."""
        return self._of(seed)[1]

    def _of(self, seed: int) -> tuple[RunView, list[Subset]]:
        if seed not in self._ready:
            run = self._finish(self.start(seed))
            # A coordinator computes one thing after another. Asked for now, the subsets need
            # not wait for the next run; it keeps them for whoever asks again.
            (fraction,) = self._plan.fractions
            subsets = [
                self._client.subset(run.run_id, strategy, fraction=fraction)
                for strategy in self._plan.all_strategies()
            ]
            self._ready[seed] = run, subsets
            following = self._plan.seeds[self._plan.seeds.index(seed) + 1 :]
            if following:
                self.start(following[0])
        return self._ready[seed]


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
    """What the demo ends with."""

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


def report_lines(result: DemoResult) -> list[str]:
    """The diagnosis, the run, accuracies beside each other, subsets, files, and the verdict."""
    dataset = result.dataset
    classes = len(dataset.class_names)
    lines = [
        "",
        f"{dataset.source}: {dataset.num_examples} examples, {dataset.inputs}, {classes} classes",
        str(result.found),
        *run_lines(result.run),
    ]
    if result.run.soup is not None:
        soup = result.run.soup
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
            spread(item.class_counts),
            str(item.num_wrong),
            item.digest[:12],
            str(item.files[0]),
        )
        for item in result.subsets
    ]
    header = ("strategy", "examples", "per class", "wrong labels", "digest", "file")
    lines += ["", *table_lines(header, rows), ""]
    lines += [f"wrote {file}" for file in result.files]
    lines += ["", *table.plain(result.outcomes)]
    lines += ["", *result.verdict.splitlines(), ""]
    lines += [f"diagnosis: {result.diagnosis}", f"report: {result.report}"]
    lines.append(f"done in {result.seconds:.1f} s")
    return lines


def spread(counts: Sequence[int]) -> str:
    """How evenly classes are kept: [17, 18, 18] is "17 to 18"."""
    if not counts:
        return "-"
    low, high = min(counts), max(counts)
    return f"{low} each" if low == high else f"{low} to {high}"
