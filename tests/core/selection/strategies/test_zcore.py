import pytest
import torch
from torch import Tensor

from lipt.core.selection.strategies.zcore import (
    draw_points,
    feature_corners,
    plane_scores,
    plane_scores_torch,
)
from lipt.core.selection.vectors import can_compile


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_corners_by_hand() -> None:
    columns_DN = torch.tensor([[4.0, 1.0, 2.0, 9.0], [5.0, 5.0, 5.0, 5.0]])
    assert feature_corners(columns_DN).tolist() == [[1.0, 3.0, 9.0], [5.0, 5.0, 5.0]]
    assert feature_corners(columns_DN[:, :3]).tolist() == [[1.0, 2.0, 4.0], [5.0, 5.0, 5.0]]


def test_points_are_triangular_in_planes_of_different_features() -> None:
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


def test_what_coincides_shares_the_penalty_and_the_first_covers() -> None:
    columns_DN = torch.tensor([[5.0, 2.0, 2.0, 2.1, 2.0], [5.0, 1.0, 1.0, 1.0, 1.0]])
    for scores_N in both(columns_DN, draws_of((0, 1, 2.0, 1.0)), 3):
        assert scores_N.tolist() == [0.0, 1.0, -0.5, 0.0, -0.5]


def test_the_last_neighbour_is_whoever_is_as_near() -> None:
    # Two at a distance of 1, and one neighbour: both are.
    columns_DN = torch.tensor([[0.0, -1.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    for scores_N in both(columns_DN, draws_of((0, 1, 0.0, 0.0)), 1):
        assert scores_N.tolist() == [1.0, -0.5, -0.5, 0.0]


@pytest.mark.parametrize("num_examples", [2, 40])
@pytest.mark.parametrize("num_neighbours", [1, 7, 1000])
def test_is_what_looking_at_all_one_by_one_gives(num_examples: int, num_neighbours: int) -> None:
    columns_DN, draws = random_columns(5, num_examples), random_draws(5, 30)
    expected = plainly(columns_DN, draws, num_neighbours)
    for scores_N in both(columns_DN, draws, num_neighbours):
        assert scores_N.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("grid", [0.0, 0.5])
@pytest.mark.parametrize("num_neighbours", [1, 70, 900, 2000])
def test_compiled_and_torch_agree_where_only_a_sample_is_sorted(
    num_neighbours: int, grid: float
) -> None:
    if not can_compile(torch.device("cpu")):
        pytest.skip("numba is not installed")
    columns_DN = random_columns(4, 3000)
    if grid:
        # Many coincide, and many are as near as others.
        columns_DN = (columns_DN / grid).round() * grid
    compiled_N, plain_N = both(columns_DN, random_draws(4, 60), num_neighbours)
    torch.testing.assert_close(compiled_N, plain_N, rtol=0, atol=1e-12)
