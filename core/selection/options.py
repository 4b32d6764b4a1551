"""Options: a strategy's are its function's keyword-only parameters, and nothing besides.

Names, types, defaults and descriptions stand in the function's signature alone:
`beta: Annotated[float, Field(ge=0), "share dropped as the hardest"] = 0.1`. What comes over
the wire is text; it is parsed by the parameter's annotation.

A preset gives several options by one name, such as a paper's. It is resolved before options are
parsed: what is given besides wins over it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lipt.common.errors import StrategyOptionError, UnknownNameError

# Given by the service, not by the user.
_SEED = "seed"
_BALANCED = "balanced"
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Option:
    """One option of a strategy.

    help: what it is, as a phrase.
    """

    name: str
    help: str
    default_value: Any
    # The values themselves where they can be listed, else what they have to be.
    allowed: tuple[str, ...]
    adapter: TypeAdapter[Any]

    @property
    def default(self) -> str:
        """The default as one would write it."""
        return option_text(self.default_value)


def options_of(function: Callable[..., Any]) -> tuple[Option, ...]:
    """The options that a strategy's function takes, in the order of its signature."""
    hints = get_type_hints(function, include_extras=True)
    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or name in {_SEED, _BALANCED}:
            continue
        adapter = TypeAdapter(hints[name])
        notes = getattr(hints[name], "__metadata__", ())
        text = next((note for note in notes if isinstance(note, str)), "")
        allowed = tuple(_allowed(adapter.json_schema()))
        options.append(Option(name, text, parameter.default, allowed, adapter))
    return tuple(options)


def takes_seed(function: Callable[..., Any]) -> bool:
    """Whether a strategy's function draws at random."""
    return _SEED in inspect.signature(function).parameters


def takes_balanced(function: Callable[..., Any]) -> bool:
    """Whether a strategy's function shares the budget among the classes itself."""
    return _BALANCED in inspect.signature(function).parameters


def parse_options(
    strategy: str, options: tuple[Option, ...], given: Mapping[str, str]
) -> dict[str, Any]:
    """Every option's value, by name: the given one, or the default.

    Args:
        strategy: the strategy's name, for the messages.
        options: what it takes.
        given: texts by name.

    Raises:
        StrategyOptionError: an option does not exist, or its value is not allowed; the
            message lists those that are.
    """
    unknown = sorted(set(given) - {option.name for option in options})
    if unknown:
        raise StrategyOptionError(
            f"strategy {strategy!r} has no option {unknown[0]!r}. {_listed(options)}"
        )
    return {
        option.name: _parse(strategy, option, given[option.name])
        if option.name in given
        else option.default_value
        for option in options
    }


def option_text(value: Any) -> str:
    """A value as one would write it: `true` and `false` for booleans."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(strategy: str, option: Option, text: str) -> Any:
    try:
        return option.adapter.validate_python(text)
    except ValidationError:
        raise StrategyOptionError(
            f"option {option.name} of strategy {strategy!r} cannot be {text!r}. "
            f"Choose one of: {', '.join(option.allowed)} (default {option.default})."
        ) from None


def _listed(options: tuple[Option, ...]) -> str:
    if not options:
        return "It takes none."
    described = (f"{option.name} ({' | '.join(option.allowed)})" for option in options)
    return f"Its options: {', '.join(described)}."


def _allowed(schema: Mapping[str, Any]) -> Iterator[str]:
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _allowed(part)
    elif "enum" in schema:
        yield from map(option_text, schema["enum"])
    elif "const" in schema:
        yield option_text(schema["const"])
    elif schema["type"] == "boolean":
        yield from ("true", "false")
    else:
        bounds = [f"{sign} {schema[key]:g}" for key, sign in _BOUNDS.items() if key in schema]
        yield f"{schema['type']} {' and '.join(bounds)}".rstrip()


@dataclass(frozen=True)
class Preset:
    """Named values of options.

    summary: what they are and whose, as a phrase.
    values: texts by name, as a user would give them; a function of the fraction of the data
        set that is kept where they depend on it. Options that are not named keep their
        defaults.
    balanced: equal shares per class or not; None for the strategy's default.
    """

    summary: str
    values: Mapping[str, str] | Callable[[float], Mapping[str, str]]
    balanced: bool | None = None

    def options(self, fraction: float, given: Mapping[str, str]) -> dict[str, str]:
        """The texts of all options that are given or preset, by name.

        Args:
            fraction: the share of the data set that is kept, in (0, 1].
            given: what the user says besides.
        """
        values = self.values(fraction) if callable(self.values) else self.values
        return {**values, **given}


NO_PRESET = Preset("every option's default", {})


def find_preset(strategy: str, presets: Mapping[str, Preset], name: str) -> Preset:
    """The preset of that name; the one of defaults where the name is empty.

    Raises:
        UnknownNameError: there is none; the message lists those that there are.
    """
    if not name:
        return NO_PRESET
    if name not in presets:
        listed = f"Choose one of: {', '.join(presets)}" if presets else "It has none"
        raise UnknownNameError(
            f"strategy {strategy!r} has no preset {name!r}. {listed}, or give options by name."
        )
    return presets[name]


def between(points: Mapping[float, float], fraction: float) -> float:
    """A value for any fraction from those at some: a straight line between neighbors.

    Beyond the first and the last point, theirs.
    """
    fractions = sorted(points)
    if fraction <= fractions[0]:
        return points[fractions[0]]
    for low, high in pairwise(fractions):
        if fraction <= high:
            share = (fraction - low) / (high - low)
            return points[low] + share * (points[high] - points[low])
    return points[fractions[-1]]
