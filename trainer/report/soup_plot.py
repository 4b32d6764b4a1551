"""Plot of the soup: every learner's accuracy, and the soup's after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lipt.trainer.report.plot import Tick, nice_ticks
from lipt.trainer.views import LearnerView
from lipt.trainer.writing.formatting import format_percent

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 40
_BAR_SHARE = 0.6
# More labels than this would run into each other.
_MOST_LABELS = 24


@dataclass(frozen=True)
class Bar:
    """One learner, in the place where the soup tried it."""

    x: float
    y: float
    width: float
    height: float
    kept: bool
    title: str


@dataclass(frozen=True)
class SoupPlot:
    """Bars of the learners in the soup's order, and the soup as a line of steps over them."""

    width: int
    height: int
    bars: tuple[Bar, ...]
    path: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def in_soup_order(learners: Sequence[LearnerView]) -> list[LearnerView]:
    """As the soup tried them; those that it never saw come last."""
    return sorted(
        learners,
        key=lambda learner: (
            learner.ingredient is None,
            learner.ingredient.position if learner.ingredient else learner.index,
        ),
    )


def soup_by_learner(learners: Sequence[LearnerView]) -> SoupPlot | None:
    """The plot; None where no learner was offered to a soup."""
    offered = [
        (learner, learner.ingredient)
        for learner in in_soup_order(learners)
        if learner.ingredient is not None
    ]
    if not offered:
        return None
    highest = max(max(part.accuracy, part.soup_accuracy) for _, part in offered)
    y_ticks = nice_ticks(0.0, highest)
    slot = (WIDTH - _LEFT - _RIGHT) / len(offered)

    def y(accuracy: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * accuracy / y_ticks[-1]

    bars, path = [], []
    for place, (learner, part) in enumerate(offered):
        start, top = _LEFT + place * slot, y(part.accuracy)
        fate = f"kept, alpha {part.alpha:g}" if part.kept else "discarded"
        title = f"learner {learner.index}: {format_percent(part.accuracy)}, {fate}"
        bars.append(
            Bar(
                x=start + slot * (1 - _BAR_SHARE) / 2,
                y=top,
                width=slot * _BAR_SHARE,
                height=HEIGHT - _BOTTOM - top,
                kept=part.kept,
                title=f"{title}; soup {format_percent(part.soup_accuracy)}",
            )
        )
        height = y(part.soup_accuracy)
        path += [f"{start:.1f},{height:.1f}", f"{start + slot:.1f},{height:.1f}"]
    every = -(-len(offered) // _MOST_LABELS)
    return SoupPlot(
        width=WIDTH,
        height=HEIGHT,
        bars=tuple(bars),
        path=" ".join(path),
        x_ticks=tuple(
            Tick(_LEFT + (place + 0.5) * slot, str(learner.index))
            for place, (learner, _) in enumerate(offered)
            if place % every == 0
        ),
        y_ticks=tuple(Tick(y(value), f"{100 * value:.4g}%") for value in y_ticks),
    )
