"""Strategies for a target: values by hand, and BM25 against its formula."""

import math
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipt.core.selection.strategies.targeted import (
    bm25,
    ifd,
    in_turn,
    loss_drop,
    loss_drops,
    perplexity,
    rds_plus,
)
from lipt.core.signals.signals import Signals
from lipt.core.signals.targeted import TargetSignals, numbered
from tests.core.selection.builders import signals_of


def targeted(num_examples: int, **values: Any) -> Signals:
    alike = {"features_ND": torch.ones(num_examples, 1), "target_features_MD": torch.ones(1, 1)}
    values = alike | values
    return signals_of(labels=[0] * num_examples, targeted=TargetSignals(**values))


largest = partial(loss_drop, spread=1.0)


def test_a_drop_is_a_share_of_the_loss_before() -> None:
    found = loss_drops(torch.tensor([2.0, 1.0, 0.5, 0.0]), torch.tensor([1.0, 0.9, 1.0, 0.0]))
    assert torch.allclose(found, torch.tensor([0.5, 0.1, -1.0, 0.0]).double(), atol=1e-6)


def test_the_largest_drops_are_chosen_and_ties_keep_the_datas_order() -> None:
    after_NP = torch.tensor([[0.9], [0.1], [0.5], [0.1], [0.0]])
    signals = targeted(5, losses_N=torch.ones(5), after_NP=after_NP)
    assert largest(signals, 2).indices_K.tolist() == [4, 1]
    assert largest(signals, 3).indices_K.tolist() == [4, 1, 3]


def test_of_twice_as_many_largest_drops_those_nearest_to_the_target_are_kept() -> None:
    # Drops fall with the number; the target looks like the numbers that are multiples of 3.
    features_ND = torch.eye(3)[torch.arange(100) % 3]
    signals = targeted(
        100,
        losses_N=torch.ones(100),
        after_NP=torch.linspace(0, 1, 100)[:, None],
        features_ND=features_ND,
        target_features_MD=torch.eye(3)[:1],
    )
    assert loss_drop(signals, 5).indices_K.tolist()[:4] == [0, 3, 6, 9]
    assert loss_drop(signals, 3, spread=4).indices_K.tolist() == [0, 3, 6]
    # At most half of what could be left out: 60 and 20 of the other 40.
    assert max(loss_drop(signals, 60).indices_K.tolist()) < 80
    assert sorted(loss_drop(signals, 100).indices_K.tolist()) == list(range(100))


def test_each_part_of_a_target_takes_its_best_in_turn() -> None:
    # The first part ranks 0, 1, 2, 3; the second 1, 3, 0, 2.
    after_NP = torch.tensor([[0.1, 0.3], [0.2, 0.1], [0.3, 0.4], [0.4, 0.2]])
    signals = targeted(4, losses_N=torch.ones(4), after_NP=after_NP)
    chosen = [largest(signals, number).indices_K.tolist() for number in (1, 2, 3, 4)]
    assert chosen == [[0], [0, 1], [0, 1, 3], [0, 1, 3, 2]]


def test_the_targets_own_examples_are_left_out_unless_they_are_asked_for() -> None:
    after_NP = torch.tensor([[0.1], [0.2], [0.3], [0.4]])
    own_N = torch.tensor([True, False, True, False])
    signals = targeted(4, losses_N=torch.ones(4), after_NP=after_NP, in_target_N=own_N)
    assert largest(signals, 2).indices_K.tolist() == [1, 3]
    assert largest(signals, 2, duplicates="keep").indices_K.tolist() == [0, 1]
    chosen = largest(signals, 3)
    assert chosen.indices_K.tolist() == [1, 3]
    assert chosen.stopped_early.startswith("2 of 4 examples duplicate one of the target's.")


def test_rds_plus_takes_the_nearest_by_angle_about_the_pools_mean() -> None:
    # The mean is 0, so angles are those of the points.
    pool_ND = torch.tensor([[1.0, 0.0], [5.0, 5.0], [-1.0, 0.0], [-5.0, -5.0]])
    target_MD = torch.tensor([[9.0, 1.0], [-0.1, -0.1]])
    signals = targeted(4, features_ND=pool_ND, target_features_MD=target_MD)
    assert rds_plus(signals, 2).indices_K.tolist() == [0, 3]
    assert rds_plus(signals, 4).indices_K.tolist() == [0, 3, 1, 2]


TEXTS = ["add the numbers", "sort the numbers", "add the words the", "print", "sort words"]


def slow_bm25(pool: list[list[str]], query: list[str]) -> list[float]:
    """Lucene's form: idf log(1 + (N - n + 0.5) / (n + 0.5)), k1 = 1.5, b = 0.75."""
    mean = np.mean([len(text) for text in pool])
    scores = []
    for text in pool:
        counts, score = Counter(text), 0.0
        for word in query:
            number = sum(word in other for other in pool)
            if number:
                rarity = math.log(1 + (len(pool) - number + 0.5) / (number + 0.5))
                norm = 1.5 * (1 - 0.75 + 0.75 * len(text) / mean)
                score += rarity * counts[word] / (counts[word] + norm)
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["sort numbers", "the the add", "nothing of this", "print words"])
def test_bm25_ranks_as_its_formula(query: str) -> None:
    pytest.importorskip("bm25s", reason="the extra lm is not installed")
    vocabulary = dict[str, int]()
    pool = [text.split() for text in TEXTS]
    words_NW = numbered(pool, vocabulary)
    target_MW = numbered([query.split()], vocabulary)
    signals = targeted(5, words_NW=words_NW, target_words_MW=target_MW)
    expected = np.argsort(-np.array(slow_bm25(pool, query.split())), kind="stable")
    assert bm25(signals, 5).indices_K.tolist() == expected.tolist()


def test_perplexity_keeps_the_middle_the_least_or_the_most() -> None:
    signals = targeted(5, losses_N=torch.tensor([5.0, 1.0, 3.0, 2.5, 9.0]))
    assert perplexity(signals, 2).indices_K.tolist() == [2, 3]
    assert perplexity(signals, 2, keep="least").indices_K.tolist() == [1, 3]
    assert perplexity(signals, 2, keep="most").indices_K.tolist() == [4, 0]


def test_ifd_keeps_the_largest_ratios_below_one_first() -> None:
    # Ratios 0.5, 0.9, 1.2, 1.0: the prompts of the last two do not help.
    with_N, without_N = torch.tensor([1.0, 1.8, 1.2, 2.0]), torch.tensor([2.0, 2.0, 1.0, 2.0])
    signals = targeted(4, losses_N=with_N, unprompted_N=without_N)
    assert ifd(signals, 4).indices_K.tolist() == [1, 0, 3, 2]


@given(
    st.integers(1, 12).flatmap(
        lambda size: st.tuples(
            st.lists(st.permutations(range(size)), min_size=1, max_size=4), st.integers(1, size)
        )
    )
)
def test_lists_take_turns_as_one_by_one(case: tuple[list[list[int]], int]) -> None:
    lists, budget = case
    expected = list(dict.fromkeys(row for rank in zip(*lists, strict=True) for row in rank))
    asked = list[int]()

    def best(num_ranks: int) -> Tensor:
        asked.append(num_ranks)
        return torch.tensor(lists)[:, :num_ranks]

    assert in_turn(best, budget, len(lists[0])).tolist() == expected[:budget]
    assert max(asked) <= len(lists[0])
