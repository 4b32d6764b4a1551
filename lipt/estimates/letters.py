"""Letters: a strategy's declared cost, such as "N^2 (C + d)", as a number; pure functions.

Factors stand side by side, `^` raises to a power, `log` is of the factor behind it. Of a cost with
a part for one of an option's values, "N d; diverse: N^2 d", that part counts where it is asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

_TOKENS = re.compile(r"[A-Za-z]+|[0-9]+|[()^+/]")


def cost_in_numbers(cost: str, letters: Mapping[str, float], values: Mapping[str, object]) -> float:
    """What a cost comes to; a letter that nobody knows counts as 1.

    Args:
        cost: as a strategy declares it.
        letters: N examples, C classes, d features, k budget, and what else there is.
        values: of the strategy's options.
    """
    general, *special = cost.split(";")
    chosen = general
    for part in special:
        name, _, own = part.partition(":")
        if name.strip() in {str(value) for value in values.values()}:
            chosen = own
    # What stands behind a comma says what a letter is.
    tokens = list(_TOKENS.findall(chosen.partition(",")[0]))
    return _Reader(iter([*tokens, ""]), letters).sum()


class _Reader:
    """Reads sums of products of powers, one token ahead."""

    def __init__(self, tokens: Iterator[str], letters: Mapping[str, float]) -> None:
        self._tokens, self._letters = tokens, letters
        self._next = next(tokens)

    def sum(self) -> float:
        total = self._product()
        while self._next == "+":
            self._take()
            total += self._product()
        return total

    def _product(self) -> float:
        product = self._power()
        while self._next not in {"", "+", ")"}:
            if self._next == "/":
                self._take()
                product /= self._power()
            else:
                product *= self._power()
        return product

    def _power(self) -> float:
        base = self._factor()
        if self._next != "^":
            return base
        self._take()
        raised: float = base ** self._factor()
        return raised

    def _factor(self) -> float:
        word = self._take()
        if word == "(":
            value = self.sum()
            self._take()
            return value
        if word == "log":
            return math.log2(max(2.0, self._factor()))
        return float(word) if word.isdigit() else self._letters.get(word, 1.0)

    def _take(self) -> str:
        word, self._next = self._next, next(self._tokens, "")
        return word
