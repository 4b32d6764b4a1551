"""Given: models that a caller hands over as objects, under names that a configuration can hold.

A configuration names its model. One that is an object of the program has no name that others
could know, so it gets one of this module: `lipt.given:model_1`. It lies here for as long as who
has handed it over keeps what `name_model` gave.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from torch import nn

MODULE = "lipt.given"

_numbers = itertools.count(1)


class Given:
    """A model under a name.

    Attributes:
        name: what a configuration calls it.
    """

    def __init__(self, make: Callable[..., nn.Module], attribute: str) -> None:
        self._make = make
        self.name = f"{MODULE}:{attribute}"

    def __call__(self, *, num_classes: int) -> nn.Module:
        """The model, made anew."""
        return self._make(num_classes=num_classes)


_given: WeakValueDictionary[str, Given] = WeakValueDictionary()


def name_model(model: nn.Module | Callable[..., nn.Module]) -> Given:
    """Give a model a name.

    Args:
        model: a function of `num_classes`, or a module, which is copied and stays as it is.
    """
    attribute = f"model_{next(_numbers)}"
    _given[attribute] = given = Given(_maker(model), attribute)
    return given


def __getattr__(attribute: str) -> Any:
    try:
        return _given[attribute]
    except KeyError:
        raise AttributeError(f"module {MODULE!r} has no attribute {attribute!r}") from None


def _maker(model: nn.Module | Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    if not isinstance(model, nn.Module):
        return model
    mine = copy.deepcopy(model).cpu()
    return lambda num_classes: copy.deepcopy(mine)  # noqa: ARG005 - as a factory is called
