"""Arguments of calls, checked before anything is loaded, computed or sent."""

from __future__ import annotations

import numbers

from lipt.common.errors import BudgetError, ConfigError, InvalidRequestError

_LARGEST_SEED = 2**63 - 1


def require_size(fraction: object, budget: object) -> None:
    """Refuse a size that no data can have; the data's length is compared later."""
    if fraction is not None and budget is not None:
        raise InvalidRequestError(
            f"fraction {fraction} and budget {budget} were given: give one of them, a "
            "fraction in (0, 1] of the data set or a number of examples."
        )
    if fraction is not None:
        require_fraction(fraction)
    if budget is not None:
        if not _is_whole(budget):
            raise BudgetError(
                f"budget={budget!r:.80} is not a whole number. Give a number of examples, such as "
                "budget=100, or a share: fraction=0.1."
            )
        if int(budget) < 1:  # type: ignore[call-overload]
            raise BudgetError(f"budget={budget} keeps nothing. Give a number of examples from 1.")


def require_fraction(fraction: object) -> None:
    """Refuse what is no share of the data."""
    if isinstance(fraction, bool) or not isinstance(fraction, numbers.Real):
        raise BudgetError(
            f"fraction={fraction!r:.80} is a {type(fraction).__name__}, not a number. Give one in "
            "(0, 1], such as 0.1."
        )
    if not 0 < float(fraction) <= 1:
        raise BudgetError(
            f"fraction {fraction} is outside (0, 1]. Choose a share of the examples, such as 0.1, "
            "or give their number: budget=100."
        )


def require_seed(seed: object) -> None:
    """Refuse what is no seed."""
    require_whole("seed", seed, minimum=0)
    if int(seed) > _LARGEST_SEED:  # type: ignore[call-overload]
        raise ConfigError(f"seed={seed} is above {_LARGEST_SEED}. Give a smaller one, such as 0.")


def require_whole(name: str, value: object, *, minimum: int) -> None:
    """Refuse what is no whole number, or too small a one."""
    if not _is_whole(value) or int(value) < minimum:  # type: ignore[call-overload]
        raise ConfigError(
            f"{name}={value!r:.80} is not a whole number from {minimum}. Give one, such as "
            f"{name}={max(minimum, 1)}."
        )


def require_names(name: str, values: object) -> None:
    """Refuse what is no list of names; a lone name is one, too."""
    listed = isinstance(values, list | tuple) and values
    if not listed or not all(isinstance(value, str) for value in values):  # type: ignore[attr-defined]
        raise ConfigError(
            f'{name}={values!r:.80} is not a list of names. Give one: {name}=["auto"].'
        )


def require_name(name: str, value: object) -> None:
    """Refuse what is no name."""
    if not isinstance(value, str):
        raise ConfigError(
            f"{name}={value!r:.80} is a {type(value).__name__}, not a name. Give one: "
            f'{name}="auto".'
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
