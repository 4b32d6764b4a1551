"""Diagnosis on a terminal: what was found, with numbers, and the next command to type."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from lipt.common.targets.kinds import TargetKind
from lipt.trainer.cli.display.screen import Screen, styled
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.findings import Fact, facts, fit_text, proxy_text
from lipt.trainer.writing.formatting import table_lines

_WORST = 10


def print_diagnosis(diagnosis: Diagnosis, console: Screen | None = None) -> None:
    """Print what was found as a table."""
    screen = console or Screen()
    screen.print(title(diagnosis))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for fact in facts(diagnosis.findings):
        table.add_row(styled(fact.name, "bold"), styled(fact.text, _style(fact)))
    screen.print(table)
    for line in worst_lines(diagnosis):
        screen.print(line)


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """The same as plain lines."""
    rows = [(fact.name, fact.text) for fact in facts(diagnosis.findings)]
    return [title(diagnosis), *table_lines(rows[0], rows[1:]), *worst_lines(diagnosis)]


def title(diagnosis: Diagnosis) -> str:
    """What was looked at, and by what."""
    findings = diagnosis.findings
    data = diagnosis.manifest.get("data")
    source = f"{data.get('source')}: " if isinstance(data, dict) else ""
    seen = proxy_text(findings)
    groups = "classes" if findings.target_kind is TargetKind.CLASS else "groups"
    return (
        f"{source}{findings.num_examples:,} examples, {len(findings.class_names)} {groups}"
        f"{f'; seen by {seen}' if seen else ''}"
    )


def worst_lines(diagnosis: Diagnosis) -> list[str]:
    """The labels that fit worst, by their rows."""
    issues = diagnosis.label_issues()
    name = diagnosis.findings.name
    rows = [
        (str(issue.id), name(issue.given), name(issue.suggested), fit_text(issue.quality))
        for issue in issues[:_WORST]
    ]
    if not rows:
        return []
    header = ("row", "labelled", "looks like", "fits")
    return ["", f"the {len(rows)} worst labels:", *table_lines(header, rows)]


def next_lines(diagnosis: Diagnosis, *, pictures: bool, exported: bool) -> list[str]:
    """What to type next, the most useful first."""
    data = diagnosis.manifest.get("data")
    source = data.get("source", "DATA") if isinstance(data, dict) else "DATA"
    steps: list[tuple[str, str]] = []
    if not pictures:
        steps.append((f"lipt diagnose --data {source}", "the page with pictures"))
    if not exported:
        steps.append(("lipt diagnose --export issues.csv", "a row per example, for other tools"))
    fraction = f"{diagnosis.findings.learnability.suggested_fraction:.3g}"
    steps.append(
        (f"lipt subset get --fraction {fraction} --out subset.npy", "a subset, after a run")
    )
    return ["", "next:", *_indented(steps)]


def _indented(steps: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(command) for command, _ in steps)
    return [f"  {command.ljust(width)}   {why}" for command, why in steps]


def _style(fact: Fact) -> str:
    return "dim" if fact.clear else ""
