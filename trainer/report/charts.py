"""Charts of a run: losses of its learners in training, and the growth of its soup.

They are drawn at the width of a telephone, in real pixels, so that their labels stay readable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lipt.trainer.views import IngredientView, LearnerView

# Those of the templates.
LEFT, RIGHT, TOP, BOTTOM = 52.0, 322.0, 14.0, 194.0
_MOST_LINES, _NAME_HEIGHT = 12, 13.0
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Tick(NamedTuple):
    y: float
    text: str


class Line(NamedTuple):
    """A learner's losses: the polyline's points, its end, and the height of its name."""

    name: str
    points: str
    x: float
    y: float
    name_y: float


class Dot(NamedTuple):
    """A learner as an ingredient, at its own accuracy."""

    name: str
    x: float
    y: float
    kept: bool


@dataclass(frozen=True)
class LossChart:
    """Lines of the first learners; `summary` is the chart as text."""

    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    last_step: int
    num_left_out: int
    summary: str


@dataclass(frozen=True)
class SoupChart:
    """The soup's accuracy after each learner as `points`; `summary` is the chart as text."""

    dots: tuple[Dot, ...]
    points: str
    ticks: tuple[Tick, ...]
    summary: str


def loss_chart(learners: Sequence[LearnerView]) -> LossChart | None:
    """Draw the losses of learners in training; None if none is known."""
    known = [learner for learner in learners if learner.losses]
    shown = sorted(known, key=lambda learner: learner.index)[:_MOST_LINES]
    if not shown:
        return None
    last = max(1, *(step for learner in shown for step in learner.loss_steps))
    quarter = rounded_up(max(1e-3, *(loss for learner in shown for loss in learner.losses)) / 4)

    def x(step: int) -> float:
        return round(LEFT + step / last * (RIGHT - LEFT), 1)

    def y(loss: float) -> float:
        return round(BOTTOM - loss / (4 * quarter) * (BOTTOM - TOP), 1)

    name_ys = apart([y(learner.losses[-1]) for learner in shown])
    lines = tuple(
        Line(
            str(learner.index),
            " ".join(
                f"{x(step)},{y(loss)}"
                for step, loss in zip(learner.loss_steps, learner.losses, strict=True)
            ),
            x(learner.loss_steps[-1]),
            y(learner.losses[-1]),
            name_y,
        )
        for learner, name_y in zip(shown, name_ys, strict=True)
    )
    ends = (
        f"learner {learner.index} from {learner.losses[0]:.3f} to {learner.losses[-1]:.3f}"
        for learner in shown
    )
    return LossChart(
        lines,
        tuple(Tick(y(times * quarter), f"{times * quarter:.2g}") for times in range(5)),
        last,
        len(known) - len(shown),
        f"Losses in training: {'; '.join(ends)}.",
    )


def rounded_up(value: float) -> float:
    """Round up to a number of one digit."""
    unit: float = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / unit - 1e-9) * unit


def apart(heights: Sequence[float]) -> list[float]:
    """Move names that are closer than a line up, from the lowest one on."""
    moved, below = list(heights), BOTTOM + _NAME_HEIGHT
    for place in sorted(range(len(heights)), key=lambda place: -heights[place]):
        below = moved[place] = min(heights[place], below - _NAME_HEIGHT)
    return moved


def soup_chart(learners: Sequence[LearnerView]) -> SoupChart | None:
    """Draw the soup's accuracy as it grows, and each learner's own; None without a soup."""
    offered = [
        (learner, learner.ingredient) for learner in learners if learner.ingredient is not None
    ]
    offered.sort(key=lambda pair: pair[1].position)
    if not offered:
        return None
    parts: list[IngredientView] = [part for _, part in offered]
    values = [value for part in parts for value in (part.accuracy, part.soup_accuracy)]
    low, high = max(0.0, min(values) - 0.02), min(1.0, max(values) + 0.02)
    slot = (RIGHT - LEFT) / len(parts)

    def y(accuracy: float) -> float:
        return round(BOTTOM - (accuracy - low) / (high - low) * (BOTTOM - TOP), 1)

    steps = (
        f"{round(LEFT + (place + end) * slot, 1)},{y(part.soup_accuracy)}"
        for place, part in enumerate(parts)
        for end in (0, 1)
    )
    dots = tuple(
        Dot(str(learner.index), round(LEFT + (place + 0.5) * slot, 1), y(part.accuracy), part.kept)
        for place, (learner, part) in enumerate(offered)
    )
    kept = sum(part.kept for part in parts)
    return SoupChart(
        dots,
        " ".join(steps),
        tuple(
            Tick(y(value), f"{value:.1%}")
            for value in (low + share * (high - low) for share in _QUARTERS)
        ),
        f"The soup's accuracy: {parts[0].soup_accuracy:.1%} after the first of {len(parts)} "
        f"learners, {parts[-1].soup_accuracy:.1%} after the last; {kept} kept. The table of "
        "learners has every step.",
    )
