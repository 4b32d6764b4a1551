"""Strategies as a table on a terminal, and as lines of text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from lipt.trainer.cli.display.screen import Screen, stacked, styled
from lipt.trainer.views import StrategyView

_LEGEND = (
    "signals: a forward pass over the data. cost: N examples, C classes, d features, k budget. "
    "per class: equal shares of every class by default. Options are given as "
    "--option NAME=VALUE, presets as --preset NAME."
)
_WITHOUT_LABELS = "works with --labels none"
_CLASSES_ALONE = "needs classes: not for labels or numbers"


def print_strategies(strategies: Sequence[StrategyView], console: Screen | None = None) -> None:
    """Print the table and its legend."""
    screen = console or Screen()
    screen.print(render(strategies))
    screen.print(styled(_LEGEND, "dim"))


def render(strategies: Sequence[StrategyView]) -> Table:
    """The table as rich draws it."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    table.add_column("strategy", no_wrap=True)
    table.add_column("what it keeps", ratio=1)
    table.add_column("needs", max_width=16)
    table.add_column("weights")
    table.add_column("per class")
    table.add_column("cost", max_width=16)
    for strategy in strategies:
        table.add_row(
            styled(strategy.name, "bold"),
            _description(strategy),
            styled(", ".join(strategy.needs)),
            "yes" if strategy.returns_weights else "no",
            "yes" if strategy.balanced_by_default else "no",
            styled(strategy.cost),
        )
    return table


def _description(strategy: StrategyView) -> RenderableType:
    lines = [styled(strategy.summary)]
    if strategy.paper:
        lines.append(styled(strategy.paper, "dim"))
    if strategy.works_without_labels:
        lines.append(styled(_WITHOUT_LABELS, "dim"))
    if strategy.needs_classes:
        lines.append(styled(_CLASSES_ALONE, "dim"))
    lines += [styled(text, "cyan") for text in _option_texts(strategy)]
    lines += [
        styled(f"preset {preset.name}: {preset.summary}", "cyan") for preset in strategy.presets
    ]
    return stacked(lines)


def strategy_lines(strategy: StrategyView) -> list[str]:
    """A strategy as a few lines of text."""
    lines = [f"{strategy.name}: {strategy.summary}", f"    {', '.join(_facts(strategy))}"]
    if strategy.paper:
        lines.append(f"    {strategy.paper}")
    lines += [f"    --option {text}" for text in _option_texts(strategy)]
    return lines + [f"    --preset {preset.name}: {preset.summary}" for preset in strategy.presets]


def _facts(strategy: StrategyView) -> list[str]:
    return [
        *([f"needs {' and '.join(strategy.needs)}"] if strategy.needs else []),
        "with weights" if strategy.returns_weights else "without weights",
        "balanced per class" if strategy.balanced_by_default else "not balanced per class",
        *([f"cost {strategy.cost}"] if strategy.cost else []),
        *([f"proxy {strategy.default_proxy}"] if _has_another_proxy(strategy) else []),
        *([_WITHOUT_LABELS] if strategy.works_without_labels else []),
        *([_CLASSES_ALONE] if strategy.needs_classes else []),
    ]


def _has_another_proxy(strategy: StrategyView) -> bool:
    return strategy.default_proxy not in ("", "soup")


def _option_texts(strategy: StrategyView) -> list[str]:
    texts = []
    for option in strategy.options:
        text = f"{option.name}={option.default_value}"
        if option.allowed_values:
            choice = "one of " if len(option.allowed_values) > 1 else ""
            text += f" ({choice}{', '.join(option.allowed_values)})"
        texts.append(f"{text}: {option.help}" if option.help else text)
    return texts
