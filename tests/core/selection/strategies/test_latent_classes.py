from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import SignalsError
from lipt.core.selection.strategies.latent_classes import clip_score, clipcov, pair_terms, sas
from lipt.core.signals.signals import Signals, given
from tests.core.selection.builders import signals_of


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


def slow_own_terms(signals: Signals) -> list[float]:
    assert signals.paired_features_NP is not None
    v = functional.normalize(signals.features_ND.double(), dim=1)
    t = functional.normalize(signals.paired_features_NP.double(), dim=1)
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
    assert signals.paired_features_NP is not None
    v = functional.normalize(signals.features_ND.double(), dim=1)
    t = functional.normalize(signals.paired_features_NP.double(), dim=1)
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


def slow_greedy(signals: Signals, budget: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(budget):
        left = [i for i in range(len(signals)) if i not in chosen]
        chosen.append(max(left, key=lambda i: objective(signals, [*chosen, i])))
    return chosen


@pytest.mark.parametrize(("num_examples", "num_classes"), [(1, 1), (12, 1), (15, 3), (9, 9)])
def test_equals_greedy_on_the_objective_written_out(num_examples: int, num_classes: int) -> None:
    signals = random_pairs(num_examples, num_classes, seed=num_examples)
    assert given(pair_terms(signals).prepared_N, "terms").tolist() == pytest.approx(
        slow_own_terms(signals), abs=1e-5
    )
    chosen = clipcov(pair_terms(signals), num_examples).indices_K.tolist()
    assert chosen == slow_greedy(signals, num_examples)


def test_pairs_without_captions_or_of_another_width_are_refused() -> None:
    signals = random_pairs(4, 2)
    with pytest.raises(SignalsError, match="no paired features: compute them first, or give them"):
        pair_terms(replace(signals, paired_features_NP=None))
    with pytest.raises(SignalsError, match=r"features have 6 columns .* 3\. Give"):
        pair_terms(replace(signals, paired_features_NP=torch.ones(4, 3)))


# Cosines 1, -1, 0, sqrt(1/2) and 0.
SIGNALS = of_pairs(
    torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 2.0], [1.0, 0.0]]),
    torch.tensor([[5.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 7.0]]),
    labels=[0, 0, 0, 1, 1],
)


def test_the_least_alike_are_dropped_and_ties_keep_their_order() -> None:
    assert clip_score(SIGNALS, 4).indices_K.tolist() == [0, 3, 2, 4]
    assert clip_score(SIGNALS, 2).weights_K.tolist() == [1.0, 1.0]


def test_hand_computed_picks() -> None:
    x, y = [1.0, 0.0], [0.0, 1.0]
    signals = signals_of(torch.tensor([y, x, x, y, x]))
    # Gains: x 2, y 1 -> 1. Then x 1 - 1 = 0, y 1 -> 0. Then x 0, y -1 -> 2. Then x -2, y -1.
    assert sas(signals, 5, seed=0).indices_K.tolist() == [1, 0, 2, 3, 4]
    assert sas(signals, 2, seed=0).weights_K.tolist() == [1.0, 1.0]


def test_clusters_are_latent_classes_where_asked_for() -> None:
    # Two directions, 30 and 10 examples, labelled across them.
    generator = torch.Generator().manual_seed(3)
    latent_N = torch.tensor([0] * 30 + [1] * 10)
    features_ND = torch.eye(3)[latent_N] + 0.05 * torch.randn(40, 3, generator=generator)
    signals = signals_of(features_ND, labels=[row % 5 for row in range(40)])
    chosen = sas(signals, 12, num_clusters=2, seed=0).indices_K
    assert latent_N[chosen].bincount().tolist() == [6, 6]
    without_labels = signals_of(features_ND, labels=latent_N.tolist())
    assert set(sas(without_labels, 12, seed=0).indices_K.tolist()) == set(chosen.tolist())
