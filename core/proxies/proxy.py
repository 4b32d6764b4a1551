"""Proxy: what signals are computed with, as users write it.

    soup                 theta_p, or the request's weights, with its own trained head
    ridge:F+F+...        a ridge head on these features, side by side
    auto                 what pays best of what is there

A feature is `soup` (what enters the head of theta_p or of the request's weights, and its last
feature map), `initial` (the same of theta*), `learners` (the same of every learner), `patches`
(whitened random patches of images), `columns` (the values of examples that are no images), `user`
(those of the request), `backbone` (those of the model that the operator has named).
The order does not matter: equal questions are one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from lipt.common.errors import ProxyError

_RIDGE = "ridge:"


class Kind(StrEnum):
    """Where features come from, cheapest first."""

    USER = "user"
    PATCHES = "patches"
    COLUMNS = "columns"
    SOUP = "soup"
    INITIAL = "initial"
    LEARNERS = "learners"
    BACKBONE = "backbone"


@dataclass(frozen=True)
class Proxy:
    """A proxy; `str` is the one text of it.

    features: of a ridge head, in the order of `Kind`; None for a choice among them, none
        for the model's own head.
    """

    features: tuple[Kind, ...] | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The proxy that a text names.

        Raises:
            ProxyError: it names none.
        """
        if text == "auto":
            return cls(None)
        if text == "soup":
            return cls(())
        names = text.removeprefix(_RIDGE).split("+")
        unknown = [name for name in names if name not in set(Kind)]
        if not text.startswith(_RIDGE) or unknown or len(set(names)) < len(names):
            raise ProxyError(
                f"there is no proxy {text!r}. Choose soup, auto, or ridge: followed by one or more "
                f"of {', '.join(Kind)}, each once and joined by +, such as ridge:learners+patches."
            )
        return cls(tuple(kind for kind in Kind if kind in names))

    def __str__(self) -> str:
        if self.features is None:
            return "auto"
        return _RIDGE + "+".join(self.features) if self.features else "soup"

    @property
    def is_own_head(self) -> bool:
        """Whether signals are those of a model with the head that it was trained with."""
        return self.features == ()

    @property
    def judges_before_learners(self) -> bool:
        """Whether theta* is all that its signals need of a run."""
        kinds = set(self.features or ())
        return Kind.INITIAL in kinds and not kinds & {Kind.SOUP, Kind.LEARNERS}

    def may_use(self, kind: Kind) -> bool:
        """Whether its signals can depend on such features."""
        return self.features is None or kind in self.features


SOUP = Proxy(())
