"""Every strategy beats random on what it is for, balanced and not.

What each is for is written down here once more, from its definition, on gradients
written out and whole matrices: this is what a fast implementation is a shortcut to.

Shapes: N examples, V validation examples, C classes, D features, G gradient entries, K chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.quotas import class_quotas
from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.select import select
from lipt.core.selection.solvers.spherical_kmeans import spherical_kmeans
from lipt.core.selection.strategy import Balance
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals, probabilities_of
from tests.core.selection.builders import full_signals, written_out

pytestmark = pytest.mark.slow

# (signals of all or of one class, chosen rows, their weights) -> a value, HIGHER is better.
Value = Callable[[Signals, Tensor, Tensor], float]

BUDGET = 24
NUM_RANDOM = 20
LABELS = [0, 1, 2, 3, 1, 2, 3, 2, 3, 3] * 20


def probabilities(signals: Signals) -> Tensor:
    return probabilities_of(signals.errors_NC, signals.labels_N, torch.float64)


def over_moments(dynamics: Dynamics, name: str) -> list[Tensor]:
    """Of each example theta*, once, and the moments of the learners not trained on it."""
    values_NLT = getattr(dynamics, name).double()
    return [
        torch.tensor(
            [
                float(values_LT[0, 0]),
                *(
                    float(value)
                    for learner, values_T in enumerate(values_LT)
                    if learner != own
                    for value in values_T[1:]
                ),
            ],
            dtype=torch.float64,
        )
        for values_LT, own in zip(values_NLT, dynamics.own_learner_N.tolist(), strict=True)
    ]


def mean_over_moments(dynamics: Dynamics, name: str) -> Tensor:
    return torch.stack([values.mean() for values in over_moments(dynamics, name)])


def mean_score(score: Callable[[Signals], Tensor]) -> Value:
    return lambda signals, chosen_K, _: float(score(signals)[chosen_K].double().mean())


def entropy(signals: Signals) -> Tensor:
    return -torch.special.xlogy(probabilities(signals), probabilities(signals)).sum(dim=1)


def negative_margin(signals: Signals) -> Tensor:
    """Minus the largest probability less the second largest."""
    top_N2 = probabilities(signals).topk(2, dim=1).values
    return top_N2[:, 1] - top_N2[:, 0]


def forgetting_events(signals: Signals) -> Tensor:
    """Right, then wrong; one that is never right counts more than any number of events."""
    dynamics = signals.learners()
    events = []
    for right_LT, own in zip(
        dynamics.margins_NLT > 0, dynamics.own_learner_N.tolist(), strict=True
    ):
        others_LT = right_LT[[learner for learner in range(len(right_LT)) if learner != own]]
        forgotten = (others_LT[:, :-1] & ~others_LT[:, 1:]).sum() / len(others_LT)
        events.append(float(forgotten) if others_LT.any() else 100.0)
    return torch.tensor(events)


def dual_weight(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """The mean of what examples are drawn by: difficulty x deviation x Beta density."""
    moments = over_moments(signals.learners(), "probabilities_NLT")
    means_N = torch.stack([moments_M.mean() for moments_M in moments])
    spreads_N = torch.stack([moments_M.std(correction=0) for moments_M in moments])
    scores_N = (1 - means_N) * spreads_N
    hardest_mean = means_N[scores_N.topk(10).indices].mean()
    b = 15 * (1 - hardest_mean) * (1 - (1 - len(chosen_K) / len(signals)) ** 5.5)
    density = torch.distributions.Beta(16 - b, b).log_prob(means_N).exp()
    return float((scores_N * density)[chosen_K].mean())


def contrast(signals: Signals) -> Tensor:
    """The mean divergence of the 10 examples with the nearest directions from each."""
    directions_ND = functional.normalize(signals.features_ND.double(), dim=1)
    distances_NN = torch.cdist(directions_ND, directions_ND)
    distances_NN.fill_diagonal_(torch.inf)
    nearest_NM = distances_NN.topk(min(10, len(signals) - 1), largest=False).indices
    log_NC = probabilities(signals).clamp_min(1e-8).log()
    own_N1C, others_NMC = log_NC[:, None], log_NC[nearest_NM]
    return (others_NMC.exp() * (others_NMC - own_N1C)).sum(dim=2).mean(dim=1)


def nearness_to_median(signals: Signals) -> Tensor:
    """Minus how many ranks lie between an example's distance and the middle of all."""
    distances_N = torch.empty(len(signals), dtype=torch.float64)
    for label in signals.labels_N.unique():
        mine_N = signals.labels_N == label
        features = signals.features_ND[mine_N].double()
        distances_N[mine_N] = (features - features.quantile(0.5, dim=0)).norm(dim=1)
    ranks_N = distances_N.argsort().argsort()
    return -(ranks_N - (len(signals) - 1) / 2).abs()


