from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lipt.common.errors import SignalsError
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.strategies.clip_score import clip_score, cosines
from lipt.core.signals.signals import Signals


def of_pairs(images: list[list[float]], captions: list[list[float]], labels: list[int]) -> Signals:
    return Signals(
        torch.empty(len(labels), 0),
        torch.tensor(images),
        torch.tensor(labels),
        paired_features_NP=torch.tensor(captions),
    )


SIGNALS = of_pairs(
    images=[[3.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 2.0], [1.0, 0.0]],
    captions=[[5.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 7.0]],
    labels=[0, 0, 0, 1, 1],
)


def test_the_score_is_the_cosine_and_that_of_zeros_is_zero() -> None:
    assert cosines(SIGNALS).tolist() == pytest.approx([1.0, -1.0, 0.0, math.sqrt(0.5), 0.0])


def test_the_least_alike_are_dropped_and_ties_keep_their_order() -> None:
    assert clip_score(SIGNALS, 4).indices_K.tolist() == [0, 3, 2, 4]
    assert clip_score(SIGNALS, 2).weights_K.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("balanced", "chosen"), [(False, [0, 3]), (True, [0, 3])])
def test_classes_share_equally_on_request_alone(balanced: bool, chosen: list[int]) -> None:
    strategy = find_strategy("clip_score")
    found = select(strategy, SIGNALS, 2, balanced=balanced, seed=0, options={})
    assert found.indices_K.tolist() == chosen
    one_sided = replace(SIGNALS, labels_N=torch.tensor([0, 1, 1, 0, 1]))
    found = select(strategy, one_sided, 2, balanced=balanced, seed=0, options={})
    assert found.indices_K.tolist() == ([0, 2] if balanced else [0, 3])


def test_pairs_of_two_widths_are_refused() -> None:
    with pytest.raises(SignalsError, match=r"clip_score compares .* 2 columns .* 3\. Give"):
        clip_score(replace(SIGNALS, paired_features_NP=torch.ones(5, 3)), 2)
