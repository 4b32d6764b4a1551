import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.core.selection.select import find_strategy
from lipt.core.selection.strategies.scores import (
    SMALLEST_PROBABILITY,
    contrast,
    el2n,
    entropies,
    entropy,
    grand,
    in_the_middle,
    keep_uncertain,
    last_layer_norms,
    least_confidence,
    margin,
    moderate,
    nearest,
    negative_margins,
)
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from lipt.core.signals.views import Need
from tests.core.selection.builders import of_probabilities, of_right, random_predictions, signals_of


def test_el2n_keeps_worst_examples_first() -> None:
    # Error norm is sqrt(2) * (1 - p): the order is p ascending.
    assert el2n(of_right(0.9, 0.2, 0.5), budget=2).indices_K.tolist() == [1, 2]
    # |(-0.65, 0.325, 0.325)| = 0.80 is less than |(-0.6, 0.6, 0)| = 0.85; its sum is larger.
    signals = of_probabilities([[0.35, 0.325, 0.325], [0.4, 0.6, 0.0]])
    assert el2n(signals, budget=1).indices_K.tolist() == [1]


def test_grand_multiplies_error_and_feature_or_ranks_norms() -> None:
    # |e| = sqrt(2) (1 - p) for p = 0.9, 0.2, 0.5; sqrt(|h|^2 + 1) = 13, 1, 2.
    features = torch.tensor([[168.0], [0.0], [3.0]]).sqrt()
    given = of_right(0.9, 0.2, 0.5, features_ND=features)
    expected = [2**0.5 * value for value in (1.3, 0.8, 1.0)]
    assert last_layer_norms(given).tolist() == pytest.approx(expected, rel=1e-5)
    assert grand(given, budget=2).indices_K.tolist() == [0, 2]
    without = replace(of_right(0.5, features_ND=torch.tensor([[3.0, 4.0]])), has_bias=False)
    assert last_layer_norms(without).tolist() == pytest.approx([0.5 * 2**0.5 * 5])
    given = replace(of_right(0.1, 0.2, 0.3), gradient_norms_N=torch.tensor([1.0, 3.0, 2.0]))
    assert grand(given, budget=2, parameters="all").indices_K.tolist() == [1, 2]
    assert find_strategy("grand").needs_for({"parameters": "all"}) == {Need.GRADIENT_NORMS}
    with pytest.raises(SignalsError):
        grand(of_right(0.1), budget=1, parameters="all")


def test_probabilities_stay_in_0_to_1() -> None:
    # One step of half precision beyond what an error can be; the score sees it in float32.
    errors_NC = torch.tensor([[-1.001, 1.001], [1.001, -1.001]]).half()
    seen: list[Tensor] = []

    def score(probabilities_BC: Tensor) -> Tensor:
        seen.append(probabilities_BC)
        return probabilities_BC[:, 0]

    chosen = keep_uncertain(signals_of(errors_NC=errors_NC, labels=[0, 1]), 1, score)
    assert torch.cat(seen).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert seen[0].dtype == torch.float32
    assert chosen.indices_K.tolist() == [1]


