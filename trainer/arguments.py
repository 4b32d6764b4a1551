"""Arguments of calls, checked before anything is loaded, computed or sent.

Texts, flags and choices are known by their annotations, all others by their names.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import numbers
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from lipt.common.errors import BudgetError, ConfigError, InvalidRequestError
from lipt.common.text import encodable

ParamsT = ParamSpec("ParamsT")
ReturnT = TypeVar("ReturnT")

# Policies for examples that do not divide evenly among the ranks.
UNEVEN = ("keep", "drop", "repeat")


def checked(function: Callable[ParamsT, ReturnT]) -> Callable[ParamsT, ReturnT]:
    """Check the arguments of a call before it runs; None is accepted, but for a choice.

    Keywords of a `**arguments: Unpack[...]` stand in the signature like all others.
    """
    taken = _with_unpacked(function)
    parts = taken.parameters.items()
    kinds = {name: _kind_of(name, part.annotation) for name, part in parts}
    keywords_of = [name for name, part in parts if part.kind is part.VAR_KEYWORD]

    @functools.wraps(function)
    def call(*args: ParamsT.args, **keywords: ParamsT.kwargs) -> ReturnT:
        try:
            given = dict(taken.bind(*args, **keywords).arguments)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}(): {error}") from None
        for name in keywords_of:
            given |= given.pop(name, {})
        for name, value in given.items():
            kind = kinds.get(name) or _KINDS.get(name)
            if kind is not None and (value is not None or kind.is_choice):
                _require(kind, name, value)
        require_size(given.get("fraction"), given.get("budget"))
        return function(*args, **keywords)

    call.__signature__ = taken  # type: ignore[attr-defined]
    return call


def _with_unpacked(function: Callable[..., Any]) -> inspect.Signature:
    """The signature, with the keys of a typed dictionary in place of `**arguments`."""
    signature = inspect.signature(function)
    *own_parameters, last = signature.parameters.values() or (None,)
    named = re.fullmatch(r"Unpack\[(\w+)\]", str(last and last.annotation))
    if last is None or named is None:
        return signature
    keys = inspect.unwrap(function).__globals__[named[1]].__annotations__
    unpacked = [
        inspect.Parameter(
            name, last.KEYWORD_ONLY, default=None, annotation=getattr(key, "__forward_arg__", key)
        )
        for name, key in keys.items()
    ]
    return signature.replace(parameters=[*own_parameters, *unpacked])


def require_argument(name: str, value: object) -> None:
    if value is not None:
        _require(_KINDS[name], name, value)


def _require(kind: _Kind, name: str, value: object) -> None:
    if not kind.fits(value):
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
    return _is_number(value, 0, 1) and bool(value)


def _is_number(value: object, minimum: float, maximum: float = math.inf) -> bool:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and minimum <= float(value) <= maximum  # type: ignore[arg-type]


def _is_whole(value: object, minimum: int, maximum: float = math.inf) -> bool:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and minimum <= int(value) <= maximum  # type: ignore[call-overload]


class _Kind(NamedTuple):
    words: str
    example: str
    fits: Callable[[Any], bool]
    is_choice: bool = False


def _of(words: str, example: str, *types: type) -> _Kind:
    return _Kind(words, example, lambda value: isinstance(value, types))


def _choice(values: Sequence[str]) -> _Kind:
    words, example = f"one of {', '.join(values)}", f'"{values[0]}"'
    return _Kind(words, example, lambda value: isinstance(value, str) and value in values, True)


def _list_of(words: str, example: str, fits: Callable[[Any], bool], *, at_least: int = 0) -> _Kind:
    def all_fit(values: Any) -> bool:
        right = isinstance(values, list | tuple | frozenset) and all(map(fits, values))
        return right and len(values) >= at_least

    return _Kind(f"a list of {words}", example, all_fit)


def _of_utf8(text: Any) -> bool:
    return isinstance(text, str) and encodable(text) == text


_TEXT = _Kind("a text in UTF-8", '"NAME"', _of_utf8)
# NumPy's truth values are no bool.
_FLAG = _Kind("True or False", "True", lambda value: type(value).__name__.startswith("bool"))
_NAMES = _list_of("names", '["NAME"]', lambda name: isinstance(name, str))
_COUNT = _Kind("a whole number from 1", "1", lambda value: _is_whole(value, 1))
_KINDS: Mapping[str, _Kind] = {
    "model": _Kind(
        "a model's name, a module or a function",
        '"resnet8"',
        lambda value: isinstance(value, str) or callable(value),
    ),
    "options": _of("a dictionary", '{"NAME": VALUE}', Mapping),
    **dict.fromkeys(("strategies", "baselines", "allow_modules", "allowed_modules"), _NAMES),
    **dict.fromkeys(
        ("path", "out", "checkpoint", "marks", "page"), _of("a path", '"NAME"', str, os.PathLike)
    ),
    **dict.fromkeys(
        ("image_size", "seeds", "every", "num_epochs", "num_ranks", "num_examples"), _COUNT
    ),
    "alpha": _Kind(
        "a number in [0, 1]", "0.5", lambda value: _is_share(value) or _is_number(value, 0, 0)
    ),
    "rank": _Kind("a whole number from 0", "0", lambda value: _is_whole(value, 0)),
    **dict.fromkeys(
        ("max_seconds", "checkpoint_seconds", "reconnect_seconds"),
        _Kind("a number from 0", "60", lambda value: _is_number(value, 0)),
    ),
    **dict.fromkeys(("test_at", "subset_at"), _list_of("numbers in (0, 1]", "[0.5]", _is_share)),
    "uneven": _choice(UNEVEN),
    "initial": _of("a dictionary of tensors", "model.state_dict()", Mapping),
    "schedule": _Kind("a schedule", "lipt.Schedule()", lambda value: hasattr(value, "test_at")),
    **dict.fromkeys(
        ("on_step", "on_resume", "on_progress", "criterion", "collate"),
        _Kind("a function", "print", callable),
    ),
    "fractions": _list_of("numbers in (0, 1]", "[0.1]", _is_share, at_least=1),
    "on_epoch": _list_of("functions", "[print]", callable),
    "seed": _Kind(
        "a whole number in 0..2**63 - 1", "0", lambda value: _is_whole(value, 0, 2**63 - 1)
    ),
    "reselect": _Kind(
        "a source of subsets",
        "lipt.RepeatedRandom(data, 100, 0)",
        lambda value: callable(value) or hasattr(value, "before_epoch"),
    ),
    "previous": _Kind(
        "a subset or its digest",
        "subset",
        lambda value: isinstance(value, str) or hasattr(value, "digest"),
    ),
    "diagnosis": _Kind(
        "a diagnosis", "lipt.diagnose(data)", lambda value: hasattr(value, "duplicate_of")
    ),
    "subset": _Kind("a subset", "lipt.select(data)", lambda value: hasattr(value, "indices")),
}


def _kind_of(name: str, annotation: object) -> _Kind | None:
    if name in _KINDS:
        return _KINDS[name]
    plain = str(annotation).removesuffix(" | None")
    if plain.startswith("Literal["):
        return _choice(ast.literal_eval(plain.removeprefix("Literal")))
    kinds = {"str": _TEXT, "bool": _FLAG, "Mapping[str, Any]": _KINDS["options"]}
    return kinds.get(plain)
