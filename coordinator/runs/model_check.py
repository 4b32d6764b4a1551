"""What is found out about a run's model before the run is accepted."""

from __future__ import annotations

from collections.abc import Collection

from lipt.common.blobs.store import BlobStore
from lipt.common.models import build_model
from lipt.common.run_config import RunConfig
from lipt.common.weights.files import read_weights
from lipt.common.weights.finite import require_finite
from lipt.common.weights.specs import specs_of
from lipt.coordinator.compute.jobs.pretraining import DataDescription


def check_model(
    config: RunConfig,
    data: DataDescription,
    blobs: BlobStore,
    *,
    allowed_modules: Collection[str],
) -> None:
    """Build the model once, and read the weights that it is to start from.

    Raises:
        UnknownNameError: there is no such model.
        FactoryNotAllowedError: its module is not allowed here.
        ConfigError: it cannot be built for the data, or has no linear head.
        UnknownBlobError: the weights were not uploaded.
        WeightsError: they are another model's, or no safetensors file.
        LearnerRejectedError: they are not finite.
    """
    model = build_model(
        config.model,
        num_classes=len(data.class_names),
        image_shape=data.image_shape,
        seed=0,
        allowed_modules=allowed_modules,
    )
    given = config.initialization.weights_sha256
    if given is not None:
        name = blobs.find(given)
        like = specs_of(model.state_dict())
        require_finite(read_weights(blobs.path(name), like=like, max_bytes=blobs.max_blob_bytes))
