from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from lipt.core.selection.select import find_strategy
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategies import crest as crest_module
from lipt.core.selection.strategies.crest import (
    RandomSets,
    batch_coreset,
    batch_shares,
    crest,
    own_losses,
    unlearned,
)
from lipt.core.selection.strategies.random_draws import ccs, strata_of, stratified
from lipt.core.selection.strategies.zcore import (
    draw_points,
    feature_corners,
    plane_scores,
    plane_scores_torch,
)
from lipt.core.selection.vectors import can_compile
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import of_probabilities, of_right, signals_of

Shares = Literal["equal", "proportional"]


def bundled(*sizes: int) -> tuple[Signals, Tensor]:
    """One bundle of directions after another, of these sizes, and who is in which."""
    kinds_N = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.eye(len(sizes))[kinds_N]
    features_ND = features_ND + 0.05 * torch.randn(features_ND.shape, generator=generator)
    return signals_of(features_ND), kinds_N


@pytest.mark.parametrize(
    ("shares", "budget", "expected"),
    [
        ("equal", 12, [4, 4, 4]),
        ("equal", 30, [6, 12, 12]),  # what the small one lacks is shared
        ("proportional", 20, [2, 8, 10]),  # 60 in all: one of three
        ("proportional", 7, [1, 3, 3]),  # 0.7, 2.8, 3.5: two left, for remainders .8 and .7
    ],
)
def test_stratum_shares_by_hand(shares: Shares, budget: int, expected: list[int]) -> None:
    signals, kinds_N = bundled(6, 24, 30)
    for seed in range(5):
        chosen = stratified(signals, budget, num_cells=3, shares=shares, seed=seed).indices_K
        assert kinds_N[chosen].bincount().tolist() == expected


def of_norms(*norms: float) -> Signals:
    """One class column whose error has the given norm: el2n's score is known."""
    return signals_of(errors_NC=torch.tensor(norms, dtype=torch.float64).float()[:, None])


def graded_signals(num_examples: int) -> Signals:
    """Three classes, each example harder than the one before, by every score."""
    confidences_N = torch.linspace(0.95, 0.4, num_examples)
    rest_N = (1 - confidences_N) / 2
    return signals_of(
        errors_NC=torch.stack([confidences_N - 1, rest_N, rest_N], dim=1),
        dynamics=Dynamics(
            probabilities_NLT=confidences_N[:, None, None].expand(-1, 2, 3),
            margins_NLT=confidences_N[:, None, None].expand(-1, 2, 3),
            error_norms_NL=1 - confidences_N[:, None].expand(-1, 2),
            disagreement_N=torch.zeros(num_examples),
            own_learner_N=torch.full((num_examples,), -1, dtype=torch.int16),
        ),
    )


def test_ccs_strata_share_all_but_the_hardest() -> None:
    scores_N = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.6, 1.0])
    assert strata_of(scores_N, 4).tolist() == [0, 0, 0, 1, 2, 3]
    assert strata_of(torch.full((3,), 0.7), 4).tolist() == [0, 0, 0]
    # Of 10 examples beta 0.2 drops the two with 8 and 9. The rest, up to 4, are two strata of
    # width 2: {0, .1, .2, .3, 1, 1.5} and {2.1, 4}.
    signals = of_norms(0, 9, 0.1, 0.2, 8, 0.3, 1, 1.5, 2.1, 4)
    for seed in range(20):
        chosen = ccs(signals, 4, beta=0.2, num_strata=2, seed=seed).indices_K.tolist()
        assert {8, 9} <= set(chosen)
        assert len(set(chosen) & {0, 2, 3, 5, 6, 7}) == 2
    # What the small stratum cannot give comes from the large one.
    chosen = ccs(signals, 7, beta=0.2, num_strata=2, seed=0).indices_K.tolist()
    assert {8, 9} <= set(chosen)
    assert len(set(chosen) & {0, 2, 3, 5, 6, 7}) == 5


@pytest.mark.parametrize("score", ["el2n", "aum"])
def test_ccs_drops_the_hardest_by_every_score(score: str) -> None:
    signals = graded_signals(40)
    chosen = ccs(signals, 20, score=score, beta=0.5, num_strata=50, seed=1).indices_K
    assert chosen.sort().values.tolist() == list(range(20))


def test_ccs_takes_the_easiest_for_large_budgets() -> None:
    signals = of_norms(5, 3, 9, 1, 7)
    chosen = ccs(signals, 3, beta=0.9, seed=0).indices_K
    assert chosen.sort().values.tolist() == [0, 1, 3]
    assert len(ccs(signals, 5, beta=0.9, seed=0).indices_K) == 5
    chosen = ccs(of_norms(1, 1, 1, 1), 2, beta=0.5, seed=0).indices_K
    assert chosen.sort().values.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("fraction", "beta"),
    # The paper's three, straight lines between them, and the nearest beyond.
    [
        (0.05, "0.3"),
        (0.1, "0.3"),
        (0.15, "0.25"),
        (0.2, "0.2"),
        (0.35, "0.1"),
        (0.5, "0"),
        (0.9, "0"),
    ],
)
def test_the_paper_s_ccs_drops_a_share_by_the_fraction(fraction: float, beta: str) -> None:
    preset = find_strategy("ccs").preset("paper")
    assert preset.options(fraction, {}) == {"score": "aum", "beta": beta, "num_strata": "50"}
    assert preset.balanced is False


