"""Strategy: a selection algorithm and its description for the service, with its options.

Options are keyword-only parameters of a strategy's function. Name, type, default and description
are in the signature alone: `beta: Annotated[float, Field(ge=0), "share dropped as the hardest"] =
0.1`. Users give texts, which are parsed by the annotation.

Strategies that look at a model have one more, `pretraining`: `WarmUp` of lipt.common.requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lipt.common.errors import StrategyOptionError, UnknownNameError
from lipt.common.requests import LIPT, PRETRAINING, PRETRAININGS
from lipt.core.selection.selection import Selection
from lipt.core.signals.signals import Signals
from lipt.data.targets.kinds import ALL_KINDS, TargetKind

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


WARM_UP_OPTION = Option(
    PRETRAINING,
    "what the model that is looked at was trained by: LiPT, or N ordinary epochs (R models)",
    LIPT,
    PRETRAININGS,
    TypeAdapter(str),
)


class Balance(StrEnum):
    """Whether a strategy is applied to one class after another, each with an equal share."""

    BY_DEFAULT = "by_default"
    ON_REQUEST = "on_request"
    NEVER = "never"
    ALWAYS = "always"


class Need(StrEnum):
    """An input of a strategy besides the labels.

    SIGNALS: errors and features, one forward pass over the data. FEATURES: the user's or the
    model's. GRADIENT_NORMS: of all parameters, one backward pass per example. VALIDATION: signals
    of the run's validation split. DYNAMICS: a forward pass for every snapshot of every learner.
    PAIRED_FEATURES: two feature matrices of the user. DUPLICATES: near-duplicate images. LOSSES,
    PROMPTS: under theta*, a forward pass each. TARGET_...: of what the user cares about.
    """

    SIGNALS = "signals"
    FEATURES = "features"
    GRADIENT_NORMS = "gradient norms"
    VALIDATION = "validation split"
    DYNAMICS = "learners"
    PAIRED_FEATURES = "paired features"
    DUPLICATES = "near-duplicates"
    LOSSES = "losses"
    PROMPTS = "losses without prompts"
    TARGET_LOSSES = "losses after a target"
    TARGET_FEATURES = "features of a target"
    TARGET_WORDS = "words of a target"


# Inputs that need a model.
MODEL_NEEDS = frozenset({Need.SIGNALS, Need.FEATURES, Need.VALIDATION, Need.GRADIENT_NORMS})
# Inputs that need a target, and those that need theta* alone.
TARGET_NEEDS = frozenset({Need.TARGET_LOSSES, Need.TARGET_FEATURES, Need.TARGET_WORDS})
INITIAL_NEEDS = TARGET_NEEDS | {Need.LOSSES, Need.PROMPTS}
NOTHING: frozenset[Need] = frozenset()
SIGNALS = frozenset({Need.SIGNALS})
FEATURES = frozenset({Need.FEATURES})
DYNAMICS = frozenset({Need.DYNAMICS})
CLASSES = frozenset({TargetKind.CLASS})


def needs_of_space(options: Mapping[str, Any]) -> frozenset[Need]:
    return FEATURES if options["space"] == "features" else SIGNALS


class Growth(StrEnum):
    """How a strategy's time grows with the number of examples."""

    LINEAR = "linear"  # one look at each example
    PAIRS = "pairs"  # every pair of examples, of a class where it selects by class
    ITERATIONS = "iterations"  # a look at each example in every iteration
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cost:
    """A strategy's time; `formula` describes it in N examples, C classes, d features, k budget."""

    growth: Growth = Growth.UNKNOWN
    formula: str = ""

    def __str__(self) -> str:
        return self.formula or self.growth.value


