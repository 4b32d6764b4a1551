from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import InitializationConfig, RunConfig
from lipt.common.errors import UnknownBlobError, WeightsError
from lipt.common.models.registry import build_model
from lipt.common.weights.container import pack
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.runs.requests import check_model

DATA = DataDescription("made up", ("a", "b"), (2, 2), image_shape=(1, 8, 8), fingerprint="f")


def state_dict() -> dict[str, torch.Tensor]:
    model = build_model(
        "resnet8", num_classes=2, image_shape=DATA.image_shape, seed=0, allowed_modules=()
    )
    return model.state_dict()


def check(blobs: BlobStore, sha256: str) -> None:
    initialization = InitializationConfig(weights_sha256=sha256)
    config = RunConfig(model="resnet8", initialization=initialization)
    check_model(config, DATA, blobs, allowed_modules=())


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, max_blob_bytes=2**30)


def test_the_models_own_weights_are_started_from(blobs: BlobStore) -> None:
    check(blobs, blobs.put_bytes(pack(state_dict())).sha256)


def test_weights_that_were_not_uploaded_are_refused(blobs: BlobStore) -> None:
    with pytest.raises(UnknownBlobError):
        check(blobs, "a" * 64)


def test_a_users_own_weights_that_are_not_finite_are_called_that(blobs: BlobStore) -> None:
    weights = state_dict()
    name, tensor = next(iter(weights.items()))
    weights[name] = tensor.clone().fill_(float("nan"))
    with pytest.raises(WeightsError) as refused:
        check(blobs, blobs.put_bytes(pack(weights)).sha256)
    sentence = str(refused.value)
    assert "weights that the run is to start from" in sentence
    assert f"{name!r} has NaN or infinite values ({tensor.numel()} of {tensor.numel()})" in sentence
    assert "Give weights from before they diverged" in sentence
    assert "learner" not in sentence
