from __future__ import annotations

import torch

from lipt.common.weights.files import non_finite


def test_finite_weights_have_nothing_to_say() -> None:
    weights = {"n": torch.tensor(2**40), "w": torch.tensor([1e38, -0.0]), "none": torch.empty(0)}
    assert not non_finite(weights)


def test_the_first_bad_tensor_is_named_with_how_much_of_it_is_bad() -> None:
    bad = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    weights = {"n": torch.arange(3), "ok": torch.ones(2), "w": bad}
    assert non_finite(weights) == "'w' has NaN or infinite values (3 of 4)"
    one_more = non_finite({**weights, "v": bad[:2]})
    assert one_more.endswith("values (3 of 4), and so does 1 other tensor")
    two_more = non_finite({**weights, "v": bad[:2], "c": bad.to(torch.complex64)})
    assert two_more.endswith("(3 of 4), and so do 2 other tensors")
