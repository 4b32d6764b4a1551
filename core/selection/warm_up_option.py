"""Warm-up option: ordinary pre-training in place of LiPT's, as users write it.

    lipt          theta_p; what is there where nothing is said
    epochs:N      the run's theta*, warmed up for N epochs; N may be a fraction, or 0
    epochs:NxR    R models from R random beginnings, each for N epochs

Equal questions are one text: `epochs:15.0x1` is `epochs:15`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BeforeValidator, TypeAdapter

from lipt.core.selection.options import Option

NAME = "pretraining"
LIPT = "lipt"
_EPOCHS = re.compile(r"epochs:([0-9]{1,4}(?:\.[0-9]{1,4})?)(?:x([1-9][0-9]{0,3}))?", re.ASCII)


@dataclass(frozen=True)
class WarmUp:
    """An ordinary warm-up; `str` is the one text of it.

    epochs: that each model is trained for.
    models: how many there are.
    """

    epochs: float
    models: int = 1

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The warm-up that a text names; None where that is LiPT's own pre-training.

        Raises:
            ValueError: it names neither.
        """
        if text == LIPT:
            return None
        found = _EPOCHS.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no pre-training")
        return cls(float(found[1]), int(found[2] or 1))

    @classmethod
    def among(cls, options: Mapping[str, str]) -> Self | None:
        """The warm-up among a strategy's options, which were parsed before."""
        return cls.parse(options.get(NAME, LIPT))

    def __str__(self) -> str:
        epochs = repr(self.epochs).removesuffix(".0")
        return f"epochs:{epochs}" + (f"x{self.models}" if self.models > 1 else "")

    @property
    def counted_epochs(self) -> float:
        """What it costs, in epochs; a model that is not trained has to look at the data, too."""
        return max(self.epochs, 1.0) * self.models


def _text(value: object) -> str:
    return str(WarmUp.parse(str(value)) or LIPT)


# For strategies that look at a model.
OPTION = Option(
    NAME,
    "what the model that is looked at was trained by: LiPT, or N ordinary epochs (R models)",
    LIPT,
    (LIPT, "epochs:N", "epochs:NxR"),
    TypeAdapter(Annotated[str, BeforeValidator(_text)]),
)
