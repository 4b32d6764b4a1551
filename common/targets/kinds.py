"""Target kinds: the forms of an example's target, and their scores' names."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from types import MappingProxyType


class TargetKind(StrEnum):
    """The prediction for an example."""

    # One of several classes.
    CLASS = "class"
    # Any of several labels, none included.
    CLASSES = "classes"
    # One number or several.
    NUMBER = "number"

    @property
    def words(self) -> str:
        """The kind's name in messages."""
        return _WORDS[self]

    @property
    def score_name(self) -> str:
        """The score's name in tables."""
        return _SCORE_NAMES[self]


ALL_KINDS = frozenset(TargetKind)

_WORDS = MappingProxyType(
    {
        TargetKind.CLASS: "single-label",
        TargetKind.CLASSES: "multi-label",
        TargetKind.NUMBER: "regression",
    }
)
_SCORE_NAMES = MappingProxyType(
    {
        TargetKind.CLASS: "accuracy",
        TargetKind.CLASSES: "micro F1",
        TargetKind.NUMBER: "R²",
    }
)


def kinds_in_words(kinds: Collection[TargetKind]) -> str:
    """Kinds in a message: `multi-label or regression`."""
    *first, last = (kind.words for kind in TargetKind if kind in kinds)
    return f"{', '.join(first)} or {last}" if first else last
