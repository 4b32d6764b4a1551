"""Arguments of calls, checked by their names before anything is loaded, computed or sent."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from lipt.common.errors import BudgetError, ConfigError, InvalidRequestError
from lipt.common.text import encodable

ParamsT = ParamSpec("ParamsT")
ReturnT = TypeVar("ReturnT")


def checked(function: Callable[ParamsT, ReturnT]) -> Callable[ParamsT, ReturnT]:
    """Check the arguments of a call by their names before it runs; None is always accepted."""
    taken = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: ParamsT.args, **keywords: ParamsT.kwargs) -> ReturnT:
        try:
            given = taken.bind(*args, **keywords).arguments
        except TypeError:
            given = {}  # the call itself has a better error for missing arguments
        for name, value in given.items():
            if value is not None:
                require_argument(name, value)
        require_size(given.get("fraction"), given.get("budget"))
        return function(*args, **keywords)

    return call


def require_argument(name: str, value: object) -> None:
    kind = _KINDS.get(name)
    if kind is not None and not kind.fits(value):
        raise ConfigError(
            f"{name}={_shown(value)} is not {kind.words}. Example: {name}={kind.example}"
        )


def require_size(fraction: object, budget: object) -> None:
    """Refuse a size that no data can have; the data's length is compared later."""
    if fraction is not None and budget is not None:
        raise InvalidRequestError(
            f"fraction {fraction} and budget {budget} were given: give one of them, a "
            "fraction in (0, 1] of the data set or a number of examples."
        )
    if fraction is not None and not _is_share(fraction):
        raise BudgetError(
            f"fraction={_shown(fraction)} is not a number in (0, 1]. Give a share of the "
            "examples, such as 0.1, or their number: budget=100."
        )
    if budget is not None and not _is_whole(budget, 1):
        raise BudgetError(
            f"budget={_shown(budget)} is not a whole number from 1. Give a number of examples, "
            "such as budget=100, or a share: fraction=0.1."
        )


def _shown(value: object) -> str:
    """A value in a message: one short line, whatever it is."""
    return " ".join(reprlib.repr(value).split())[:80]


def _is_share(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 < float(value) <= 1


def _is_whole(value: object, minimum: int, maximum: float = math.inf) -> bool:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and minimum <= int(value) <= maximum  # type: ignore[call-overload]


class _Kind(NamedTuple):
    words: str
    example: str
    fits: Callable[[Any], bool]


def _of(words: str, example: str, *types: type) -> _Kind:
    return _Kind(words, example, lambda value: isinstance(value, types))


def _list_of(words: str, example: str, fits: Callable[[Any], bool], *, at_least: int = 0) -> _Kind:
    def all_fit(values: Any) -> bool:
        right = isinstance(values, list | tuple) and all(map(fits, values))
        return right and len(values) >= at_least

    return _Kind(f"a list of {words}", example, all_fit)


def _of_utf8(text: Any) -> bool:
    return isinstance(text, str) and encodable(text) == text


_TEXTS = (
    *("strategy", "preset", "proxy", "labels", "device", "target", "head", "address", "text"),
    *("name", "run_id", "token_id"),
)
# NumPy's truth values are no bool.
_FLAG = _Kind("True or False", "True", lambda value: type(value).__name__.startswith("bool"))
_NAMES = _list_of("names", '["NAME"]', lambda one: isinstance(one, str))
_COUNT = _Kind("a whole number from 1", "1", lambda value: _is_whole(value, 1))
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(_TEXTS, _Kind("a text in UTF-8", '"NAME"', _of_utf8)),
    **dict.fromkeys(("balanced", "soft_labels", "progress", "check", "normalized"), _FLAG),
    **dict.fromkeys(("options", "run"), _of("a dictionary", '{"NAME": VALUE}', Mapping)),
    **dict.fromkeys(("strategies", "baselines", "allow_modules"), _NAMES),
    **dict.fromkeys(("path", "out"), _of("a path", '"NAME"', str, os.PathLike)),
    **dict.fromkeys(("image_size", "seeds"), _COUNT),
    "fractions": _list_of("numbers in (0, 1]", "[0.1]", _is_share, at_least=1),
    "seed": _Kind(
        "a whole number in 0..2**63 - 1", "0", lambda value: _is_whole(value, 0, 2**63 - 1)
    ),
    "subset": _Kind("a subset", "lipt.select(data)", lambda value: hasattr(value, "indices")),
}
