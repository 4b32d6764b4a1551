"""Graph cut on directions of the plane, and against gains that are written out."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lipt.core.selection.gradients.vectors import Rows, ScaledCosine, SpaceName, in_space
from lipt.core.selection.strategies.graph_cut import graph_cut
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_signals, random_subsets, signals_of

SPACES: list[SpaceName] = ["features", "gradients"]


def similarities(signals: Signals, space: SpaceName) -> Tensor:
    return ScaledCosine(Rows(in_space(signals, space))).rows(torch.arange(len(signals)))


def value(similarities_NN: Tensor, chosen: list[int], coverage: float = 2.0) -> float:
    within = similarities_NN[chosen][:, chosen].sum()
    return float(coverage * similarities_NN[chosen].sum() - within)


def test_directions_of_the_plane() -> None:
    # (1 + cos) / 2 is 1, 0.5 and 0 at 0, 90 and 180 degrees. The sums over all are 2.5, 2.5,
    # 2.5 and 1.5, so gains start at 2 sum - 1 = 4, 4, 4, 2. Less 2 s: after 0 -, 2, 3, 2;
    # after 2 -, 1, -, 1.
    given = signals_of(torch.tensor([[1.0, 0], [3, 0], [0, 1], [-2, 0]]))
    assert graph_cut(given, 4, space="features").indices_K.tolist() == [0, 2, 1, 3]
    # With lambda = 1: 1.5, 1.5, 1.5, 0.5; after 0 -, -0.5, 0.5, 0.5; after 2 -, -1.5, -, -0.5.
    chosen = graph_cut(given, 4, space="features", coverage=1.0)
    assert chosen.indices_K.tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("coverage", [0.0, 0.5, 2.0, 10.0])
def test_every_pick_has_the_largest_gain(space: SpaceName, coverage: float) -> None:
    signals = random_signals(40)
    similarities_NN = similarities(signals, space)
    expected: list[int] = []
    while len(expected) < 40:
        left = [i for i in range(40) if i not in expected]
        # The last two always tie, and all do where nothing is covered.
        values = [round(value(similarities_NN, [*expected, i], coverage), 6) for i in left]
        expected.append(left[values.index(max(values))])
    chosen = graph_cut(signals, 40, space=space, coverage=coverage).indices_K.tolist()
    assert chosen == expected


@pytest.mark.parametrize("space", SPACES)
def test_value_never_falls_at_the_default(space: SpaceName) -> None:
    signals = random_signals(60)
    chosen = graph_cut(signals, 60, space=space).indices_K.tolist()
    values = [value(similarities(signals, space), chosen[:k]) for k in range(61)]
    gains = [after - before for before, after in pairwise(values)]
    assert min(gains) > 0
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(gains))


@pytest.mark.parametrize("space", SPACES)
def test_value_is_above_that_of_random_choices(space: SpaceName) -> None:
    signals = random_signals(300)
    similarities_NN = similarities(signals, space)
    found = value(similarities_NN, graph_cut(signals, 30, space=space).indices_K.tolist())
    draws = random_subsets(300, 30)
    assert found > max(value(similarities_NN, drawn.tolist()) for drawn in draws)
