from __future__ import annotations

import pytest
from torch import nn

from lipt.common.models.modes import evaluation_mode


def test_every_modules_own_flag_comes_back_even_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model.train()
    model[1].eval()
    before = [module.training for module in model.modules()]
    assert before == [True, True, False, False]
    inside: list[bool] = []

    def fail() -> None:
        with evaluation_mode(model):
            inside.extend(module.training for module in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [False] * 4
    assert [module.training for module in model.modules()] == before
