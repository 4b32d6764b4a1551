"""A device beside the CPU: a GPU where `make test-gpu` finds one, else one that is pretended.

Every test here compares what a device comes to with what the CPU comes to.
"""

from collections.abc import Iterator

import pytest
import torch

from tests.pretended import Pretended


@pytest.fixture(params=["pretended", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device, for the time of a test."""
    if request.param == "cuda":
        yield torch.device("cuda", 0)
        return
    with Pretended() as there:
        yield there.device
