from __future__ import annotations

import torch
from torch.nn import functional

from lipt.core.selection.redundancy import carrying, redundancy
from tests.core.selection.builders import plain_greedy


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_copies_count_once() -> None:
    # Of each class ten directions, every one ten times: nine picks carry 8/9 of what is
    # gained beyond the first, and the tenth all.
    features_ND = torch.eye(10).repeat(20, 1)
    labels_N = torch.arange(2).repeat_interleave(100)
    found = redundancy(features_ND, labels_N, 3, generator=generator())
    assert found.per_class == (10, 10, 0)
    assert (found.examples, found.num_examples, found.share) == (20, 200, 0.1)
    assert found.looked_at == 200


def test_all_alike_need_one() -> None:
    assert carrying(torch.ones(30, 4)) == 1
    assert carrying(torch.ones(1, 4)) == 1


def test_the_same_as_plain_greedy() -> None:
    points = torch.randn(40, 6, generator=generator())
    unit = functional.normalize(points.double(), dim=1)
    similar = (1 + unit @ unit.T) / 2
    order = plain_greedy(similar, 40)
    values = [float(similar[order[: size + 1]].amax(dim=0).sum()) for size in range(40)]
    wanted = values[0] + 0.9 * (values[-1] - values[0])
    expected = 1 + sum(value < wanted - 1e-4 for value in values)
    assert carrying(points) == expected
    assert expected < 38


def test_large_classes_are_sampled_and_scaled_up() -> None:
    features_ND = torch.randn(1000, 5, generator=generator())
    labels_N = torch.zeros(1000, dtype=torch.int64)
    found = redundancy(features_ND, labels_N, 1, generator=generator(), most_examples=250)
    assert found.looked_at == 250
    assert found.examples % 4 == 0
    assert 0 < found.examples < 1000
