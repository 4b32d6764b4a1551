from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.determinism import derive_generator
from lipt.common.errors import SignalsError
from lipt.core.selection.solvers.linear_cut import best_first, exact_bits, unit_rows
from lipt.core.selection.strategies.greedy import (
    disparity_gains,
    draw_sample,
    graph_cut,
    herding,
    kcenter,
    log_det,
    milo,
)
from lipt.core.selection.strategies.latent_classes import clip_score, clipcov, pair_terms, sas
from lipt.core.selection.vectors import CosineKernel, ProductRows, Space
from lipt.core.signals.signals import Signals
from lipt.core.signals.views import PairedFeatures
from tests.core.selection.builders import (
    at_angles,
    in_space,
    random_signals,
    random_subsets,
    signals_of,
    written_out,
)

spaces = pytest.mark.parametrize("space", ["features", "gradients"])


def similarities(signals: Signals, space: Space) -> Tensor:
    return CosineKernel(ProductRows(in_space(signals, space))).rows(torch.arange(len(signals)))


def greedily(num_examples: int, value: Callable[[list[int]], float]) -> list[int]:
    """All examples, each with the largest value; those that differ by rounding tie."""
    chosen: list[int] = []
    while len(chosen) < num_examples:
        left = [i for i in range(num_examples) if i not in chosen]
        values = [round(value([*chosen, i]), 6) for i in left]
        chosen.append(left[values.index(max(values))])
    return chosen


def test_gains_equal_in_float32_tie() -> None:
    gains_N = 1 + torch.tensor([0.0, 2.0**-40, 2.0**-30]).double()
    found = best_first(gains_N, 3, lambda positions_B: torch.zeros(len(positions_B), 3))
    assert [position for position, _ in found] == [0, 1, 2]


@pytest.mark.parametrize("rows_ahead", [1, 2, 4, 100])
def test_similarity_rows_are_computed_for_remaining_examples(rows_ahead: int) -> None:
    asked: list[int] = []

    def rows_of(positions_B: Tensor) -> Tensor:
        asked.append(len(positions_B))
        return positions_B[:, None].double().expand(-1, 6)

    # All tie, so the largest that a sort finds need not hold the one that is picked.
    found = best_first(torch.zeros(6).double(), 5, rows_of, rows_ahead=rows_ahead)
    assert [(pick, float(row_N[0])) for pick, row_N in found] == [(i, float(i)) for i in range(5)]
    assert max(asked) <= min(rows_ahead, 5)


def radius(distances_NN: Tensor, chosen: list[int]) -> float:
    return float(distances_NN[chosen].min(dim=0).values.max())


@spaces
def test_kcenter_equals_its_choice_from_all_pairs(space: Space) -> None:
    signals = random_signals(150)
    vectors_NG = written_out(signals, space)
    distances_NN = torch.cdist(vectors_NG, vectors_NG)
    expected = [int((vectors_NG - vectors_NG.mean(dim=0)).norm(dim=1).argmin())]
    while len(expected) < 150:
        expected.append(int(distances_NN[expected].min(dim=0).values.argmax()))
    assert kcenter(signals, 150, space=space).indices_K.tolist() == expected
    drawn = [radius(distances_NN, subset.tolist()) for subset in random_subsets(150, 15)]
    assert radius(distances_NN, expected[:15]) < min(drawn)


def cut(similarities_NN: Tensor, chosen: list[int], coverage: float = 2.0) -> float:
    within = similarities_NN[chosen][:, chosen].sum()
    return float(coverage * similarities_NN[chosen].sum() - within)


@spaces
@pytest.mark.parametrize("coverage", [0.0, 0.5, 2.0, 10.0])
def test_graph_cut_picks_the_largest_gains(space: Space, coverage: float) -> None:
    signals = random_signals(40)
    similarities_NN = similarities(signals, space)
    expected = greedily(40, lambda chosen: cut(similarities_NN, chosen, coverage))
    chosen = graph_cut(signals, 40, space=space, coverage=coverage).indices_K.tolist()
    assert chosen == expected
    if coverage == 2.0:
        values = [cut(similarities_NN, chosen[:k]) for k in range(41)]
        gains = [after - before for before, after in pairwise(values)]
        assert min(gains) > 0
        assert all(later <= earlier + 1e-9 for earlier, later in pairwise(gains))
        drawn = [cut(similarities_NN, subset.tolist()) for subset in random_subsets(40, 10)]
        assert values[10] > max(drawn)


def log_volume(similarities_NN: Tensor, chosen: list[int], ridge: float) -> float:
    kernel = similarities_NN[chosen][:, chosen] + ridge * torch.eye(len(chosen))
    return float(torch.linalg.slogdet(kernel).logabsdet)


