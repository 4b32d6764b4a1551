"""The pretended device refuses and counts what a GPU would refuse or wait for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.pretended import OtherDeviceError, Pretended


@pytest.mark.parametrize(
    ("wait", "name"),
    [
        (lambda values: float(values[0]), "_local_scalar_dense"),
        (lambda values: bool((values > 1).any()), "_local_scalar_dense"),
        (lambda values: values.tolist(), "to the CPU"),
        (lambda values: values.cpu(), "to the CPU"),
        (torch.nonzero, "nonzero"),
        (lambda values: values[values > 1], "index by a mask"),
        (lambda values: values[torch.tensor([1])], "index by the CPU's"),
        (lambda values: torch.tensor([1.0], device=values.device), "from the CPU"),
        (lambda values: torch.ones(3).to(values.device), "from the CPU"),
    ],
    ids=["item", "bool", "tolist", "cpu", "nonzero", "mask", "indices", "tensor", "to"],
)
def test_waits_for_the_device_are_counted(wait: Callable[[Tensor], object], name: str) -> None:
    with Pretended() as there:
        values = torch.arange(3.0, device=there.device)
        assert there.waits == {}
        wait(values)
        assert there.waits == {name: 1}


def test_two_devices_in_one_operation_are_refused() -> None:
    with Pretended() as there:
        values = torch.arange(3.0, device=there.device)
        with pytest.raises(OtherDeviceError, match=r"add is given tensors of the CPU.*\(3,\)"):
            values.add(torch.ones(3))
        assert (values * torch.tensor(2.0)).tolist() == [0, 2, 4]
