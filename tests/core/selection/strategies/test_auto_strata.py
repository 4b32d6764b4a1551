from __future__ import annotations

from dataclasses import replace

import torch

from lipt.common.targets.kinds import TargetKind
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategies.auto_strata import auto_strata, surplus_pictures
from lipt.core.signals.signals import Signals, labels_only

LABELS = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)


def signals_of(pictures: torch.Tensor | None = None) -> Signals:
    signals = labels_only(LABELS, TargetKind.NUMBER)
    return replace(signals, pictures_N=torch.arange(100) if pictures is None else pictures)


def counts(chosen: Selection) -> list[int]:
    return LABELS[chosen.indices_K].bincount(minlength=3).tolist()


def test_strata_get_equal_shares_or_their_own() -> None:
    assert counts(auto_strata(signals_of(), 30, balanced=True, seed=0)) == [10, 10, 10]
    assert counts(auto_strata(signals_of(), 30, balanced=False, seed=0)) == [18, 9, 3]


def test_without_copies_it_is_random_in_equal_shares() -> None:
    random = find_strategy("uniform_per_class")
    chosen = auto_strata(signals_of(), 30, balanced=True, seed=5)
    expected = select(random, signals_of(), 30, balanced=True, seed=5, options={})
    assert sorted(chosen.indices_K.tolist()) == expected.indices_K.tolist()
    assert chosen.findings["words"] == [
        "the targets are regression: no gain over random is known of any choice",
        "0.0% of the examples are near copies of others",
        "random in equal shares of the strata",
    ]


def test_of_copies_the_first_is_enough_while_others_last() -> None:
    # The first stratum's 60 examples are 6 pictures.
    pictures = torch.arange(100)
    pictures[:60] %= 6
    chosen = auto_strata(signals_of(pictures), 30, balanced=True, seed=0)
    assert counts(chosen) == [6, 14, 10]
    assert set(chosen.indices_K[chosen.indices_K < 60].tolist()) == set(range(6))
    assert chosen.findings["left_out"] == {"count": 54}
    # 46 are no copies.
    assert counts(auto_strata(signals_of(pictures), 47, balanced=True, seed=0)) == [19, 18, 10]


def test_surplus_is_all_but_the_first_of_a_picture() -> None:
    assert surplus_pictures(torch.tensor([4, 0, 4, 2, 0, 4])).tolist() == [
        *(False, False, True),
        *(False, True, True),
    ]
