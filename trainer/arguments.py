"""Arguments of calls, checked by their names before anything is loaded, computed or sent."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from lipt.common.errors import BudgetError, ConfigError, InvalidRequestError

_LARGEST_SEED = 2**63 - 1

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
    """Refuse a value that no argument of this name can have."""
    if name in _CHECKS:
        _CHECKS[name](name, value)


def require_size(fraction: object, budget: object) -> None:
    """Refuse a size that no data can have; the data's length is compared later."""
    if fraction is not None and budget is not None:
        raise InvalidRequestError(
            f"fraction {fraction} and budget {budget} were given: give one of them, a "
            "fraction in (0, 1] of the data set or a number of examples."
        )
    if fraction is not None:
        _require_fraction(fraction)
    if budget is not None:
        if not _is_whole(budget):
            raise BudgetError(
                f"budget={_shown(budget)} is not a whole number. Give a number of examples, such "
                "as budget=100, or a share: fraction=0.1."
            )
        if int(budget) < 1:  # type: ignore[call-overload]
            raise BudgetError(f"budget={budget} keeps nothing. Give a number of examples from 1.")


def _require_fraction(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BudgetError(
            f"fraction={_shown(value)} is a {type(value).__name__}, not a number. Give one in "
            "(0, 1], such as 0.1."
        )
    if not 0 < float(value) <= 1:
        raise BudgetError(
            f"fraction {value} is outside (0, 1]. Choose a share of the examples, such as 0.1, "
            "or give their number: budget=100."
        )


def _require_fractions(name: str, values: object) -> None:
    if not isinstance(values, list | tuple) or not values:
        raise _other_type(name, values, "a list of numbers", "[0.1]")
    for value in values:
        _require_fraction(value)


def _require_seed(name: str, value: object) -> None:
    _whole(0)(name, value)
    if int(value) > _LARGEST_SEED:  # type: ignore[call-overload]
        raise ConfigError(
            f"{name}={value} is above {_LARGEST_SEED}. Give a smaller one, such as 0."
        )


def _whole(minimum: int) -> Callable[[str, object], None]:
    def require(name: str, value: object) -> None:
        if not _is_whole(value) or int(value) < minimum:  # type: ignore[call-overload]
            raise ConfigError(
                f"{name}={_shown(value)} is not a whole number from {minimum}. Give one, such as "
                f"{name}={max(minimum, 1)}."
            )

    return require


def _of(words: str, example: str, *types: type) -> Callable[[str, object], None]:
    def require(name: str, value: object) -> None:
        if not isinstance(value, types):
            raise _other_type(name, value, words, example)

    return require


def _require_names(name: str, values: object) -> None:
    if not isinstance(values, list | tuple) or not all(isinstance(one, str) for one in values):
        raise _other_type(name, values, "a list of names", '["NAME"]')


def _require_subset(name: str, value: object) -> None:
    if not hasattr(value, "indices"):
        raise _other_type(name, value, "a subset", "lipt.select(data)")


def _require_flag(name: str, value: object) -> None:
    # NumPy's truth values are no bool.
    if not type(value).__name__.startswith("bool"):
        raise _other_type(name, value, "True or False", "True")


def _other_type(name: str, value: object, words: str, example: str) -> ConfigError:
    kind = type(value).__name__
    return ConfigError(
        f"{name}={_shown(value)} is of the type {kind}, not {words}. Give such as {name}={example}."
    )


def _shown(value: object) -> str:
    """A value in a message: one short line, whatever it is."""
    return " ".join(reprlib.repr(value).split())[:80]


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


_NAMES = ("strategy", "preset", "proxy", "labels", "device", "target", "head", "address", "text")
_require_dictionary = _of("a dictionary", '{"NAME": VALUE}', Mapping)
_CHECKS: Mapping[str, Callable[[str, object], None]] = {
    **dict.fromkeys(_NAMES, _of("a text", '"NAME"', str)),
    **dict.fromkeys(("balanced", "soft_labels", "progress", "check", "normalized"), _require_flag),
    **dict.fromkeys(("options", "run"), _require_dictionary),
    **dict.fromkeys(("strategies", "baselines", "allow_modules"), _require_names),
    **dict.fromkeys(("path", "out"), _of("a path", '"NAME"', str, os.PathLike)),
    **dict.fromkeys(("image_size", "seeds"), _whole(1)),
    "fractions": _require_fractions,
    "seed": _require_seed,
    "subset": _require_subset,
}
