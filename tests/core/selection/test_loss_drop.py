import torch

from lipt.core.selection.loss_drop import largest_drops, loss_drops


def test_a_drop_is_a_share_of_the_loss_before() -> None:
    found = loss_drops(torch.tensor([2.0, 1.0, 0.5, 0.0]), torch.tensor([1.0, 0.9, 1.0, 0.0]))
    assert torch.allclose(found, torch.tensor([0.5, 0.1, -1.0, 0.0]).double(), atol=1e-6)


def test_the_largest_drops_come_in_the_datas_order() -> None:
    before_N, after_N = torch.ones(5), torch.tensor([0.9, 0.1, 0.5, 0.1, 0.0])
    assert largest_drops(before_N, after_N, 2).tolist() == [1, 4]
    assert largest_drops(before_N, after_N, 3).tolist() == [1, 3, 4]
