"""Targets of a table that are no single class: columns of numbers to be told, or of 0 and 1.

    target=COLUMN           a number of every row; several between commas
    labels=COLUMN,COLUMN    1 in every column whose label a row has, 0 in the others

Shapes: N rows, T columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lipt.common.data.sources.tables.cells import Table, require_columns
from lipt.common.data.sources.tables.features import read_numbers
from lipt.common.data.sources.tables.query import Query
from lipt.common.errors import ConfigError
from lipt.common.targets.values import TargetValues, label_values, number_values

# Options of which a source has one; without any, the column `label` is a class.
KINDS = ("label", "target", "labels")


def target_columns(query: Query) -> tuple[str, ...]:
    """The columns that are told of examples, and no part of what they are told by.

    Raises:
        ConfigError: targets of two kinds are named.
    """
    given = [name for name in KINDS if name in query]
    if len(given) > 1:
        raise ConfigError(
            f"{query.source}: {' and '.join(given)} were given together. Name a class (label=), "
            "numbers (target=), or labels of which a row may have several (labels=)."
        )
    if not given or given[0] == "label":
        return (query.text("label", "label"),)
    return query.names(given[0])


def read_table_targets(query: Query, table: Table) -> TargetValues | None:
    """The targets of all rows; None where they are classes.

    Raises:
        DataError: there is no such column, or a cell is no number, missing, or neither 0 nor 1.
    """
    for option, values_of in (("target", number_values), ("labels", label_values)):
        if option in query:
            columns = query.names(option)
            require_columns(table, columns, option)
            return values_of(_matrix(table, columns), columns, table.name)
    return None


def _matrix(table: Table, columns: Sequence[str]) -> torch.Tensor:
    numbers = read_numbers(table, columns, required=columns)
    return torch.from_numpy(np.stack([numbers[name] for name in columns], axis=1))
