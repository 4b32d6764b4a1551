from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import validate
from lipt.common.errors import CorruptBlobError
from lipt.common.targets.values import SingleLabel
from lipt.core.evaluation import Evaluator, Evaluators, num_evaluated_together
from lipt.core.soup import OpenWeights, Soup, greedy_soup
from tests.core.signals.made_up import IMAGE, made_up_dataset, made_up_network

DATASET = made_up_dataset(120)
EVERY = torch.arange(120)


def evaluators(number: int) -> Evaluators:
    first = Evaluator(
        model=made_up_network(),
        inputs=IMAGE,
        device="cpu",
        examples_N=DATASET.examples(EVERY),
        target=SingleLabel(3),
        targets_N=DATASET.labels_N,
        batch_norm_examples_M=DATASET.examples(EVERY[:64]),
        batch_size=32,
    )
    return Evaluators([first, *(first.twin(made_up_network()) for _ in range(1, number))])


def learners(number: int) -> list[OpenWeights]:
    # Made beforehand: they draw from the process's generator.
    made = [made_up_network(seed=seed).state_dict() for seed in range(number)]
    return [lambda weights=weights: weights for weights in made]


def soup(num_evaluators: int) -> Soup:
    scored = evaluators(num_evaluators)
    return greedy_soup(learners(4), scored, num_alphas=5, on_progress=lambda *_: None)


def test_scores_are_those_of_one_evaluator_and_in_order() -> None:
    [alone] = evaluators(1).evaluators
    expected = [alone(opened()) for opened in learners(7)]
    found = list(evaluators(3)(learners(7), -math.inf))
    assert [scored.accuracy for scored in found] == [scored.accuracy for scored in expected]
    for scored, wanted in zip(found, expected, strict=True):
        assert scored.mended.keys() == wanted.mended.keys()
        assert all(torch.equal(scored.mended[name], wanted.mended[name]) for name in wanted.mended)


def test_a_soup_is_the_same_to_the_bit_however_many_are_scored_at_a_time() -> None:
    one, several = soup(1), soup(3)
    assert several.ingredients == one.ingredients
    assert all(torch.equal(several.weights[name], one.weights[name]) for name in one.weights)


def test_as_many_are_scored_at_a_time_as_there_are_evaluators() -> None:
    # Broken, and so an error, unless two are open at the same time.
    both, weights = threading.Barrier(2, timeout=60.0), made_up_network().state_dict()

    def opened() -> Mapping[str, Tensor]:
        both.wait()
        return weights

    assert len(list(evaluators(2)([opened] * 6, -math.inf))) == 6


def test_each_thread_computes_alone() -> None:
    seen: list[int] = []
    weights = made_up_network().state_dict()

    def opened() -> Mapping[str, Tensor]:
        seen.append(torch.get_num_threads())
        return weights

    before = torch.get_num_threads()
    list(evaluators(2)([opened] * 4, -math.inf))
    assert seen == [1] * 4
    assert torch.get_num_threads() == before


def test_what_cannot_be_opened_is_told() -> None:
    def damaged() -> Mapping[str, Tensor]:
        raise CorruptBlobError("the learner's file was changed. Train it again.")

    with pytest.raises(CorruptBlobError, match="was changed"):
        list(evaluators(2)([*learners(2), damaged, *learners(1)], -math.inf))


def test_inputs_are_made_once_for_all() -> None:
    first, second = evaluators(2).evaluators
    first(made_up_network().state_dict())
    assert second.batches is first.batches
    assert second.batch_norm_batches is first.batch_norm_batches
    assert second.model is not first.model


@pytest.mark.parametrize(
    ("threads", "num_learners", "num_alphas", "together"),
    [(1, 10, 10, 1), (2, 10, 10, 2), (64, 10, 10, 10), (64, 3, 21, 20), (64, 1, 1, 1)],
)
def test_no_more_are_scored_at_a_time_than_are_asked_for(
    threads: int, num_learners: int, num_alphas: int, together: int
) -> None:
    given = {
        "evaluation_threads": threads,
        "learners": {"num_learners": num_learners},
        "soup": {"num_alphas": num_alphas},
    }
    assert num_evaluated_together(validate(RunConfig, given)) == together
