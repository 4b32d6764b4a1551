from __future__ import annotations

import torch

from lipt.core.diagnosis.confusion import Confusion, confusions

JOINT_CC = torch.tensor([[50, 4, 0], [10, 30, 4], [0, 0, 9]])
COUNTS_C = torch.tensor([60, 50, 10])


def test_pairs_come_by_how_often_and_ties_by_label() -> None:
    assert confusions(JOINT_CC, COUNTS_C) == [
        Confusion(given=1, suggested=0, count=10, share=0.2),
        Confusion(given=0, suggested=1, count=4, share=4 / 60),
        Confusion(given=1, suggested=2, count=4, share=0.08),
    ]


def test_no_more_are_listed_than_asked_for() -> None:
    assert [pair.count for pair in confusions(JOINT_CC, COUNTS_C, most=1)] == [10]


def test_one_class_is_confused_with_none() -> None:
    assert confusions(torch.tensor([[7]]), torch.tensor([7])) == []
