"""The pretended device refuses and counts what a GPU would refuse or wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

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
def test_what_the_cpu_waits_for_is_counted(wait: Callable[[Tensor], object], name: str) -> None:
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


def test_training_there_comes_to_the_cpus_weights() -> None:
    def trained(device: torch.device) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
        inputs, labels = torch.rand(3, 1, 4, 4).to(device), torch.tensor([0, 1, 0]).to(device)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        return model.state_dict()["3.weight"].cpu()

    expected = trained(torch.device("cpu"))
    with Pretended() as there:
        assert torch.equal(trained(there.device), expected)