@spaces
@pytest.mark.parametrize("ridge", [1e-3, 0.1, 1.0])
def test_log_det_picks_the_largest_determinants(space: Space, ridge: float) -> None:
    # More than the rows that are computed ahead.
    signals = random_signals(40, 3, 8)
    similarities_NN = similarities(signals, space)
    expected = greedily(40, lambda chosen: log_volume(similarities_NN, chosen, ridge))
    assert log_det(signals, 40, space=space, ridge=ridge).indices_K.tolist() == expected
    # With the wrong sign it would be far below random choices.
    draws = [log_volume(similarities_NN, drawn.tolist(), ridge) for drawn in random_subsets(40, 9)]
    assert log_volume(similarities_NN, expected[:9], ridge) > max(draws)


def by_definition(features_ND: Tensor, budget: int) -> list[int]:
    """argmin |(i + 1) mu - sum_S - x|, in float64."""
    rows = features_ND.double()
    mean, total = rows.mean(dim=0), torch.zeros_like(rows[0])
    chosen: list[int] = []
    for pick in range(budget):
        away = ((pick + 1) * mean - total - rows).norm(dim=1)
        away[chosen] = torch.inf
        chosen.append(int(away.argmin()))
        total += rows[chosen[-1]]
    return chosen


@pytest.mark.parametrize(
    ("num_features", "offset"), [(1, 0.0), (3, 0.0), (16, 0.0), (16, 100.0), (300, 5.0)]
)
def test_herding_equals_its_definition(num_features: int, offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.randn(120, num_features, generator=generator) + offset
    expected = by_definition(features_ND, 120)
    assert herding(signals_of(features_ND), 120).indices_K.tolist() == expected


def cosines(signals: Signals) -> Tensor:
    unit_ND = functional.normalize(signals.features_ND.double())
    return unit_ND @ unit_ND.T


def plain_disparity_gains(signals: Signals) -> list[float]:
    unit_ND = functional.normalize(signals.features_ND.double())
    distances_NN = 1 - cosines(signals)
    taken = [int((unit_ND - unit_ND.mean(dim=0)).norm(dim=1).argmin())]
    gains = [0.0] * len(signals)
    while len(taken) < len(signals):
        left = [row for row in range(len(signals)) if row not in taken]
        nearest = {row: float(distances_NN[row, taken].min()) for row in left}
        taken.append(max(left, key=lambda row: nearest[row]))
        gains[taken[-1]] = nearest[taken[-1]] / float(distances_NN.max())
    return gains


@pytest.mark.parametrize("num_examples", [1, 2, 3, 90])
def test_disparity_gains_are_those_of_plain_greedy(num_examples: int) -> None:
    signals = random_signals(num_examples)
    rows_ND = unit_rows(signals.features_ND, exact_bits(num_examples))
    expected = plain_disparity_gains(signals)
    assert disparity_gains(rows_ND).tolist() == pytest.approx(expected, abs=1e-5)


def test_milo_draws_diverse_subsets_and_takes_the_best() -> None:
    # Gains 0, 0.25, 1, 0 and 0.
    signals = signals_of(at_angles(0, 60, 180, 0, 0))
    drawn = [
        int(milo(signals, 1, stage="diverse", draw=draw, seed=0).indices_K) for draw in range(2000)
    ]
    for row, weight in enumerate([1.0, 1.28125, 2.5, 1.0, 1.0]):
        # The deviation is 0.0108 at most.
        assert drawn.count(row) / 2000 == pytest.approx(weight / 6.78125, abs=0.04)
    # Of two picks each sample is larger than the data: plain greedy on the graph cut.
    signals = random_signals(40)
    similarity_NN = (1 + cosines(signals)) / 2
    own_N = similarity_NN.sum(dim=1) - 0.4 * similarity_NN.diagonal()
    first = int(own_N.argmax())
    gains_N = own_N - 0.8 * similarity_NN[first]
    gains_N[first] = -torch.inf
    assert milo(signals, 2, seed=0).indices_K.tolist() == [first, int(gains_N.argmax())]


def test_easy_takes_the_first_of_equal_examples_of_each_sample() -> None:
    # Of 30 for 20 picks, 4 examples each: with equal gains the lowest of each sample is taken.
    signals, seen = signals_of(torch.ones(30, 2)), []
    chosen = milo(signals, 20, seed=0).indices_K.tolist()
    left, generator = list(range(30)), derive_generator(0, "milo-easy", 0)
    for pick in chosen:
        sample = draw_sample(left, 4, generator)
        ids = [candidate for candidate, _ in sample]
        seen.append(len(set(ids)))
        assert pick == ids[0] == min(ids)
        left[sample[0][1]] = left[-1]
        left.pop()
    assert seen == [4] * 20
    assert len(set(chosen)) == 20
    generator = torch.Generator().manual_seed(0)
    drawn = [draw_sample([7, 8, 9], 1, generator)[0][0] for _ in range(300)]
    assert all(70 < drawn.count(candidate) < 130 for candidate in (7, 8, 9))


def of_pairs(images_ND: Tensor, captions_ND: Tensor, labels: list[int]) -> Signals:
    return Signals(
        torch.empty(len(labels), 0), images_ND, torch.tensor(labels), paired_features_NP=captions_ND
    )


def random_pairs(num_examples: int, num_classes: int, seed: int = 0) -> Signals:
    generator = torch.Generator().manual_seed(seed)
    labels = [row % num_classes for row in range(num_examples)]
    means_CD = torch.randn(num_classes, 6, generator=generator)
    images_ND, captions_ND = (
        means_CD[labels] + torch.randn(num_examples, 6, generator=generator) for _ in range(2)
    )
    return of_pairs(images_ND, captions_ND, labels)


def unit_pairs(signals: Signals) -> tuple[Tensor, Tensor]:
    assert signals.paired_features_NP is not None
    v = functional.normalize(signals.features_ND.double(), dim=1)
    return v, functional.normalize(signals.paired_features_NP.double(), dim=1)


def slow_own_terms(signals: Signals) -> list[float]:
    v, t = unit_pairs(signals)
    labels = signals.labels_N.tolist()
    rows = {label: [i for i, own in enumerate(labels) if own == label] for label in set(labels)}
    image_centres = {c: functional.normalize(v[at].sum(dim=0), dim=0) for c, at in rows.items()}
    caption_centres = {c: functional.normalize(t[at].sum(dim=0), dim=0) for c, at in rows.items()}
    terms = []
    for i, label in enumerate(labels):
        others = [c for c in rows if c != label]
        away = sum(
            float(v[i] @ caption_centres[c] + t[i] @ image_centres[c]) for c in others
        ) / max(1, len(others))
        terms.append(float(2 * v[i] @ t[i] + 0.5 * t[i] @ caption_centres[label]) - away)
    return terms


def objective(signals: Signals, chosen: list[int]) -> float:
    v, t = unit_pairs(signals)
    own_terms_N = slow_own_terms(signals)
    total = sum(own_terms_N[i] for i in chosen)
    inside_N = torch.zeros(len(signals), dtype=torch.bool)
    inside_N[chosen] = True
    for label in signals.labels_N.unique():
        of_class = signals.labels_N == label
        here, there = of_class & inside_N, of_class & ~inside_N
        cross = (v[here] @ t[there].T + t[here] @ v[there].T).sum()
        total += float(cross) / int(of_class.sum())
    return total


@pytest.mark.parametrize(("num_examples", "num_classes"), [(1, 1), (12, 1), (15, 3), (9, 9)])
def test_clipcov_is_greedy_on_its_objective(num_examples: int, num_classes: int) -> None:
    signals = random_pairs(num_examples, num_classes, seed=num_examples)
    terms = pair_terms(PairedFeatures.of(signals))
    assert terms.terms_N.tolist() == pytest.approx(slow_own_terms(signals), abs=1e-5)
    chosen = clipcov(terms, num_examples).indices_K.tolist()
    assert chosen == clipcov(signals, num_examples).indices_K.tolist()
    assert chosen == greedily(num_examples, lambda chosen: objective(signals, chosen))


def test_pairs_without_captions_or_of_another_width_are_refused() -> None:
    signals = random_pairs(4, 2)
    with pytest.raises(SignalsError, match=r"no paired features\. Give a safetensors file"):
        clipcov(replace(signals, paired_features_NP=None), 2)
    for strategy in (clipcov, clip_score):
        with pytest.raises(SignalsError, match=r"features have 6 columns .* 3\. Give"):
            strategy(replace(signals, paired_features_NP=torch.ones(4, 3)), 2)


def test_clip_score_drops_the_least_similar_pairs() -> None:
    # Cosines 1, -1, 0, sqrt(1/2) and 0.
    signals = of_pairs(
        torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 2.0], [1.0, 0.0]]),
        torch.tensor([[5.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 7.0]]),
        labels=[0, 0, 0, 1, 1],
    )
    assert clip_score(signals, 4).indices_K.tolist() == [0, 3, 2, 4]
    assert clip_score(signals, 2).weights_K.tolist() == [1.0, 1.0]


