"""A call's data and model: what users pass, opened."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from torch import nn

from lipt.common.data import Dataset, dataset_of, open_pairs
from lipt.common.data import open_dataset as open_by_name
from lipt.common.imports import modules_of
from lipt.trainer.subsets.data import map_style

# Given: models that a caller hands over as objects, under names that a configuration can hold.
#
# A configuration names its model. One that is an object of the program has no name that others
# could know, so it gets one of this module: `lipt.data:model_1`. It lies here for as long as who
# has handed it over keeps what `name_model` gave.

MODULE = "lipt.data"

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


# Opening: data in any of its forms, as the data set that the pipeline and main training take.

__all__ = ["open_dataset", "open_pairs"]


def open_dataset(
    data: Any, *, image_size: int | None = None, allow_modules: Sequence[str] = ()
) -> Dataset:
    """Open labelled data and check every example of it.

    Args:
        data: a map-style data set of (example, label), `(X, y)` arrays or tensors, a Hugging
            Face `datasets.Dataset`, or a name: `csv:train.csv?label=COLUMN`,
            `imagefolder:/data`, `package.module:factory`. What is open already stays as it is.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        allow_modules: modules that a name may import besides the one that it names.

    Raises:
        UnknownNameError: there is no data of that name.
        ConfigError: it is in none of these forms, or `image_size` cannot be used.
        DataError: it is empty, or an example or a label cannot be used.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        allowed = (*allow_modules, *modules_of(data))
        return open_by_name(data, image_size=image_size, allowed_modules=allowed)
    return dataset_of(map_style(data), image_size=image_size)
