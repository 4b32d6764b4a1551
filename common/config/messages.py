"""A run's configuration and a learner's task on the wire: messages to checked values and back.

`RunConfig` has the same fields in the same tree on both sides, so one walk over the
message's descriptor converts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipt.common.config.learner_task import LearnerTask
from lipt.common.config.run_config import (
    AugmentationConfig,
    LearnersConfig,
    PruningMethod,
    RunConfig,
)
from lipt.common.config.validation import merge, validate
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.rpc.messages import enum_to_proto, enum_value, fill_message, message_to_dict
from lipt.v1 import config_pb2, worker_pb2


def run_config_to_proto(config: RunConfig) -> config_pb2.RunConfig:
    """The message with every field set (None stays unset)."""
    return fill_message(config_pb2.RunConfig(), config.model_dump(), path="")


def overrides_to_proto(overrides: Mapping[str, Any]) -> config_pb2.RunConfig:
    """The message with just the given fields set.

    Args:
        overrides: nested as in `RunConfig`, e.g. {"learners": {"num_steps": 5}}.

    Raises:
        ConfigError: a field that does not exist, or a value of another kind.
    """
    return fill_message(config_pb2.RunConfig(), overrides, path="")


def run_config_from_proto(message: config_pb2.RunConfig, defaults: RunConfig) -> RunConfig:
    """`defaults` with the fields that are set in `message`, validated together.

    Raises:
        ConfigError: a value out of range; the sentence names field and value.
    """
    merged = merge(defaults.model_dump(), message_to_dict(message))
    return validate(RunConfig, merged)


def task_to_proto(task: LearnerTask) -> worker_pb2.LearnerTask:
    """A learner's task as a message."""
    image = task.image
    return worker_pb2.LearnerTask(
        model=task.model,
        num_classes=task.num_classes,
        image=worker_pb2.ImageFormat(
            channels=image.channels,
            height=image.height,
            width=image.width,
            mean=image.mean,
            std=image.std,
        ),
        learners=fill_message(
            config_pb2.LearnersConfig(), task.learners.model_dump(), path="learners."
        ),
        augmentation=fill_message(
            config_pb2.AugmentationConfig(), task.augmentation.model_dump(), path="augmentation."
        ),
        pruning_method=enum_to_proto(config_pb2.PruningMethod.DESCRIPTOR, task.pruning_method),
        density=task.density,
        seed=task.seed,
    )


def task_from_proto(message: worker_pb2.LearnerTask) -> LearnerTask:
    """A learner's task, checked.

    Raises:
        ConfigError: a value that no learner can be trained with.
    """
    image = message.image
    if min(image.channels, image.height, image.width) < 1 or message.num_classes < 1:
        raise ConfigError(
            f"images of {image.channels}x{image.height}x{image.width} and "
            f"{message.num_classes} classes cannot be trained on."
        )
    if not len(image.mean) == len(image.std) == image.channels or not all(
        std > 0 for std in image.std
    ):
        raise ConfigError(
            f"normalization mean {list(image.mean)}, std {list(image.std)} does not fit "
            f"{image.channels} channels."
        )
    if not 0.0 < message.density <= 1.0:
        raise ConfigError(f"density {message.density} is outside (0, 1].")
    method = enum_value(config_pb2.PruningMethod.DESCRIPTOR, message.pruning_method)
    if method not in set(PruningMethod):
        raise ConfigError(
            f"pruning method {method!r} is unknown here; this version has "
            f"{', '.join(PruningMethod)}."
        )
    return LearnerTask(
        model=message.model,
        num_classes=message.num_classes,
        image=ImageFormat(
            image.channels, image.height, image.width, tuple(image.mean), tuple(image.std)
        ),
        learners=validate(LearnersConfig, message_to_dict(message.learners)),
        augmentation=validate(AugmentationConfig, message_to_dict(message.augmentation)),
        pruning_method=PruningMethod(method),
        density=message.density,
        seed=message.seed,
    )
