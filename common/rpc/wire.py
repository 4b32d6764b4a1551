"""Between the wire's messages and the frozen values that everything else sees.

`RunConfig` has the same fields in the same tree on both sides, so one walk
over the message's descriptor converts it; enum members have the same names
(`PRUNING_METHOD_SNIP` is `PruningMethod.SNIP`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from lipt.common.blobs.name import BlobName
from lipt.common.errors import ConfigError
from lipt.common.learner_task import ImageFormat, LearnerTask
from lipt.common.run_config import AugmentationConfig, LearnersConfig, PruningMethod, RunConfig
from lipt.common.validation import merge, validate
from lipt.v1 import blob_pb2, config_pb2, worker_pb2

MessageT = TypeVar("MessageT", bound=Message)


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


def message_to_dict(message: Message) -> dict[str, Any]:
    """The fields that are set, nested; enums by their member's value ("snip")."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None:
            values[field.name] = message_to_dict(value)
        elif field.enum_type is not None:
            values[field.name] = enum_value(field.enum_type, value)
        else:
            values[field.name] = value
    return values


def fill_message(message: MessageT, values: Mapping[str, Any], *, path: str) -> MessageT:
    """Set the fields of `message` from a nested mapping of the same names.

    Raises:
        ConfigError: an unknown field (the known ones are listed) or a bad value.
    """
    fields = message.DESCRIPTOR.fields_by_name
    for key, value in values.items():
        name = f"{path}{key}"
        field = fields.get(key)
        if field is None:
            raise ConfigError(f"{name}: there is no such setting; there are {', '.join(fields)}.")
        if value is None:
            continue
        if field.message_type is not None:
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{name} = {value!r}: it is a group of settings; set one of "
                    f"{', '.join(field.message_type.fields_by_name)} in it."
                )
            getattr(message, key).SetInParent()
            fill_message(getattr(message, key), value, path=f"{name}.")
        else:
            _set_scalar(message, field, value, name)
    return message


def _set_scalar(message: Message, field: Any, value: Any, name: str) -> None:
    if field.enum_type is not None:
        value = enum_number(field.enum_type, str(value), name)
    try:
        setattr(message, field.name, value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} = {value!r}: {error}") from None


def _prefix(enum: EnumDescriptor) -> str:
    # PRUNING_METHOD_UNSPECIFIED -> PRUNING_METHOD_
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


def enum_value(enum: EnumDescriptor, number: int) -> str:
    """The member's value for a number of the wire: 2 -> "snip".

    An unspecified or unknown number has no member; its text fails validation
    with the list of those that exist.
    """
    member = enum.values_by_number.get(number)
    return member.name.removeprefix(_prefix(enum)).lower() if member else str(number)


def enum_number(enum: EnumDescriptor, value: str, name: str) -> int:
    """The number on the wire for a member's value: "snip" -> 2.

    Raises:
        ConfigError: there is no such member.
    """
    member = enum.values_by_name.get(f"{_prefix(enum)}{value.upper()}")
    if member is None or member.number == 0:
        known = [enum_value(enum, item.number) for item in enum.values if item.number]
        raise ConfigError(f"{name} = {value!r}: choose one of {', '.join(known)}.")
    return int(member.number)


def enum_to_proto(enum: EnumDescriptor, value: StrEnum) -> str:
    """The name on the wire for a member, as messages' constructors take it."""
    name: str = enum.values_by_number[enum_number(enum, value.value, enum.name)].name
    return name


def blob_to_proto(name: BlobName) -> blob_pb2.BlobRef:
    """A blob's name as a message."""
    return blob_pb2.BlobRef(sha256=name.sha256, size_bytes=name.size_bytes)


def blob_from_proto(message: blob_pb2.BlobRef) -> BlobName:
    """A blob's name, checked.

    Raises:
        InvalidBlobNameError: not a digest and a size.
    """
    return BlobName.parse(message.sha256, message.size_bytes)


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