def random_probabilities(num_examples: int, num_classes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    logits_NC = torch.randn(num_examples, num_classes, generator=generator) * 2
    return logits_NC.softmax(dim=-1)


def choose(signals: Signals, budget: int, *, balanced: bool = False, **options: Any) -> Selection:
    return crest(signals, budget, **{"seed": 0, "balanced": balanced} | options)


def pool_of(signals: Signals, budget: int, learned_loss: float) -> list[int]:
    return unlearned(own_losses(signals), budget, learned_loss).tolist()


def test_cluster_centres_and_sizes_by_hand() -> None:
    # The first centre is 3: its distances sum to 301, those of 2 to 302, of 100 to 398. The
    # second is 101: with it 3 + 2 + 1 + 1 + 2 = 9 are left, with 100 one more.
    errors_RC = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0], [101.0], [103.0]])
    chosen_B, sizes_B = batch_coreset(errors_RC, 2)
    assert (chosen_B.tolist(), sizes_B.tolist()) == ([3, 5], [4, 3])


def test_crest_drops_learned_examples() -> None:
    # Losses -ln p: 0.01, 0.69, 0.05, 1.20, 0.11.
    own = [0.99, 0.5, 0.95, 0.3, 0.9 - 0.004]
    signals = of_right(*own)
    assert pool_of(signals, 1, 0.1) == [1, 3, 4]
    chosen = choose(signals, 2)
    assert set(chosen.indices_K.tolist()) <= {1, 3, 4}
    # They stand for the three that there are, not for the learned ones.
    assert float(chosen.weights_K.sum()) == pytest.approx(3.0)


def drawn_sets(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    drawn: list[list[int]] = []

    class Watched(RandomSets):
        def draw(self) -> Tensor:
            set_R = super().draw()
            drawn.append(set_R.tolist())
            return set_R

    monkeypatch.setattr(crest_module, "RandomSets", Watched)
    return drawn


def test_balanced_minibatches_have_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    labels_N = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    signals = of_probabilities(random_probabilities(1000), labels_N)
    drawn = drawn_sets(monkeypatch)
    options = {"batch_size": 30, "random_fraction": 0.1, "learned_loss": 0.0}
    chosen = choose(signals, 90, balanced=True, **options)
    # Three mini-batches of 10 from each class's part, at least 4 times as large.
    assert [labels_N[ids].unique().tolist() for ids in drawn] == [[0], [1], [2]] * 3
    assert [len(ids) for ids in drawn] == [60, 40, 40] * 2 + [60, 40, 40]
    found_K = labels_N[chosen.indices_K]
    for start in range(0, 90, 30):
        assert found_K[start : start + 30].tolist() == [0] * 10 + [1] * 10 + [2] * 10
    # A class's chosen stand for its examples.
    sums = torch.zeros(3).index_add_(0, found_K, chosen.weights_K)
    assert sums.tolist() == pytest.approx([600, 300, 100], rel=1e-5)


def test_minibatches_fill_the_budget_by_quotas() -> None:
    assert list(batch_shares([10], 4)) == [[4], [4], [2]]
    assert list(batch_shares([3], 4)) == [[3]]
    assert list(batch_shares([], 4)) == []
    assert list(batch_shares([6, 3], 3)) == [[2, 1]] * 3
    shares = list(batch_shares([1, 1, 6], 4))
    assert [sum(numbers) for numbers in shares] == [4, 4]
    assert [sum(numbers) for numbers in zip(*shares, strict=True)] == [1, 1, 6]


def sets_of(labels: list[int], set_size: int, seed: int = 0) -> RandomSets:
    labels_N = torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    return RandomSets(torch.arange(len(labels)), labels_N, set_size, generator)


def test_random_sets_use_every_example_before_repeats() -> None:
    sets = sets_of([0] * 10, 4)
    first, second = sets.draw(), sets.draw()
    assert len(set(first.tolist()) | set(second.tolist())) == 8
    sets.put_back(first, without=torch.tensor([0]))
    sets.put_back(second, without=torch.tensor([1, 2]))
    third = sets.draw()
    assert set(range(10)) - set(first.tolist()) - set(second.tolist()) <= set(third.tolist())
    assert int(first[0]) not in third.tolist()
    sets.put_back(third, without=torch.tensor([], dtype=torch.int64))
    everything = [*sets.draw().tolist(), *sets.draw().tolist()]
    assert sorted(everything) == sorted({*range(10)} - {int(first[0]), *second[1:3].tolist()})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_zcore_corners_by_hand() -> None:
    columns_DN = torch.tensor([[4.0, 1.0, 2.0, 9.0], [5.0, 5.0, 5.0, 5.0]])
    assert feature_corners(columns_DN).tolist() == [[1.0, 3.0, 9.0], [5.0, 5.0, 5.0]]
    assert feature_corners(columns_DN[:, :3]).tolist() == [[1.0, 2.0, 4.0], [5.0, 5.0, 5.0]]
    corners_D3 = torch.tensor([[0.0, 0.0, 1.0], [-2.0, 1.0, 2.0], [7.0, 7.0, 7.0]])
    features_M2, points_M2 = draw_points(corners_D3.double(), 30_000, generator())
    first_M, second_M = features_M2.T
    assert (first_M != second_M).all()
    # Each of 6 ordered pairs 5,000 times, deviation 65.
    assert ((3 * first_M + second_M).bincount(minlength=9)[[1, 2, 3, 5, 6, 7]] > 4700).all()
    for feature, (low, middle, high) in enumerate(corners_D3.tolist()):
        points = points_M2[features_M2 == feature].double()
        assert low <= points.min() <= points.max() <= high
        assert float(points.mean()) == pytest.approx((low + middle + high) / 3, abs=0.03)
        sides = low * low + middle * middle + high * high
        products = low * middle + low * high + middle * high
        assert float(points.var()) == pytest.approx((sides - products) / 18, abs=0.03)


Draws = tuple[Tensor, Tensor]


def draws_of(*points: tuple[int, int, float, float]) -> Draws:
    features_M2 = torch.tensor([point[:2] for point in points])
    return features_M2, torch.tensor([point[2:] for point in points])


def random_draws(num_features: int, count: int, seed: int = 0) -> Draws:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(num_features, (count, 2), generator=generator),
        torch.randn(count, 2, generator=generator),
    )


