"""Plug-ins of `lipt`: entry points of other packages, which this one need not know.

One of the group `lipt.commands` names a `typer.Typer`; it is imported when its command is called,
or shown in the help. This package's own coordinator adds `lipt state` that way. One of the group
`lipt.strategies` names a function that gives a `ListStrategiesResponse`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer.main

GROUP = "lipt.commands"
STRATEGIES_GROUP = "lipt.strategies"


def plugin_names() -> list[str]:
    """The commands that are installed, by name."""
    return sorted(entry_points(group=GROUP).names)


def plugin(name: str) -> Any | None:
    """The command of that name as typer's groups hold it, or None where there is none."""
    for entry in entry_points(group=GROUP, name=name):
        command = typer.main.get_command(entry.load())
        command.name = name
        return command
    return None


def installed_strategies() -> list[Any]:
    """The strategies that are installed here, as messages."""
    answers = (entry.load()() for entry in entry_points(group=STRATEGIES_GROUP))
    return [strategy for answer in answers for strategy in answer.strategies]
