"""Seeded fuzzing of what becomes of messages, on all sides: a value, or refused by name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message

from lipt.common.blobs.blob import blob_from_proto
from lipt.common.config.run_config import RunConfig
from lipt.common.config.tasks import LearnerTask
from lipt.common.config.values import run_config_from_proto, validate
from lipt.common.errors import LiptError
from lipt.common.rpc.messages import message_to_dict
from lipt.trainer.views import InfoView, RunView, StrategyView, view_of
from lipt.v1 import blob_pb2, config_pb2, info_pb2, run_pb2, subset_pb2, worker_pb2
from tests.faults.mutation import random_message

pytestmark = pytest.mark.slow

NUM_CASES = 10_000

CONVERTERS: dict[str, tuple[type[Message], Callable[[Any], object]]] = {
    "blob's name": (blob_pb2.BlobRef, blob_from_proto),
    "run's config": (config_pb2.RunConfig, lambda it: run_config_from_proto(it, RunConfig())),
    "learner's task": (
        worker_pb2.LearnerTask,
        lambda it: validate(LearnerTask, message_to_dict(it)),
    ),
    "run's view": (run_pb2.Run, partial(view_of, RunView)),
    "coordinator's view": (info_pb2.GetInfoResponse, partial(view_of, InfoView)),
    "strategy's view": (subset_pb2.Strategy, partial(view_of, StrategyView)),
}
# What acts on these checks them; a view is only looked at.
CHECKED = ("blob's name", "run's config", "learner's task")


@pytest.mark.parametrize("converter", CONVERTERS)
def test_absurd_message_is_a_value_or_refused_by_name(converter: str) -> None:
    kind, convert = CONVERTERS[converter]
    draw, outcomes = random.Random(converter), Counter[str]()
    for _ in range(NUM_CASES):
        try:
            convert(random_message(draw, kind()))
        except LiptError as error:
            outcomes[error.reason] += 1
        else:
            outcomes["fine"] += 1
    assert outcomes["fine"] < (NUM_CASES / 2 if converter in CHECKED else NUM_CASES + 1)
    assert outcomes.total() == NUM_CASES