def represented(vectors: Callable[[Signals], Tensor]) -> Value:
    """CRAIG: minus the sum of distances to the nearest chosen example."""

    def value(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
        rows = vectors(signals)
        return -float(torch.cdist(rows, rows[chosen_K]).min(dim=1).values.sum())

    return value


def preconditioned(signals: Signals) -> Tensor:
    """Gradients divided by class and feature means of the Hessian's exact diagonal."""
    variances_NC = probabilities(signals) * (1 - probabilities(signals))
    ones_N1 = torch.ones(len(signals), 1, dtype=torch.float64)
    features_NF = torch.cat([signals.features_ND.double(), ones_N1], dim=1)
    diagonal_CF = variances_NC.T @ features_NF.square() / len(signals)
    by_class, by_feature = diagonal_CF.mean(dim=1), diagonal_CF.mean(dim=0)
    scale_CF = torch.outer(by_class / by_class.mean(), by_feature / by_feature.mean())
    return written_out(signals) / (scale_CF.flatten() + 0.01)


def unlearned_represented(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """CREST: minus the distances of errors to the nearest chosen one, learned examples left out."""
    errors_NC = signals.errors_NC.double()
    own_N = probabilities(signals)[torch.arange(len(signals)), signals.labels_N]
    unlearned_MC = errors_NC[-own_N.log() >= 0.1]
    return -float(torch.cdist(unlearned_MC, errors_NC[chosen_K]).min(dim=1).values.sum())


def similarities(signals: Signals) -> Tensor:
    unit = functional.normalize(written_out(signals), dim=1)
    return 0.5 + 0.5 * unit @ unit.T


def facility_location(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    return float(similarities(signals)[:, chosen_K].max(dim=1).values.sum())


def graph_cut(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    matrix = similarities(signals)
    return float(2 * matrix[:, chosen_K].sum() - matrix[chosen_K][:, chosen_K].sum())


def log_det(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    matrix = similarities(signals)[chosen_K][:, chosen_K]
    return float(torch.logdet(matrix + 1e-3 * torch.eye(len(chosen_K))))


def gradient_match(signals: Signals, chosen_K: Tensor, weights_K: Tensor) -> float:
    """Minus the residual, each answer with the one scale that is best for it."""
    rows = written_out(signals)
    target, matched = rows.mean(dim=0), weights_K.double() @ rows[chosen_K]
    scale = (matched @ target) / matched.square().sum()
    return -float((target - scale * matched).norm())


def one_step_loss(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """Minus the validation loss after GLISTER's default step, of the chosen gradients' sum."""
    held = signals.validation
    assert held is not None
    step_CF = written_out(signals)[chosen_K].sum(dim=0).view(held.errors_NC.shape[1], -1)
    features_VF = torch.cat([held.features_ND.double(), torch.ones(len(held), 1)], dim=1)
    logits_VC = probabilities(held).clamp_min(1e-30).log() - 0.05 * features_VF @ step_CF.T
    return -float(functional.cross_entropy(logits_VC, held.labels_N))


def centre_radius(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    features = signals.features_ND.double()
    return -float(torch.cdist(features, features[chosen_K]).min(dim=1).values.max())


def mean_kept(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    features = signals.features_ND.double()
    return -float((features[chosen_K].mean(dim=0) - features.mean(dim=0)).norm())


def strata_reached(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """How many of 50 intervals of EL2N are reached, less the hardest tenth that is."""
    scores_N = signals.errors_NC.double().norm(dim=1)
    cut = scores_N.argsort()[len(scores_N) - round(0.1 * len(scores_N)) :]
    left_N = torch.ones(len(scores_N), dtype=torch.bool)
    left_N[cut] = False
    low, high = scores_N[left_N].aminmax()
    chosen_low_K = chosen_K[left_N[chosen_K]]
    strata = ((scores_N[chosen_low_K] - low) / (high - low) * 50).long().clamp(max=49)
    return len(strata.unique()) - (len(chosen_K) - len(chosen_low_K))


def similar_to_others(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """SAS: cosines of the chosen to what is not chosen, within each class."""
    unit = functional.normalize(signals.features_ND.double(), dim=1)
    same = signals.labels_N[:, None] == signals.labels_N
    rest_N = torch.ones(len(signals), dtype=torch.bool)
    rest_N[chosen_K] = False
    return float(((unit @ unit.T) * same)[rest_N][:, chosen_K].sum())


def agreement(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """The mean cosine of the chosen images with their own captions."""
    assert signals.paired_features_NP is not None
    images, captions = signals.features_ND[chosen_K], signals.paired_features_NP[chosen_K]
    return float(functional.cosine_similarity(images, captions).mean())


def cross_covariance(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """ClipCov's cross term, easiness and label term; of one class there are no other centres."""
    assert signals.paired_features_NP is not None
    images = functional.normalize(signals.features_ND.double(), dim=1)
    captions = functional.normalize(signals.paired_features_NP.double(), dim=1)
    agreement_NN = images @ captions.T
    agreement_NN = agreement_NN + agreement_NN.T
    labels = signals.labels_N.unique().tolist()
    centres = {
        label: tuple(
            functional.normalize(rows[signals.labels_N == label].mean(dim=0), dim=0)
            for rows in (images, captions)
        )
        for label in labels
    }
    value = 0.0
    for label in labels:
        mine_K = chosen_K[signals.labels_N[chosen_K] == label]
        rest_N = signals.labels_N == label
        size = int(rest_N.sum())
        rest_N[mine_K] = False
        value += float(agreement_NN[mine_K][:, rest_N].sum()) / size
        value += float(2 * (images[mine_K] * captions[mine_K]).sum())
        value += float(0.5 * (captions[mine_K] @ centres[label][1]).sum())
        for other in labels:
            if other != label:
                foreign = images[mine_K] @ centres[other][1] + captions[mine_K] @ centres[other][0]
                value -= float(foreign.sum()) / (len(labels) - 1)
    return value


def direction_distances(signals: Signals) -> Tensor:
    """1 - cosine of the features of all pairs."""
    unit = functional.normalize(signals.features_ND.double(), dim=1)
    return 1 - unit @ unit.T


def evenness(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """Stratified: minus the imbalance among cells that k-means finds from other starts."""
    imbalance = 0.0
    for seed in range(5):
        cells_N = spherical_kmeans(
            signals.features_ND,
            -(-len(chosen_K) // 2),
            generator=torch.Generator().manual_seed(seed),
        )
        counts_G = cells_N[chosen_K].bincount(minlength=int(cells_N.max()) + 1).double()
        imbalance += float(counts_G.var(correction=0))
    return -imbalance


def weighed_by_density(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """SubZeroCore: facility location, by how usual the distance of the nth neighbour is."""
    size, budget = len(signals), len(chosen_K)
    of_others = math.comb(size - 1, budget)
    count = next(
        n for n in range(1, size) if 1 - math.comb(size - 1 - n, budget) / of_others >= 0.6
    )
    distances_NN = direction_distances(signals)
    radii_N = distances_NN.sort(dim=1).values[:, count]
    weights_N = (-(radii_N - radii_N.mean()).square() / (2 * radii_N.var(correction=0))).exp()
    return float((weights_N * (2 - distances_NN))[:, chosen_K].max(dim=1).values.sum())


def typical(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """MILO's easy stage: likeness to all, less 0.4 of that to each other."""
    likeness_NN = 1 - direction_distances(signals) / 2
    return float(likeness_NN[:, chosen_K].sum() - 0.4 * likeness_NN[chosen_K][:, chosen_K].sum())


def plane_coverage(signals: Signals, chosen_K: Tensor, _: Tensor) -> float:
    """ZCore: the scores of the chosen by 2,000 points that have nothing to do with ours."""
    features_ND, generator = signals.features_ND.double().numpy(), np.random.default_rng(0)
    low, high = features_ND.min(axis=0), features_ND.max(axis=0)
    middle, scores_N = np.median(features_ND, axis=0), np.zeros(len(features_ND))
    for _draw in range(2000):
        plane = generator.choice(features_ND.shape[1], 2, replace=False)
        point = generator.triangular(low[plane], middle[plane], high[plane])
        covering = np.abs(features_ND[:, plane] - point).sum(axis=1).argmin()
        apart_N = np.abs(features_ND[:, plane] - features_ND[covering, plane]).sum(axis=1)
        apart_N[covering] = np.inf
        scores_N[covering] += 1
        scores_N -= apart_N**-4.0 / (apart_N**-4.0).sum()
    return float(scores_N[chosen_K.numpy()].mean())


VALUES: dict[str, Value] = {
    "el2n": mean_score(lambda signals: signals.errors_NC.norm(dim=1)),
    "grand": mean_score(lambda signals: written_out(signals).norm(dim=1)),
    "entropy": mean_score(entropy),
    "margin": mean_score(negative_margin),
    "least_confidence": mean_score(lambda signals: -probabilities(signals).max(dim=1).values),
    "forgetting": mean_score(forgetting_events),
    "aum": mean_score(lambda signals: -mean_over_moments(signals.learners(), "margins_NLT")),
    "dual": dual_weight,
    "disagreement": mean_score(lambda signals: signals.learners().disagreement_N),
    "cal": mean_score(contrast),
    "moderate": mean_score(nearness_to_median),
    "craig": represented(written_out),
    "adacore": represented(preconditioned),
    "crest": unlearned_represented,
    "facility_location": facility_location,
    "graph_cut": graph_cut,
    "log_det": log_det,
    "gradmatch": gradient_match,
    "glister": one_step_loss,
    "kcenter": centre_radius,
    "herding": mean_kept,
    "ccs": strata_reached,
    "stratified": evenness,
    "zcore": plane_coverage,
    "subzerocore": weighed_by_density,
    "milo": typical,
    "sas": similar_to_others,
    "clipcov": cross_covariance,
    "clip_score": agreement,
}
# The labels are its latent classes, which get equal shares in any case.
EQUAL_SHARES = {"sas"}
BASELINES = {"uniform", "uniform_per_class"}
# Random on purpose where nothing is found; what it is for where something is, its own test says.
MAY_BE_RANDOM = {"auto"}


def test_every_strategy_is_for_something() -> None:
    assert VALUES.keys() == STRATEGIES.keys() - BASELINES - MAY_BE_RANDOM


def value_of(
    value: Value, signals: Signals, chosen_K: Tensor, weights_K: Tensor, *, balanced: bool
) -> float:
    """Of all examples; balanced, the sum over the classes, each on its own."""
    if not balanced:
        return value(signals, chosen_K, weights_K)
    total = 0.0
    for label in signals.labels_N.unique().tolist():
        rows = torch.nonzero(signals.labels_N == label).flatten()
        mine_K = signals.labels_N[chosen_K] == label
        positions = torch.searchsorted(rows, chosen_K[mine_K])
        total += value(signals.of_class(label), positions, weights_K[mine_K])
    return total


def random_rows(signals: Signals, seed: int, *, balanced: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    order_N = torch.randperm(len(signals), generator=generator)
    if not balanced:
        return order_N[:BUDGET].sort().values
    quotas = class_quotas(signals.labels_N.bincount().tolist(), BUDGET)
    parts = [
        order_N[signals.labels_N[order_N] == label][:quota] for label, quota in enumerate(quotas)
    ]
    return torch.cat(parts).sort().values


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("balanced", [False, True])
def test_better_than_random(name: str, *, balanced: bool) -> None:
    strategy = STRATEGIES[name]
    assert strategy.balance in {Balance.BY_DEFAULT, Balance.ON_REQUEST}
    signals = full_signals(LABELS)
    options = strategy.parse_options({})
    chosen = select(strategy, signals, BUDGET, balanced=balanced, seed=0, options=options)
    achieved = value_of(
        VALUES[name], signals, chosen.indices_K, chosen.weights_K, balanced=balanced
    )
    baseline = [
        value_of(
            VALUES[name],
            signals,
            random_rows(signals, seed, balanced=balanced or name in EQUAL_SHARES),
            torch.ones(BUDGET),
            balanced=balanced,
        )
        for seed in range(NUM_RANDOM)
    ]
    assert achieved > sum(baseline) / NUM_RANDOM
