"""Strategy: a selection algorithm and its description for the service, with its options.

What a strategy needs are the types of its parameters before `budget`, views of the signals: `def
el2n(layer: LastLayer, budget: int)`. Where an option decides, the type is a union.

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
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lipt.common.errors import ConfigError, StrategyOptionError, UnknownNameError
from lipt.common.requests import LIPT, PRETRAINING, PRETRAININGS
from lipt.core.selection.selection import Selection
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals
from lipt.core.signals.views import (
    MODEL_NEEDS,
    ExampleLabels,
    Features,
    GradientNorms,
    InitialLosses,
    LastLayer,
    NearDuplicates,
    Need,
    PairedFeatures,
    TargetFeatures,
    TargetLosses,
    TargetWords,
    UnpromptedLosses,
    ValidationSignals,
    View,
)
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


def call(function: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """Call a function with those of the keywords that it takes."""
    parameters = inspect.signature(function).parameters
    return function(*arguments, **{name: given[name] for name in parameters if name in given})


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


# What a strategy's parameters may be.
VIEWS = (
    *(ExampleLabels, Features, LastLayer, GradientNorms, ValidationSignals),
    *(Dynamics, PairedFeatures, NearDuplicates),
    *(InitialLosses, UnpromptedLosses, TargetLosses, TargetFeatures, TargetWords),
)
CLASSES = frozenset({TargetKind.CLASS})


def view_of_space(options: Mapping[str, Any]) -> type[View]:
    return Features if options["space"] == "features" else LastLayer


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

    function: `f(views..., budget, *, options..., seed) -> Selection`, with `seed` if it draws.
    Balanced, it sees one class at a time; one that takes `balanced` shares the budget itself.
    cost: decides in which process a request waits, and how much memory it may take.
    needs: where a parameter's type is a union, a function of all options' values that returns one
    of its types.
    kinds: of its targets, or a function of all options' values.
    prepare: `f(views..., *, options..., seed) -> view`, applied once to all examples before they
    are split by class. The function takes that view by its type.
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
    needs: Callable[[Mapping[str, Any]], type[View]] | None = None
    prepare: Callable[..., View] | None = None
    rechecks: bool = False
    presets: Mapping[str, Preset] = field(default_factory=dict)
    revision: int = 0
    proxy: str = "soup"
    averages: bool = False
    is_random: bool = False
    kinds: frozenset[TargetKind] | Callable[[Mapping[str, Any]], frozenset[TargetKind]] = ALL_KINDS

    def __call__(self, view: View, *arguments: Any, **options: Any) -> Selection:
        """Select from signals, or from views of them."""
        if not isinstance(view, Signals):
            return self.function(view, *arguments, **options)
        views = self.views(view, {**self.parse_options({}), **options})
        for option in () if self.prepare is None else options_of(self.prepare):
            options.pop(option.name, None)
        return self.function(*views, *arguments, **options)

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

    def views(self, signals: Signals, given: Mapping[str, Any]) -> list[View]:
        """The function's views of the signals, prepared; `given` are all options, and the seed."""
        kinds = self.view_types(self.function, given)
        if self.prepare is None:
            return [kind.of(signals) for kind in kinds]
        taken = self.view_types(self.prepare, given)
        made = call(self.prepare, *(kind.of(signals) for kind in taken), **given)
        return [made if kind is self.prepared_type else kind.of(signals) for kind in kinds]

    @cached_property
    def prepared_type(self) -> type[View] | None:
        """The type that `prepare` returns."""
        return None if self.prepare is None else get_type_hints(self.prepare).get("return")

    def view_types(
        self, function: Callable[..., Any], options: Mapping[str, Any]
    ) -> list[type[View]]:
        """The type of each parameter of a function before `budget`; ConfigError for no view."""
        kinds, hints = list[type[View]](), get_type_hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY or name == "budget":
                continue
            members = get_args(hints.get(name)) or (hints.get(name, object),)
            if not {*members} <= {*VIEWS, self.prepared_type}:
                raise ConfigError(
                    f"{name} of strategy {self.name!r} has no type of a view. Write one of "
                    f"{', '.join(view.__name__ for view in VIEWS)}."
                )
            kind: Any = members[0] if len(members) == 1 else self.needs and self.needs(options)
            if kind not in members:
                raise ConfigError(
                    f"{name} of strategy {self.name!r} has {len(members)} types, and `needs` gives "
                    f"{kind!r:.60}. Give a function of the options that returns one of them."
                )
            kinds.append(kind)
        return kinds

    def needs_for(self, options: Mapping[str, Any]) -> frozenset[Need]:
        """All that is computed for its views."""
        kinds = {*self.view_types(self.function, options)}
        if self.prepare is not None:
            kinds = kinds - {self.prepared_type} | {*self.view_types(self.prepare, options)}
        return frozenset(kind.need for kind in kinds if kind.need is not None)

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
