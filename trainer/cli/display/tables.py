"""Strategies and diagnoses as tables on a terminal, and as lines of text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from lipt.common.targets.kinds import TargetKind
from lipt.trainer.cli.display.screen import Screen, stacked, styled
from lipt.trainer.diagnosis.diagnosis import Diagnosis
from lipt.trainer.diagnosis.findings import facts, fit_text, proxy_text
from lipt.trainer.views import StrategyView
from lipt.trainer.writing.formatting import table_lines

_LEGEND = (
    "signals: a forward pass over the data. cost: N examples, C classes, d features, k budget. "
    "per class: equal shares of every class by default. Options are given as "
    "--option NAME=VALUE, presets as --preset NAME."
)
_WORST = 10


def print_strategies(strategies: Sequence[StrategyView], console: Screen | None = None) -> None:
    """Print the table and its legend."""
    screen = console or Screen()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    table.add_column("strategy", no_wrap=True)
    table.add_column("what it keeps", ratio=1)
    table.add_column("needs", max_width=16)
    table.add_column("weights")
    table.add_column("per class")
    table.add_column("cost", max_width=16)
    for strategy in strategies:
        notes = [note for note in (strategy.paper, *_limits(strategy)) if note]
        options = [*_options(strategy), *_presets(strategy)]
        table.add_row(
            styled(strategy.name, "bold"),
            stacked(
                [
                    styled(strategy.summary),
                    *(styled(note, "dim") for note in notes),
                    *(styled(option, "cyan") for option in options),
                ]
            ),
            styled(", ".join(strategy.needs)),
            "yes" if strategy.returns_weights else "no",
            "yes" if strategy.balanced_by_default else "no",
            styled(strategy.cost),
        )
    screen.print(table)
    screen.print(styled(_LEGEND, "dim"))


def strategy_lines(strategy: StrategyView) -> list[str]:
    """A strategy as a few lines of text."""
    told = [
        f"needs {' and '.join(strategy.needs)}" if strategy.needs else "",
        "with weights" if strategy.returns_weights else "without weights",
        "balanced per class" if strategy.balanced_by_default else "not balanced per class",
        f"cost {strategy.cost}" if strategy.cost else "",
        "" if strategy.default_proxy in ("", "soup") else f"proxy {strategy.default_proxy}",
        *_limits(strategy),
    ]
    more = [
        ", ".join(filter(None, told)),
        strategy.paper,
        *(f"--option {text}" for text in _options(strategy)),
        *(f"--{text}" for text in _presets(strategy)),
    ]
    return [f"{strategy.name}: {strategy.summary}", *(f"    {line}" for line in more if line)]


def _limits(strategy: StrategyView) -> list[str]:
    found = ["works with --labels none"] if strategy.works_without_labels else []
    return found + (["needs classes: not for labels or numbers"] if strategy.needs_classes else [])


def _options(strategy: StrategyView) -> list[str]:
    texts = []
    for option in strategy.options:
        text = f"{option.name}={option.default_value}"
        if option.allowed_values:
            choice = "one of " if len(option.allowed_values) > 1 else ""
            text += f" ({choice}{', '.join(option.allowed_values)})"
        texts.append(f"{text}: {option.help}" if option.help else text)
    return texts


def _presets(strategy: StrategyView) -> list[str]:
    return [f"preset {preset.name}: {preset.summary}" for preset in strategy.presets]


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """What was found, and the labels that fit worst."""
    findings = diagnosis.findings
    data = diagnosis.manifest.get("data")
    source = f"{data.get('source')}: " if isinstance(data, dict) else ""
    seen = proxy_text(findings)
    groups = "classes" if findings.target_kind is TargetKind.CLASS else "groups"
    title = (
        f"{source}{findings.num_examples:,} examples, {len(findings.class_names)} {groups}"
        f"{f'; seen by {seen}' if seen else ''}"
    )
    first, *others = [(fact.name, fact.text) for fact in facts(findings)]
    lines = [title, *table_lines(first, others)]
    rows = [
        (
            str(issue.id),
            findings.name(issue.given),
            findings.name(issue.suggested),
            fit_text(issue.quality),
        )
        for issue in diagnosis.label_issues()[:_WORST]
    ]
    if rows:
        header = ("row", "labelled", "looks like", "fits")
        lines += ["", f"the {len(rows)} worst labels:", *table_lines(header, rows)]
    return lines
