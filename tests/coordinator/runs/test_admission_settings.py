"""Extreme values of every setting of a run: each is refused, or what is planned is within limits.

The settings are read off the models, so that a new one is drawn, too.
"""

import asyncio
import math
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import NoneType
from typing import Any, get_args, get_origin

import pytest
from annotated_types import Le, Lt
from hypothesis import event, given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import overrides_to_proto, run_config_from_proto
from lipt.common.errors import LiptError
from lipt.common.process import Machine
from lipt.coordinator.runs.admission import RunAdmission
from lipt.coordinator.settings import LimitSettings
from lipt.core.planning import RunPlan, total
from lipt.core.pretraining.sharding import num_validation_examples, require_shards_fit
from lipt.data.inputs.specs import ImageSpec
from tests.coordinator.fakes import described

# What the contract's fields carry.
MOST = {int: 2**31 - 1, float: sys.float_info.max}
MODELS = ("resnet8", "resnet18", "torchvision:vgg16")
DATA = described((5000,) * 10, ImageSpec(3, 32, 32))
MACHINE = Machine(num_cores=4, memory_bytes=16 * 10**9)
LIMITS = LimitSettings()
BATCH_SIZE = 64
# Largest values that cost nothing, and so are taken, because:
FREE = {
    "validation.min_per_class": "no more than half of a class is held out",
    "initialization.batch_size": "a batch has no more images than there are",
    "initialization.learning_rate": "a number like any other",
    "learners.learning_rate": "a number like any other",
    "learners.weight_decay": "a number like any other",
    "learners.deadline_seconds": "a run that waits takes nothing",
    "soup.batch_norm_examples": "no more than there are",
}


def kind_of(field: FieldInfo) -> Any:
    """A field's type; of an optional one the type that it has when it is given."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    return kinds[0] if kinds else field.annotation


def numbers(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The dotted names and fields of all numbers."""
    for name, field in model.model_fields.items():
        kind = kind_of(field)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from numbers(kind, f"{prefix}{name}.")
        elif kind in (int, float):
            yield prefix + name, field


def bounds(field: FieldInfo) -> tuple[Any, Any]:
    """The lowest and the highest value that a number takes on the wire."""
    kind = kind_of(field)
    lowest, highest = -MOST[kind], MOST[kind]
    for limit in field.metadata:
        ge, gt, le, lt = (getattr(limit, name, None) for name in ("ge", "gt", "le", "lt"))
        if ge is not None:
            lowest = kind(ge)
        if gt is not None:
            lowest = gt + 1 if kind is int else math.nextafter(gt, math.inf)
        if le is not None:
            highest = kind(le)
        if lt is not None:
            highest = lt - 1 if kind is int else math.nextafter(lt, -math.inf)
    return lowest, highest


def values(field: FieldInfo) -> st.SearchStrategy[Any]:
    """Values of a field, the most extreme ones above all."""
    kind = kind_of(field)
    if kind in (int, float):
        low, high = bounds(field)
        ends = [low, high, kind(low + (high - low) / 2)]
        between = st.integers(low, high) if kind is int else st.floats(low, high)
        ordinary = [field.default] if isinstance(field.default, kind) else []
        return st.sampled_from([*ends, *ordinary]) | between
    if kind is bool:
        return st.booleans()
    if get_origin(field.annotation) is tuple:
        return st.lists(st.sampled_from(["all-but-head", "conv1.*", "no.such"]), max_size=2)
    if not isinstance(kind, type) or kind is str:
        return st.sampled_from(["a" * 64, "b" * 64])
    if issubclass(kind, Enum):
        return st.sampled_from([member.value for member in kind])
    return drawn(kind)


def drawn(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of a section's settings, and what they are set to."""
    fields = {name: values(field) for name, field in model.model_fields.items()}
    if "model" in fields:
        fields["model"] = st.sampled_from(MODELS)
    return st.fixed_dictionaries({}, optional=fields)


UNBOUNDED = [
    (path, field)
    for path, field in numbers(RunConfig)
    if not any(isinstance(limit, Le | Lt) for limit in field.metadata)
]


@cache
def gate() -> RunAdmission:
    return RunAdmission(
        BlobStore(Path(mkdtemp()), max_blob_bytes=2**30),
        DATA,
        limits=LIMITS,
        machine=MACHINE,
        allowed_modules=(),
        evaluation_batch_size=BATCH_SIZE,
    )


@cache
def planned(config: RunConfig) -> RunPlan:
    return gate().plan(config)[1]


def admitted(wanted: dict[str, Any]) -> RunConfig | None:
    """The run's configuration, as CreateRun makes and admits it; None where it is refused."""
    try:
        config = run_config_from_proto(overrides_to_proto(wanted), RunConfig(model="resnet8"))
        held_out = num_validation_examples(DATA.class_counts, config.validation)
        require_shards_fit(DATA.num_examples - held_out, config.learners)
        asyncio.run(gate().require(config))
    except LiptError:
        return None
    return config


@given(wanted=drawn(RunConfig))
def test_extreme_values_are_refused_or_planned_within_limits(wanted: dict[str, Any]) -> None:
    config = admitted(wanted)
    event("refused" if config is None else "admitted")
    if config is None:
        return
    plan = planned(config)  # pyright: ignore[reportArgumentType] - frozen, so it can be hashed
    [learner] = [stage for stage in plan.stages if stage.process == "worker"]
    assert total(learner.memory) <= 80 * 2**30
    here = [stage for stage in plan.stages if stage.process == "compute"]
    # One stage at a time: four fifths of 16 GB.
    assert max(total(stage.memory) for stage in here) <= 12.8e9
    assert max(config.evaluation_threads, *(total(stage.threads) for stage in here)) <= 16
    assert config.learners.cpu_threads <= 256
    assert max(total(stage.images) for stage in here) <= 10**8
    assert config.learners.num_steps * config.learners.max_attempts <= 10**9 / 64


@pytest.mark.parametrize(("path", "field"), UNBOUNDED)
def test_unbounded_numbers_are_refused_by_a_plan_or_cost_nothing(
    path: str, field: FieldInfo
) -> None:
    section, _, name = path.rpartition(".")
    value = bounds(field)[1]
    taken = admitted({section: {name: value}} if section else {name: value}) is not None
    assert taken is (path in FREE), f"{path}: let it cost in core/planning.py"
