"""The demo's experiment: a diagnosis, subsets of a run, main training on each, and two pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.data import Dataset
from lipt.trainer.cli.display.output import PrintLine
from lipt.trainer.cli.display.runs import state_line
from lipt.trainer.client.client import Client
from lipt.trainer.comparison import outcomes
from lipt.trainer.comparison.compare import compare
from lipt.trainer.comparison.trial import FIXED, Plan, read_trials
from lipt.trainer.files import write_atomically
from lipt.trainer.formatting import table_lines, to_jsonable
from lipt.trainer.main_training import Recipe
from lipt.trainer.report.report import count_classes, render, render_diagnosis
from lipt.trainer.views import RunView

FRACTION = 0.1
# Columns of the comparison's table that the demo prints; the report has all of them.
_SHOWN = ("fraction", "strategy", "accuracy", "to random (95% interval)", "steps", "total time")

PLAN = Plan(
    strategies=("auto", "facility_location"),
    fractions=(FRACTION,),
    seeds=(0, 1, 2),
    model="resnet8",
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


def run_experiment(
    train: Dataset,
    test: Dataset,
    is_wrong_N: NDArray[np.bool_],
    client: Client,
    finish: Callable[[RunView], RunView],
    directory: Path,
    print_line: PrintLine,
) -> list[str]:
    """Diagnose the data, compare subsets of three runs, write two pages; returns what to print."""
    print_line(
        f"{is_wrong_N.sum()} of the {len(train)} labels of {train.source} are wrong on purpose"
    )
    first = PLAN.seeds[0]
    # All start now: the workers train the next learners while others are merged and compared.
    runs = {
        seed: client.start_run(PLAN.overrides(seed), name=f"demo-{seed}") for seed in PLAN.seeds
    }
    diagnosis = client.diagnose()
    diagnosis_page, page = directory / "diagnosis.html", directory / "report.html"
    write_atomically(diagnosis_page, render_diagnosis(diagnosis, train).encode())
    suspects = [issue.id for issue in diagnosis.label_issues()]
    found = suspects_text(suspects, is_wrong_N)
    print_line(found)
    run = finish(runs[first])
    record = directory / "run.json"
    write_atomically(record, f"{json.dumps(to_jsonable(run), indent=2)}\n".encode())
    rows: list[tuple[str, ...]] = []
    for strategy in (*FIXED, *PLAN.strategies):
        subset = client.subset(run.run_id, strategy, fraction=FRACTION)
        print_line(f"subset by {strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
        subset.save(directory / f"subset-{strategy}.npy")
        counts = count_classes(train, subset.indices)
        per_class = f"{min(counts)} to {max(counts)}"
        num_wrong = str(is_wrong_N[subset.indices].sum())
        rows.append((strategy, str(len(subset)), per_class, num_wrong))
    trials = directory / "comparison.jsonl"
    trials.unlink(missing_ok=True)  # from an earlier demo
    # A net this small trains fastest on one thread, and to the same bits on every machine.
    torch.set_num_threads(1)

    def pretrain(seed: int) -> RunView:
        return run if seed == first else finish(runs[seed])

    done = compare(
        client.strategies(),
        PLAN,
        train,
        test,
        pretrain=pretrain,
        choose=lambda run, strategy, **asked: client.subset(run.run_id, strategy, **asked),
        out=trials,
        device="cpu",
        print_line=print_line,
    )
    weights = directory / "theta_p.safetensors"
    client.save_weights(weights, run.run_id, "pretrained")
    stories = [(strategy, FRACTION) for strategy in PLAN.strategies]
    now = datetime.now(UTC)
    report = render(client, run, train, stories, read_trials(trials), diagnosis=diagnosis, now=now)
    write_atomically(page, report.encode())
    compared = outcomes.outcomes(done)
    header = ("strategy", "examples", "per class", "wrong labels")
    return [
        f"{train.source}: {len(train)} examples, {train.inputs}, {len(train.class_names)} classes",
        found,
        state_line(run),
        "",
        *table_lines(header, rows),
        "",
        *table_lines(
            _SHOWN, [[row[name] for name in _SHOWN] for row in map(outcomes.cells, compared)]
        ),
        "",
        *outcomes.verdict(compared).splitlines(),
        "",
        f"diagnosis: {diagnosis_page}",
        f"report: {page}",
        f"subsets, weights, the run's record and every training: {directory}",
    ]


def suspects_text(suspects: list[int], is_wrong_N: NDArray[np.bool_]) -> str:
    """The number of labels that are wrong on purpose, and of those among the suspects."""
    worst = suspects[:20]
    return (
        f"{is_wrong_N.sum()} of {len(is_wrong_N)} labels are wrong on purpose. "
        f"The diagnosis does not know which, and suspects {len(suspects)} labels: "
        f"{is_wrong_N[suspects].sum()} of these are wrong, and {is_wrong_N[worst].sum()} of the "
        f"first {len(worst)}."
    )