def test_hand_computed_picks() -> None:
    x, y = [1.0, 0.0], [0.0, 1.0]
    signals = signals_of(torch.tensor([y, x, x, y, x]))
    # Gains: x 2, y 1 -> 1. Then x 1 - 1 = 0, y 1 -> 0. Then x 0, y -1 -> 2. Then x -2, y -1.
    assert sas(signals, 5, seed=0).indices_K.tolist() == [1, 0, 2, 3, 4]
    assert sas(signals, 2, seed=0).weights_K.tolist() == [1.0, 1.0]


def test_sas_uses_clusters_by_option() -> None:
    # Two directions, 30 and 10 examples, labelled across them.
    generator = torch.Generator().manual_seed(3)
    latent_N = torch.tensor([0] * 30 + [1] * 10)
    features_ND = torch.eye(3)[latent_N] + 0.05 * torch.randn(40, 3, generator=generator)
    signals = signals_of(features_ND, labels=[row % 5 for row in range(40)])
    chosen = sas(signals, 12, num_clusters=2, seed=0).indices_K
    assert latent_N[chosen].bincount().tolist() == [6, 6]
    without_labels = signals_of(features_ND, labels=latent_N.tolist())
    assert set(sas(without_labels, 12, seed=0).indices_K.tolist()) == set(chosen.tolist())
