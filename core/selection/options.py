"""Options: keyword-only parameters of a strategy's function.

Name, type, default and description are in the signature alone: `beta: Annotated[float, Field(ge=0),
"share dropped as the hardest"] = 0.1`. Users give texts, which are parsed by the annotation.

Strategies that look at a model have one more, `pretraining`, which replaces LiPT's own:

    lipt          theta_p, the default
    epochs:N      the run's theta*, warmed up for N epochs; N may be a fraction, or 0
    epochs:NxR    R models from R random initial weights, each for N epochs
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_type_hints

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from lipt.common.errors import StrategyOptionError

# Set by the service, not by the user.
_SERVICE_PARAMETERS = {"seed", "balanced"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Option:
    """One option of a strategy; `allowed` lists values or conditions such as `number >= 0`."""

    name: str
    help: str
    default_value: Any
    allowed: tuple[str, ...]
    adapter: TypeAdapter[Any]

    @property
    def default(self) -> str:
        return _text(self.default_value)


def options_of(function: Callable[..., Any]) -> tuple[Option, ...]:
    """The options in a strategy's signature, in order."""
    hints = get_type_hints(function, include_extras=True)
    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or name in _SERVICE_PARAMETERS:
            continue
        adapter = TypeAdapter(hints[name])
        notes = getattr(hints[name], "__metadata__", ())
        text = next((note for note in notes if isinstance(note, str)), "")
        allowed = tuple(_allowed(adapter.json_schema()))
        options.append(Option(name, text, parameter.default, allowed, adapter))
    return tuple(options)


def parse_options(
    strategy: str, options: tuple[Option, ...], given: Mapping[str, str]
) -> dict[str, Any]:
    """Values of all options by name, from texts or defaults; StrategyOptionError if invalid."""
    unknown = sorted(set(given) - {option.name for option in options})
    if unknown:
        described = (f"{option.name} ({' | '.join(option.allowed)})" for option in options)
        listed = f"Its options: {', '.join(described)}" if options else "It takes none"
        raise StrategyOptionError(f"strategy {strategy!r} has no option {unknown[0]!r}. {listed}.")
    values = {option.name: option.default_value for option in options}
    for option in options:
        if option.name in given:
            text = given[option.name]
            try:
                values[option.name] = option.adapter.validate_python(text)
            except ValidationError:
                raise StrategyOptionError(
                    f"option {option.name} of strategy {strategy!r} cannot be {text!r}. "
                    f"Choose one of: {', '.join(option.allowed)} (default {option.default})."
                ) from None
    return values


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _allowed(schema: Mapping[str, Any]) -> Iterator[str]:
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _allowed(part)
    elif "enum" in schema:
        yield from map(_text, schema["enum"])
    elif "const" in schema:
        yield _text(schema["const"])
    elif schema["type"] == "boolean":
        yield from ("true", "false")
    else:
        bounds = [f"{sign} {schema[key]:g}" for key, sign in _BOUNDS.items() if key in schema]
        yield f"{schema['type']} {' and '.join(bounds)}".rstrip()


@dataclass(frozen=True)
class Preset:
    """Several options under one name.

    values: texts by option, or a function of the fraction kept that returns them.
    balanced: equal shares per class or not; None for the strategy's default.
    """

    summary: str
    values: Mapping[str, str] | Callable[[float], Mapping[str, str]]
    balanced: bool | None = None

    def options(self, fraction: float, given: Mapping[str, str]) -> dict[str, str]:
        values = self.values(fraction) if callable(self.values) else self.values
        return {**values, **given}


PRETRAINING = "pretraining"
LIPT = "lipt"
_EPOCHS = re.compile(r"epochs:([0-9]{1,4}(?:\.[0-9]{1,4})?)(?:x([1-9][0-9]{0,3}))?", re.ASCII)


@dataclass(frozen=True)
class WarmUp:
    """An ordinary warm-up of `models` models, each for `epochs`; `str` is its canonical text."""

    epochs: float
    models: int = 1

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a warm-up's text; None for LiPT's own, ValueError for anything else."""
        if text == LIPT:
            return None
        found = _EPOCHS.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no pre-training")
        return cls(float(found[1]), int(found[2] or 1))

    @classmethod
    def among(cls, options: Mapping[str, str]) -> Self | None:
        """The warm-up among a strategy's valid options."""
        return cls.parse(options.get(PRETRAINING, LIPT))

    def __str__(self) -> str:
        epochs = repr(self.epochs).removesuffix(".0")
        return f"epochs:{epochs}" + (f"x{self.models}" if self.models > 1 else "")

    @property
    def counted_epochs(self) -> float:
        """The cost in epochs; an untrained model costs its pass over the data."""
        return max(self.epochs, 1.0) * self.models


WARM_UP_OPTION = Option(
    PRETRAINING,
    "what the model that is looked at was trained by: LiPT, or N ordinary epochs (R models)",
    LIPT,
    (LIPT, "epochs:N", "epochs:NxR"),
    TypeAdapter(
        Annotated[str, BeforeValidator(lambda value: str(WarmUp.parse(str(value)) or LIPT))]
    ),
)
