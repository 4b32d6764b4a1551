from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lipt.common.signals.passes import arriving

Computed = Iterator[tuple[slice, tuple[Tensor, ...]]]


def computed(device: str, asked: list[int]) -> Computed:
    for number in range(5):
        asked.append(number)
        values_B = torch.arange(3, device=device) + 10 * number
        yield slice(3 * number, 3 * number + 3), (values_B, values_B > 11)


def expected(number: int) -> list[int]:
    return [10 * number, 10 * number + 1, 10 * number + 2]


def test_on_a_cpu_each_batch_is_handed_on_before_the_next() -> None:
    asked: list[int] = []
    for number, (rows, (values_B, above_B)) in enumerate(arriving(computed("cpu", asked))):
        assert len(asked) == number + 1
        assert rows == slice(3 * number, 3 * number + 3)
        assert values_B.tolist() == expected(number)
        assert above_B.tolist() == [value > 11 for value in expected(number)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_next_batch_is_on_its_way_when_one_is_handed_on() -> None:
    asked: list[int] = []
    for number, (rows, (values_B, above_B)) in enumerate(arriving(computed("cuda", asked))):
        assert len(asked) == min(number + 2, 5)
        assert values_B.device.type == above_B.device.type == "cpu"
        assert rows == slice(3 * number, 3 * number + 3)
        assert values_B.tolist() == expected(number)
