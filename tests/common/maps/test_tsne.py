from __future__ import annotations

import math

import pytest
import torch

from lipt.common.maps.tsne import affinities, gradient, principal_components, tsne


def points(count: int, dimensions: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dimensions, generator=torch.Generator().manual_seed(seed))


def test_groups_that_are_apart_stay_apart() -> None:
    # Four groups around the corners of a simplex: two axes of no linear map tell all apart.
    centres = 20 * torch.eye(4, 8)
    features_ND = (centres[:, None] + points(100, 8).view(4, 25, 8)).flatten(0, 1)
    places = tsne(features_ND).view(4, 25, 2)
    within = (places - places.mean(dim=1, keepdim=True)).norm(dim=-1).max()
    between = torch.pdist(places.mean(dim=1)).min()
    assert between > 2 * within


def test_the_same_features_give_the_same_places() -> None:
    features_ND = points(60, 5)
    assert torch.equal(tsne(features_ND), tsne(features_ND))


def test_nothing_is_drawn_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    tsne(points(20, 3))
    assert torch.equal(torch.get_rng_state(), before)


def test_affinities_are_probabilities_of_the_perplexity_that_was_asked_for() -> None:
    features_ND = points(50, 4).double()
    found_NN = affinities(features_ND, 10.0)
    assert torch.equal(found_NN, found_NN.T)
    assert found_NN.diagonal().eq(0).all()
    assert float(found_NN.sum()) == pytest.approx(1.0, abs=1e-5)
    # Three points in a row, by hand: with the perplexity of two both ends are as near as can be
    # told, so that every pair has a sixth.
    even_NN = affinities(torch.tensor([[0.0], [1.0], [2.0]]), 2.0)
    assert even_NN[0, 1] == pytest.approx(1 / 6, abs=1e-2)
    # With one neighbour, the ends' is the middle one.
    near_NN = affinities(torch.tensor([[0.0], [1.0], [5.0]]), 1.0)
    assert near_NN[0, 1] == pytest.approx(1 / 3, abs=1e-3)  # each is the other's only one
    assert near_NN[1, 2] == pytest.approx(1 / 6, abs=1e-3)


def test_the_gradient_is_that_of_the_divergence() -> None:
    affinities_NN = affinities(points(12, 3), 3.0).double()
    places_N2 = points(12, 2, seed=1).double().requires_grad_()
    # Slowly: every pair by itself.
    near = {
        (i, j): 1 / (1 + (places_N2[i] - places_N2[j]).square().sum())
        for i in range(12)
        for j in range(12)
        if i != j
    }
    total = torch.stack(list(near.values())).sum()
    terms = [
        affinities_NN[pair] * (affinities_NN[pair].log() - (value / total).log())
        for pair, value in near.items()
        if affinities_NN[pair] > 0
    ]
    (expected_N2,) = torch.autograd.grad(torch.stack(terms).sum(), places_N2)
    torch.testing.assert_close(gradient(affinities_NN, places_N2.detach()), expected_N2)


def test_principal_components_are_the_directions_of_most_variance() -> None:
    features_ND = torch.tensor([[0.0, 3.0, 1.0], [0.0, -3.0, 1.0], [0.5, 0.0, 1.0], [-0.5, 0, 1.0]])
    assert principal_components(features_ND).abs().tolist() == [
        [pytest.approx(first, abs=1e-6), pytest.approx(second, abs=1e-6)]
        for first, second in ((3, 0), (3, 0), (0, 0.5), (0, 0.5))
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dimensions", [1, 2, 6])
def test_few_points_have_places_too(count: int, dimensions: int) -> None:
    places = tsne(points(count, dimensions))
    assert places.shape == (count, 2)
    assert places.isfinite().all()


def test_points_that_are_all_alike_have_places() -> None:
    assert tsne(torch.ones(40, 3)).isfinite().all()
    assert math.isfinite(float(tsne(torch.cat([torch.ones(40, 3), points(1, 3)])).sum()))
