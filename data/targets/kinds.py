"""Target kinds: the forms of an example's target, and their scores' names."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Self


class TargetKind(StrEnum):
    """The prediction for an example; with its name in messages and its score's in tables."""

    # One of several classes.
    CLASS = "class", "single-label", "accuracy"
    # Any of several labels, none included.
    CLASSES = "classes", "multi-label", "micro F1"
    # One number or several.
    NUMBER = "number", "regression", "R²"
    # The next token at each position of a text.
    TOKENS = "tokens", "next-token", "token accuracy"

    words: str
    score_name: str

    def __new__(cls, value: str, words: str = "", score_name: str = "") -> Self:
        kind = str.__new__(cls, value)
        kind._value_, kind.words, kind.score_name = value, words, score_name
        return kind


# A model gives one row of outputs for each example of these.
ALL_KINDS = frozenset(TargetKind) - {TargetKind.TOKENS}


def kinds_in_words(kinds: Collection[TargetKind]) -> str:
    """Kinds in a message: `multi-label or regression`."""
    *first, last = (kind.words for kind in TargetKind if kind in kinds)
    return f"{', '.join(first)} or {last}" if first else last


# A target of fewer values is never taken for a measurement.
_MOST_CLASSES = 100


def are_too_many(num_different: int, num_rows: int) -> bool:
    """Whether so many different labels are a measurement rather than classes."""
    return num_different > max(_MOST_CLASSES, num_rows // 2)
