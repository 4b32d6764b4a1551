from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lipt.core.stages.findings import class_shift


def data_of(*counts: int) -> Any:
    labels_N = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    names = tuple(f"class-{label}" for label in range(len(counts)))
    return cast("Any", SimpleNamespace(class_names=names, labels_N=labels_N))


def test_a_moved_class_is_named_with_weights_that_undo_it_and_the_flag_that_keeps_it() -> None:
    shares, sentences = class_shift(data_of(90, 10), torch.tensor([0] * 5 + [1] * 5))
    assert shares["data"] == pytest.approx([0.9, 0.1])
    assert shares["subset"] == pytest.approx([0.5, 0.5])
    # Of ten examples, five of weight 1.8 and five of 0.2: nine tenths and one tenth again.
    assert shares["weights_that_undo"] == pytest.approx([1.8, 0.2])
    assert sentences[0].startswith(
        "balanced: class class-1 is 10.0% of the data and 50.0% of the subset; balanced=False or "
    )


def test_small_shifts_are_not_named_and_absent_classes_weigh_nothing() -> None:
    shares, sentences = class_shift(data_of(60, 40, 0), torch.tensor([0] * 5 + [1] * 5))
    assert (shares["weights_that_undo"], sentences) == ([1.2, 0.8, 0.0], [])
