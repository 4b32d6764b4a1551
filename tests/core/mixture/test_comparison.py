import pytest
import torch

from lipt.core.mixture.comparison import by_size, greedy_shares, lone_ranking, nearest_sources


def shares(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_sizes_and_tempered_sizes() -> None:
    assert by_size(torch.tensor([1, 3])).tolist() == [0.25, 0.75]
    # The root of 9 is 3.
    assert by_size(torch.tensor([1, 9]), 0.5).tolist() == [0.25, 0.75]


def test_lone_ranking_is_the_softmax_of_negative_losses() -> None:
    # A difference of log 3.
    assert lone_ranking(shares(1.0986123, 0.0)).tolist() == pytest.approx([0.25, 0.75])


def test_each_target_example_counts_for_the_source_of_its_nearest() -> None:
    sources = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [-1.0, -1.0]])]
    features_ND = torch.tensor([[3.0, 0.1], [0.2, 2.0], [-1.0, -2.0], [0.1, 5.0]])
    assert nearest_sources(sources, features_ND).tolist() == [0.25, 0.75]


def test_greedy_shares_take_in_what_does_not_raise_the_loss() -> None:
    # The target is (1/2, 1/2, 0): the second source helps, the third does not.
    def loss_of(shares_K: torch.Tensor) -> float:
        return float((shares_K - shares(0.5, 0.5, 0.0)).square().sum())

    assert greedy_shares(shares(0.1, 0.2, 0.3), loss_of).tolist() == [0.5, 0.5, 0.0]
