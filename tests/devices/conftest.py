"""A device beside the CPU: a GPU where `make test-gpu` finds one, else one that is pretended."""

from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from tests.pretended import Pretended


@pytest.fixture(params=["pretended", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    if request.param == "cuda":
        yield torch.device("cuda", 0)
        return
    with Pretended() as there:
        yield there.device


def close(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-4
) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        there = found[name].detach().cpu()
        torch.testing.assert_close(there, tensor, rtol=tolerance, atol=tolerance, msg=name)
