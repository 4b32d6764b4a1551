from __future__ import annotations

import torch

from lipt.common.maps.placing import placed


def test_points_fill_a_rectangle_in_its_middle_without_being_stretched() -> None:
    corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    # Eight are free of the width of ten: two units are eight, and one is four.
    found = placed(corners, width=10, height=10, margin=1)
    assert found.tolist() == [[1.0, 3.0], [9.0, 3.0], [9.0, 7.0]]


def test_points_that_are_all_one_lie_in_the_middle() -> None:
    assert placed(torch.ones(2, 2), width=4, height=2, margin=0.5).tolist() == [[2.0, 1.0]] * 2
