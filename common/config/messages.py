"""Configuration messages: a run's configuration and a learner's task, to checked values and back.

Both have the same fields in the same tree on both sides, so one walk over the message's
descriptor converts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lipt.common.config.run_config import RunConfig
from lipt.common.config.suggestions import did_you_mean
from lipt.common.config.validation import dump, merge, validate
from lipt.common.rpc.messages import fill_message, message_to_dict
from lipt.v1 import config_pb2, worker_pb2

if TYPE_CHECKING:
    from lipt.common.config.learner_task import LearnerTask
    from lipt.common.config.scoring_task import ScoringTask


def run_config_to_proto(config: RunConfig) -> config_pb2.RunConfig:
    """The message with every field set (None stays unset)."""
    return fill_message(config_pb2.RunConfig(), dump(config))


def overrides_to_proto(overrides: Mapping[str, Any]) -> config_pb2.RunConfig:
    """The message with just the given fields set.

    Args:
        overrides: nested as in `RunConfig`, e.g. {"learners": {"num_steps": 5}}.

    Raises:
        ConfigError: a field that does not exist (says which may be meant), or a value of
            another kind.
    """
    return fill_message(
        config_pb2.RunConfig(), overrides, meant=lambda name: did_you_mean(name, RunConfig)
    )


def run_config_from_proto(message: config_pb2.RunConfig, defaults: RunConfig) -> RunConfig:
    """`defaults` with the fields that are set in `message`, validated together.

    Raises:
        ConfigError: a value out of range; the sentence names field and value.
    """
    return validate(RunConfig, merge(dump(defaults), message_to_dict(message)))


def task_to_proto(task: LearnerTask) -> worker_pb2.LearnerTask:
    """A learner's task as a message."""
    return fill_message(worker_pb2.LearnerTask(), dump(task))


def task_from_proto(message: worker_pb2.LearnerTask) -> LearnerTask:
    """A learner's task, checked.

    Raises:
        ConfigError: a value that no learner can be trained with; the sentence names field
            and value.
    """
    from lipt.common.config.learner_task import LearnerTask  # noqa: PLC0415 - imports torch

    # A message does not tell a zero from nothing.
    zeros: dict[str, Any] = {"num_classes": 0, "density": 0.0, "seed": 0}
    zeros |= {"learners": {}, "augmentation": {}}
    values = zeros | message_to_dict(message)
    if "columns" in values:
        values["columns"] = _columns_with_zeros(values["columns"])
    return validate(LearnerTask, values)


def scoring_to_proto(task: ScoringTask) -> worker_pb2.ScoringTask:
    """A scoring task as a message."""
    return fill_message(worker_pb2.ScoringTask(), dump(task))


def scoring_from_proto(message: worker_pb2.ScoringTask) -> ScoringTask:
    """A scoring task, checked.

    Raises:
        ConfigError: a value that no example can be scored with; the sentence names field and
            value.
    """
    from lipt.common.config.scoring_task import ScoringTask  # noqa: PLC0415 - imports torch

    zeros = dict.fromkeys(("num_classes", "start", "stop", "batch_size", "threads"), 0)
    values: dict[str, Any] = {"model": "", "fingerprint": ""} | zeros | message_to_dict(message)
    if "columns" in values:
        values["columns"] = _columns_with_zeros(values["columns"])
    return validate(ScoringTask, values)


def _columns_with_zeros(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "columns": [
            {**one, "column": {"name": "", "shape": (), **one.get("column", {})}}
            for one in values.get("columns", ())
        ]
    }
