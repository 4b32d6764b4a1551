"""Towers give rows of length 1, and what they do wrong is said with their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lipt.common.data.sources.pairs.rows import Tower, find_tower
from lipt.common.errors import ConfigError, DataError, FactoryNotAllowedError


def tower(given: Any) -> Tower:
    return Tower("mine:tower", lambda _: given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_are_divided_by_their_length_and_zeros_stay(dtype: torch.dtype) -> None:
    rows = tower(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=dtype)).rows(None, 2)
    assert rows.dtype == torch.float32
    assert rows.tolist() == [pytest.approx([0.6, 0.8]), [0.0, 0.0]]


def test_arrays_are_taken_as_well() -> None:
    assert tower(np.array([[0.0, 2.0]])).rows(None, 1).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (torch.ones(2), r"gives torch\.float32 of shape \[2\] for a batch of 2"),
        (torch.ones(3, 4), r"shape \[3, 4\] for a batch of 2"),
        (torch.ones(2, 4, dtype=torch.int64), r"gives torch\.int64"),
        (torch.tensor([[1.0], [torch.nan]]), "values that are not finite"),
    ],
)
def test_other_values_are_refused(given: torch.Tensor, complaint: str) -> None:
    with pytest.raises(DataError, match=f"the tower mine:tower .*{complaint}"):
        tower(given).rows(None, 2)


def test_a_tower_that_fails_is_named() -> None:
    def failing(_: object) -> None:
        raise RuntimeError("wrong size")

    with pytest.raises(DataError, match=r"tower mine:tower failed on a batch of 2 .*wrong size"):
        Tower("mine:tower", failing).rows(None, 2)


def test_nothing_is_imported_that_is_not_allowed() -> None:
    with pytest.raises(FactoryNotAllowedError):
        find_tower("tests.coloured_shapes:image_tower", ["elsewhere"])


def no_tower() -> int:
    return 3


def broken_tower() -> Callable[[Any], Any]:
    raise OSError("no such weights")


def test_factories_that_fail_or_return_no_tower_are_named_when_they_are_called() -> None:
    for name, complaint in (("no_tower", "returns a int"), ("broken_tower", "no such weights")):
        make = find_tower(f"{__name__}:{name}", [__name__])
        with pytest.raises(ConfigError, match=f"{name}.*{complaint}"):
            make()
