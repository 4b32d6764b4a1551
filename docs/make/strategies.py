"""Strategies: one table to compare them by, and a section for each with its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from docs.make.markdown import code, table
from lipt.core.selection.select import STRATEGIES
from lipt.core.selection.strategy import Balance, Strategy
from lipt.core.stages.resolve import works_without_labels
from lipt.data.targets.kinds import TargetKind

# The reference stands in the strategy's entry, the letters in the page's legend.
_LEFT_OUT = ("Shapes:", "Source:", "Args:", "Returns:", "Raises:")


def strategies() -> str:
    """The strategies as Markdown."""
    return "\n".join([_overview(STRATEGIES.values()), *map(section, STRATEGIES.values())])


def _overview(listed: Iterable[Strategy]) -> str:
    return table(
        ("strategy", "what it keeps", "needs", "without labels", "weights", "cost"),
        (
            (
                f"[{strategy.name}](#{strategy.name})",
                strategy.summary,
                " and ".join(strategy.needs_in_words),
                "yes" if works_without_labels(strategy) else "",
                "yes" if strategy.returns_weights else "",
                str(strategy.cost),
            )
            for strategy in listed
        ),
    )


def _needs_classes(strategy: Strategy) -> bool:
    return strategy.kinds_of({}) == {TargetKind.CLASS}


def section(strategy: Strategy) -> str:
    """Section of one strategy."""
    balance = {
        Balance.BY_DEFAULT: "equal shares of every class, unless asked otherwise",
        Balance.ON_REQUEST: "classes as they come, equal shares of every class if asked for",
        Balance.ALWAYS: "equal shares of every class, always",
        Balance.NEVER: "classes as they come",
    }
    facts = [
        f"needs {' and '.join(strategy.needs_in_words)}",
        f"cost {strategy.cost}",
        balance[strategy.balance],
        *(["works [without labels](#without-labels)"] if works_without_labels(strategy) else []),
        *(["needs [classes](data.md#labels-and-numbers)"] if _needs_classes(strategy) else []),
        *(["gives weights"] if strategy.returns_weights else []),
        *(["says when to select again"] if strategy.rechecks else []),
        *(
            [f"on the [proxy](method.md#proxies) `{strategy.proxy}`"]
            if strategy.proxy != "soup"
            else []
        ),
    ]
    parts = [f"### {strategy.name} {{ #{strategy.name} }}", _explanation(strategy)]
    parts += [f"*{'; '.join(facts)}.*"]
    if strategy.paper:
        parts.append(strategy.paper)
    if strategy.options:
        parts.append(_options(strategy))
    if strategy.presets:
        parts.append(
            table(
                ("preset", "what it is"),
                ((code(name), preset.summary) for name, preset in strategy.presets.items()),
            )
        )
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def _explanation(strategy: Strategy) -> str:
    """The docstring of its module, or of its function in a module of several."""
    module = inspect.getmodule(strategy.function)
    alone = sum(inspect.getmodule(other.function) is module for other in STRATEGIES.values()) == 1
    described = (module if alone else strategy.function).__doc__ or strategy.summary
    paragraphs = inspect.cleandoc(described).split("\n\n")
    kept = (paragraph for paragraph in paragraphs if not paragraph.startswith(_LEFT_OUT))
    return "\n\n".join(kept).replace("<", "&lt;").replace("*", "\\*")


def _options(strategy: Strategy) -> str:
    return table(
        ("option", "default", "allowed", "what it is"),
        (
            (
                code(option.name),
                code(option.default),
                ", ".join(option.allowed),
                option.help,
            )
            for option in strategy.options
        ),
    )
