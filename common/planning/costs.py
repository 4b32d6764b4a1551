"""Costs as sums of parts, and their limits.

Each part grows with one setting, so a violation names the setting and its largest fitting value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lipt.common.sizes import format_bytes


class Unit(Enum):
    """What is counted, and how it is written."""

    BYTES = (format_bytes,)
    THREADS = ("{} threads".format,)
    IMAGES = ("{} images".format,)

    def __init__(self, written: Callable[[int], str]) -> None:
        self.written = written


@dataclass(frozen=True)
class Part:
    """What one setting's value costs.

    Attributes:
        knob: the setting, dotted; empty for a fixed cost.
        value: the count; `each` is the cost of one.
        lowest: the smallest value of the setting; None where it is no number.
        name: the setting's value where that is not `value`.
    """

    knob: str
    value: int
    each: int
    what: str
    lowest: int | None = 1
    name: str = ""

    @property
    def cost(self) -> int:
        """What it comes to."""
        return self.value * self.each


@dataclass(frozen=True)
class Cost:
    """What is taken in one place; `where` is a noun, as "memory of a worker"."""

    where: str
    unit: Unit
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """What all parts come to."""
        return sum(part.cost for part in self.parts)


@dataclass(frozen=True)
class Limit:
    """The most that may be taken; `remedy` is a clause in place of "raise NAME"."""

    name: str
    at_most: int
    remedy: str = ""


@dataclass(frozen=True)
class Violation:
    """A cost over its limit, and the setting with the largest part of it."""

    knob: str
    value: str
    cost: int
    limit: Limit
    sentence: str

    @property
    def times(self) -> float:
        """How many times the limit it is."""
        return self.cost / max(self.limit.at_most, 1)

    def __str__(self) -> str:
        return self.sentence


def violation(cost: Cost, limit: Limit) -> Violation | None:
    """What is wrong with a cost under a limit, if anything is."""
    if cost.total <= limit.at_most:
        return None
    blamable = [part for part in cost.parts if part.knob and part.cost] or cost.parts
    part = max(blamable, key=lambda part: part.cost)
    written = cost.unit.written
    value = part.name or str(part.value)
    blamed = f"{part.knob} = {value}: " if part.knob else ""
    most = f", {written(part.cost)} of it for {part.what}" if len(cost.parts) > 1 else ""
    return Violation(
        knob=part.knob,
        value=value,
        cost=cost.total,
        limit=limit,
        sentence=(
            f"{blamed}{cost.where} comes to {written(cost.total)}{most}, over {limit.name} = "
            f"{written(limit.at_most)}. {_remedy(cost, part, limit)}"
        ),
    )


def _remedy(cost: Cost, part: Part, limit: Limit) -> str:
    raising = limit.remedy or f"raise {limit.name}"
    left = limit.at_most - (cost.total - part.cost)
    fitting = left // part.each if part.each else 0
    if part.knob and part.lowest is not None and fitting >= part.lowest:
        return f"Lower {part.knob} to at most {fitting}, or {raising}."
    knobs = dict.fromkeys(item.knob for item in (part, *cost.parts) if item.knob and item.cost)
    changes = [f"a smaller {knob}" if knob == "model" else f"a lower {knob}" for knob in knobs]
    return f"Choose {', '.join(changes)}, or {raising}." if changes else f"{raising.capitalize()}."
