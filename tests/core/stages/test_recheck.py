from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.images.formats import ImageFormat
from lipt.common.weights.files import pack
from lipt.common.weights.specs import Weights
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selecting import RecheckSubset
from lipt.core.stages.recheck import Recheck, sample_ids
from tests.digits import digits_context

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return digits_context(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def stored(context: Context) -> Callable[[float], BlobName]:
    """The blob of the random model's weights with its last layer scaled."""
    weights: Weights = dict(context.new_model(CONFIG).state_dict())
    head = [name for name in weights if name.endswith("weight")][-1]

    def store(scale: float) -> BlobName:
        changed = weights | {head: weights[head] * scale}
        return context.blobs.put_bytes(pack(changed))

    return store


def recheck(context: Context, anchor: BlobName, weights: BlobName) -> Recheck:
    return RecheckSubset(CONFIG, IMAGE, anchor=anchor, weights=weights).run(context)


def test_the_same_weights_are_foretold_exactly(
    context: Context, stored: Callable[[float], BlobName]
) -> None:
    found = recheck(context, stored(1.0), stored(1.0))
    assert found.predicted_loss == pytest.approx(found.actual_loss, rel=1e-6)
    assert found.still_serves


def test_a_small_change_is_foretold_and_a_large_one_is_not(
    context: Context, stored: Callable[[float], BlobName]
) -> None:
    near, far = (recheck(context, stored(1.0), stored(scale)) for scale in (1.02, 60.0))
    assert near.predicted_loss == pytest.approx(near.actual_loss, rel=1e-2)
    assert near.still_serves
    assert not far.still_serves
    # A job answers the same whenever it is asked.
    assert recheck(context, stored(1.0), stored(60.0)) == far


@pytest.mark.parametrize(
    ("num_examples", "size"), [(10, 10), (256, 256), (1797, 256), (50_000, 500), (1_281_167, 12812)]
)
def test_the_sample_is_a_hundredth_and_enough(num_examples: int, size: int) -> None:
    ids = sample_ids(num_examples, seed=1)
    assert len(torch.unique(ids)) == len(ids) == size
    assert torch.equal(ids, sample_ids(num_examples, seed=1))
    assert bool((ids.diff() > 0).all())
