"""The demo's last words: runs, subsets, files and the verdict as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lipt.trainer.cli.display.run_summary import run_lines
from lipt.trainer.comparison import table
from lipt.trainer.writing.formatting import format_percent, table_lines

if TYPE_CHECKING:  # which would import torch, before the demo has said a word
    from lipt.trainer.cli.demo.experiment import DemoResult


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
