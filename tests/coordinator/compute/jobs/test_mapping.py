from __future__ import annotations

from pathlib import Path

import torch

from lipt.common.config.run_config import RunConfig
from lipt.common.images.formats import ImageFormat
from lipt.common.weights.files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.page import MapExamples
from tests.digits import digits_settings

IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


def test_examples_are_placed_in_the_unit_square_the_same_way_each_time(tmp_path: Path) -> None:
    told: list[str] = []
    settings = digits_settings(tmp_path, "digits-test")
    context = Context(settings, send=lambda now: told.append(now.activity))
    config = RunConfig(model="resnet8", evaluation_threads=1)
    weights = context.blobs.put_bytes(pack(context.new_model(config).state_dict()))
    ids = tuple(range(0, 80, 2))
    job = MapExamples(config, IMAGE, weights, ids)
    before = torch.get_rng_state()
    places = job.run(context)
    assert len(places) == len(ids)
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in places)
    assert len(set(places)) == len(ids)
    assert job.run(context) == places
    assert torch.equal(torch.get_rng_state(), before)
    assert "computing features" in told
