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


@pytest.mark.parametrize(
    ("device", "ahead"),
    [
        ("cpu", 1),
        # The next batch is on its way when one is handed on.
        pytest.param(
            "cuda", 2, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
        ),
    ],
)
def test_batches_are_handed_on_in_order_as_soon_as_they_are_there(device: str, ahead: int) -> None:
    asked: list[int] = []
    for number, (rows, (values_B, above_B)) in enumerate(arriving(computed(device, asked))):
        assert len(asked) == min(number + ahead, 5)
        assert values_B.device.type == above_B.device.type == "cpu"
        assert rows == slice(3 * number, 3 * number + 3)
        expected = [10 * number, 10 * number + 1, 10 * number + 2]
        assert values_B.tolist() == expected
        assert above_B.tolist() == [value > 11 for value in expected]
