from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from lipt.common.errors import ConfigError
from lipt.common.imports import load_factory
from lipt.data import MODULE, Given


def test_a_model_is_found_by_its_name_as_long_as_it_is_kept() -> None:
    module = nn.Linear(2, 3)
    given = Given(module)
    made = load_factory(given.name, allowed_modules=[MODULE])(num_classes=3)
    assert torch.equal(made.weight, module.weight)
    assert made.weight is not module.weight
    name = given.name
    del given
    gc.collect()
    with pytest.raises(ConfigError, match="has no function"):
        load_factory(name, allowed_modules=[MODULE])


def test_every_model_has_a_name_of_its_own() -> None:
    first, second = (Given(lambda num_classes: nn.Linear(1, num_classes)) for _ in range(2))
    assert first.name != second.name
    assert first(num_classes=4).out_features == 4
