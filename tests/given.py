"""Given: the objects of a caller, under names that the service can take.

Coordinator and workers know data and models by names, `package.module:factory`. What a program
hands to `lipt.select` has none, so that it lies here for as long as its session lasts:

    tests.given:data    what to choose from        tests.given:model    what to judge it with

A process has one session at a time, and so one object of each name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MODULE = "tests.given"

_objects: dict[str, Any] = {}


@contextmanager
def giving(**objects: Any) -> Iterator[None]:
    """Have objects found under their names during the block; None gives nothing.

    Args:
        objects: `data` is a data set, `model` is a function of `num_classes`.
    """
    given = {name: value for name, value in objects.items() if value is not None}
    _objects.update(given)
    try:
        yield
    finally:
        for name in given:
            del _objects[name]


def data() -> Any:
    """The data set that was given."""
    return _objects["data"]


def model(*, num_classes: int) -> Any:
    """The model that was given, made anew."""
    return _objects["model"](num_classes=num_classes)