def random_columns(num_features: int, num_examples: int) -> Tensor:
    return torch.randn(num_features, num_examples, generator=torch.Generator().manual_seed(1))


def plainly(columns_DN: Tensor, draws: Draws, num_neighbours: int) -> list[float]:
    columns, size = columns_DN.tolist(), columns_DN.shape[1]
    scores = [0.0] * size
    for (a, b), (x, y) in zip(*(part.tolist() for part in draws), strict=True):
        covering = min(range(size), key=lambda i: abs(columns[a][i] - x) + abs(columns[b][i] - y))
        scores[covering] += 1
        own_x, own_y = columns[a][covering], columns[b][covering]
        others = [
            (abs(columns[a][i] - own_x) + abs(columns[b][i] - own_y), i)
            for i in range(size)
            if i != covering
        ]
        nearest = sorted(others)[:num_neighbours]
        total = sum(distance**-4 for distance, _ in nearest)
        for distance, i in nearest:
            scores[i] -= distance**-4 / total
    return scores


def both(columns_DN: Tensor, draws: Draws, num_neighbours: int) -> list[Tensor]:
    """By whatever is installed, and by torch."""
    most = min(num_neighbours, columns_DN.shape[1] - 1)
    return [
        plane_scores(columns_DN, *draws, num_neighbours),
        plane_scores_torch(columns_DN, *draws, most),
    ]


def test_equally_near_examples_share_the_penalty() -> None:
    columns_DN = torch.tensor([[5.0, 2.0, 2.0, 2.1, 2.0], [5.0, 1.0, 1.0, 1.0, 1.0]])
    for scores_N in both(columns_DN, draws_of((0, 1, 2.0, 1.0)), 3):
        assert scores_N.tolist() == [0.0, 1.0, -0.5, 0.0, -0.5]
    # Two at a distance of 1, and one neighbour: both are.
    columns_DN = torch.tensor([[0.0, -1.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    for scores_N in both(columns_DN, draws_of((0, 1, 0.0, 0.0)), 1):
        assert scores_N.tolist() == [1.0, -0.5, -0.5, 0.0]


@pytest.mark.parametrize("num_examples", [2, 40])
@pytest.mark.parametrize("num_neighbours", [1, 7, 1000])
def test_zcore_equals_a_plain_loop(num_examples: int, num_neighbours: int) -> None:
    columns_DN, draws = random_columns(5, num_examples), random_draws(5, 30)
    expected = plainly(columns_DN, draws, num_neighbours)
    for scores_N in both(columns_DN, draws, num_neighbours):
        assert scores_N.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("grid", [0.0, 0.5])
@pytest.mark.parametrize("num_neighbours", [1, 70, 900, 2000])
def test_compiled_and_torch_agree_on_sorted_samples(num_neighbours: int, grid: float) -> None:
    if not can_compile(torch.device("cpu")):
        pytest.skip("numba is not installed")
    columns_DN = random_columns(4, 3000)
    if grid:
        # Many coincide, and many are as near as others.
        columns_DN = (columns_DN / grid).round() * grid
    compiled_N, plain_N = both(columns_DN, random_draws(4, 60), num_neighbours)
    torch.testing.assert_close(compiled_N, plain_N, rtol=0, atol=1e-12)
