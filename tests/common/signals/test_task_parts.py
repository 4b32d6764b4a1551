"""The data and the model of a task; who carries it out is tested with what it does of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lipt.common.config.tasks import ScoringTask
from lipt.common.data import open_dataset
from lipt.common.images.formats import ImageFormat
from lipt.common.models import build_model
from lipt.common.signals.passes import is_data_of, load_task_model, open_task_data
from lipt.common.weights.files import pack

pytest.importorskip("sklearn")

DIGITS = open_dataset("digits")
TASK = ScoringTask(
    model="resnet8",
    num_classes=10,
    image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,)),
    fingerprint=DIGITS.fingerprint,
    start=0,
    stop=len(DIGITS),
    batch_size=64,
    threads=1,
)


def test_data_is_the_task_s_by_its_fingerprint_and_by_what_its_examples_are() -> None:
    opened = open_task_data(TASK, "digits", image_size=None, allowed_modules=())
    assert is_data_of(TASK, opened, opened.fingerprint)
    assert not is_data_of(TASK, opened, "f" * 64)
    larger = open_task_data(TASK, "digits", image_size=16, allowed_modules=())
    assert not is_data_of(TASK, larger, larger.fingerprint)
    assert not is_data_of(replace(TASK, fingerprint="f" * 64), opened, opened.fingerprint)


def test_the_model_has_the_weights_and_is_evaluated() -> None:
    built = build_model("resnet8", num_classes=10, inputs=DIGITS.inputs, seed=4)
    model = load_task_model(
        TASK,
        pack(built.state_dict()),
        device=torch.device("cpu"),
        allowed_modules=(),
        max_bytes=2**24,
    )
    assert not model.training
    for name, values in built.state_dict().items():
        assert torch.equal(model.state_dict()[name], values)