def test_the_most_uncertain_come_first() -> None:
    # In bits: 0, 1, 1.5 and log2 3; whatever the label is.
    rows = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]
    bits = (entropies(torch.tensor(rows)) / math.log(2)).tolist()
    assert bits == pytest.approx([0.0, 1.0, 1.5, math.log2(3)], abs=1e-6)
    assert entropy(of_probabilities(rows, [0, 2, 1, 0]), 3).indices_K.tolist() == [3, 2, 1]
    # The second is wrong: by its label its margin would be negative.
    rows = [[0.875, 0.125, 0.0], [0.5, 0.375, 0.125], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    given = of_probabilities(rows, [0, 2, 0, 1])
    assert negative_margins(torch.tensor(rows)).tolist() == [-0.75, -0.125, -0.25, 0.0]
    assert margin(given, 3).indices_K.tolist() == [3, 1, 2]
    assert least_confidence(given, 2).indices_K.tolist() == [1, 2]
    single = signals_of(errors_NC=torch.zeros(3, 1))
    for strategy in (entropy, margin, least_confidence):
        assert strategy(single, 2).indices_K.tolist() == [0, 1]
    # By its largest logit the second looks most confident; its probabilities are (.5, .5).
    logits_NC = torch.tensor([[2.0, 0.0], [100.0, 100.0], [-7.0, -8.0]])
    given = signals_of(errors_NC=errors_of(logits_NC, torch.tensor([0, 0, 0])))
    assert least_confidence(given, 3).indices_K.tolist() == [1, 2, 0]


def divergence(of: Tensor, from_: Tensor) -> float:
    return float((of * (of / from_).log()).sum())


def by_pairs(signals: Signals, count: int) -> list[float]:
    num_examples = len(signals)
    probabilities = signals.errors_NC.double()
    probabilities[torch.arange(num_examples), signals.labels_N] += 1
    rows = torch.nn.functional.normalize(signals.features_ND.double())
    scores = []
    for i in range(num_examples):
        others = [j for j in range(num_examples) if j != i]
        others.sort(key=lambda j, i=i: (float((rows[i] - rows[j]).norm()), j))
        near = others[:count]
        total = sum(divergence(probabilities[j], probabilities[i]) for j in near)
        scores.append(total / len(near))
    return scores


@pytest.mark.parametrize("count", [1, 3, 10, 59])
def test_contrast_equals_a_loop_over_pairs(count: int) -> None:
    signals = random_predictions(60)
    expected = by_pairs(signals, count)
    assert contrast(signals, count).tolist() == pytest.approx(expected, rel=1e-5)


def test_contrast_of_extreme_predictions_is_finite() -> None:
    # p is 1 and 0 against 0 and 1; a zero counts as the smallest probability.
    expected = (1 - SMALLEST_PROBABILITY) * -math.log(SMALLEST_PROBABILITY)
    assert contrast(of_right(1.0, 0.0), 1).tolist() == pytest.approx([expected] * 2)


def test_nearest_breaks_ties_by_column() -> None:
    above, below = 1 + 2.0**-50, 1 - 2.0**-53
    rows = [[3.0, above, 1.0, torch.inf, 0.5], [3.0, 1.0, below, torch.inf, 0.5]]
    distances = torch.tensor([*rows, [0.0, 0.0, torch.inf, 1e-300, 0.0]], dtype=torch.float64)
    assert nearest(distances, 4).tolist() == [[4, 1, 2, 0], [4, 1, 2, 0], [0, 1, 4, 3]]


def by_definition(signals: Signals, budget: int) -> list[int]:
    distances = {}
    for label in signals.labels_N.unique().tolist():
        ids = torch.nonzero(signals.labels_N == label).flatten()
        rows = signals.features_ND[ids].double()
        middle = rows.quantile(0.5, dim=0)
        distances |= dict(zip(ids.tolist(), (rows - middle).norm(dim=1).tolist(), strict=True))
    # The middle two of an even number are as far from the median between them.
    order = sorted(distances, key=lambda i: (round(distances[i], 6), i))
    start = round((len(signals) - budget) / 2)
    return order[start : start + budget]


def test_moderate_equals_its_definition_with_ties() -> None:
    # Ranks 2 to 4 of 7: one of the three 1s, the 2, and one of the three 3s.
    values = torch.tensor([3.0, 1.0, 1.0, 2.0, 1.0, 3.0, 3.0])
    assert in_the_middle(values, 3).tolist() == [1, 3, 0]
    assert in_the_middle(torch.ones(7), 3).tolist() == [0, 1, 2]
    for num_examples in (1, 2, 10, 101):
        signals = random_predictions(num_examples, 3, 5)
        for budget in {1, num_examples // 3 + 1, num_examples}:
            expected = by_definition(signals, budget)
            assert moderate(signals, budget).indices_K.tolist() == expected