@dataclass(frozen=True)
class Strategy:
    """A selection algorithm and its description for the service.

    function: `f(signals, budget, *, options..., seed) -> Selection`, with `seed` if it draws.
    Balanced, it sees one class at a time; one that takes `balanced` shares the budget itself.
    cost: decides in which process a request waits, and how much memory it may take.
    needs, kinds: its inputs and targets, or functions of all options' values.
    prepare: `f(signals, *, options..., seed) -> Signals`, applied once to all examples before they
    are split by class.
    rechecks: whether a quadratic loss model decides if a subset stays in use at new weights.
    revision: raise it when the same request gets other examples: older subsets are not reused.
    proxy: computes its signals by default.
    averages: its score can be a mean over several models.
    is_random: whether another seed may give another subset.
    """

    function: Callable[..., Selection]
    summary: str
    paper: str = ""
    cost: Cost = Cost()
    balance: Balance = Balance.BY_DEFAULT
    returns_weights: bool = False
    needs: frozenset[Need] | Callable[[Mapping[str, Any]], frozenset[Need]] = SIGNALS
    prepare: Callable[..., Signals] | None = None
    rechecks: bool = False
    presets: Mapping[str, Preset] = field(default_factory=dict)
    revision: int = 0
    proxy: str = "soup"
    averages: bool = False
    is_random: bool = False
    kinds: frozenset[TargetKind] | Callable[[Mapping[str, Any]], frozenset[TargetKind]] = ALL_KINDS

    def __call__(self, *arguments: Any, **options: Any) -> Selection:
        return self.function(*arguments, **options)

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def balances_itself(self) -> bool:
        return "balanced" in inspect.signature(self.function).parameters

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options of its signatures, and the warm-up's if it can have one."""
        return (*self.own_options, *((WARM_UP_OPTION,) if self.can_be_warmed_up else ()))

    @cached_property
    def own_options(self) -> tuple[Option, ...]:
        options = options_of(self.function)
        return options if self.prepare is None else options + options_of(self.prepare)

    @cached_property
    def can_be_warmed_up(self) -> bool:
        """Whether it uses a model's own head, which an ordinary warm-up could train."""
        needs = self.needs_for({option.name: option.default_value for option in self.own_options})
        return bool(needs & MODEL_NEEDS) and Need.DYNAMICS not in needs and self.proxy == "soup"

    def parse_options(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Values of its own options, from texts or defaults; StrategyOptionError if invalid."""
        values = {option.name: option.default_value for option in self.own_options}
        if unknown := sorted(given.keys() - values):
            described = (f"{option.name} ({' | '.join(option.allowed)})" for option in self.options)
            listed = f"Its options: {', '.join(described)}" if self.options else "It takes none"
            raise StrategyOptionError(
                f"strategy {self.name!r} has no option {unknown[0]!r}. {listed}."
            )
        for option in self.own_options:
            if option.name in given:
                values[option.name] = self._parse(option, given[option.name])
        return values

    def _parse(self, option: Option, text: str) -> Any:
        try:
            return option.adapter.validate_python(text)
        except ValidationError:
            raise StrategyOptionError(
                f"option {option.name} of strategy {self.name!r} cannot be {text!r}. "
                f"Choose one of: {', '.join(option.allowed)} (default {option.default})."
            ) from None

    def preset(self, name: str) -> Preset:
        """The preset of that name, empty for the defaults; UnknownNameError if there is none."""
        if not name:
            return Preset("every option's default", {})
        if name not in self.presets:
            listed = f"Choose one of: {', '.join(self.presets)}" if self.presets else "It has none"
            raise UnknownNameError(
                f"strategy {self.name!r} has no preset {name!r}. {listed}, or give options by name."
            )
        return self.presets[name]

    def needs_for(self, options: Mapping[str, Any]) -> frozenset[Need]:
        return self.needs(options) if callable(self.needs) else self.needs

    def needs_of(self, given: Mapping[str, str]) -> frozenset[Need]:
        return self.needs_for(self.parse_options(given))

    def kinds_of(self, given: Mapping[str, str]) -> frozenset[TargetKind]:
        options = self.parse_options(given)
        kinds = self.kinds(options) if callable(self.kinds) else self.kinds
        return kinds & CLASSES if Need.DYNAMICS in self.needs_for(options) else kinds

    @property
    def needs_in_words(self) -> list[str]:
        """Its inputs by default, for listings; never empty."""
        alone = "labels" if self.balance is Balance.ALWAYS else "nothing"
        return sorted(self.needs_of({})) or [alone]

    def resolve_balance(self, balanced: bool | None) -> bool:  # noqa: FBT001 - the only argument
        """Whether the classes get equal shares; StrategyOptionError if that is unsupported."""
        fixed = {Balance.NEVER: False, Balance.ALWAYS: True}.get(self.balance)
        if balanced is not None and fixed is not None and balanced != fixed:
            other = "uniform" if fixed else "uniform_per_class"
            raise StrategyOptionError(
                f"strategy {self.name!r} is {self.balance} balanced per class. Use {other}, or "
                "leave `balanced` unset."
            )
        return (
            self.balance in {Balance.BY_DEFAULT, Balance.ALWAYS} if balanced is None else balanced
        )


def built_in(**about: Any) -> Callable[[Callable[..., Selection]], Strategy]:
    """The decorated function as a strategy of this package."""
    return lambda function: Strategy(function, **about)
