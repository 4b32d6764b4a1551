from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipt.common.errors import WeightsError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.common.models.loading import load_model
from lipt.common.weights.files import pack

SPEC = ImageSpec(3, 32, 32)


def test_a_model_has_the_file_s_weights_and_is_ready_to_be_evaluated(tmp_path: Path) -> None:
    trained = build_model("resnet8", num_classes=5, inputs=SPEC, seed=7).state_dict()
    file = tmp_path / "w.safetensors"
    file.write_bytes(pack(trained))
    model = load_model(
        "resnet8", file, num_classes=5, inputs=SPEC, device=torch.device("cpu"), max_bytes=2**24
    )
    assert not model.training
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())


def test_another_model_s_weights_are_refused() -> None:
    other = pack(build_model("resnet8", num_classes=4, inputs=SPEC, seed=7).state_dict())
    with pytest.raises(WeightsError, match="the model has"):
        load_model(
            *("resnet8", other),
            num_classes=5,
            inputs=SPEC,
            device=torch.device("cpu"),
            max_bytes=2**24,
        )
