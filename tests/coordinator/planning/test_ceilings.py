"""Limits that follow from a machine, and what a plan breaks of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import validate
from lipt.common.errors import OverLimitError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning import Limit, Violation
from lipt.common.process.machine import Machine
from lipt.coordinator.planning.admission import ceilings, require_none, violations
from lipt.coordinator.planning.plan import DataFigures, RunPlan, plan_run
from lipt.coordinator.settings import LimitSettings

GB = 10**9
MACHINE = Machine(num_cores=2, memory_bytes=10 * GB)
# resnet18 on 32x32 pixels, about; and ten thousand examples of ten classes.
FIGURES = ModelFigures(45 * 10**6, 45 * 10**6, 5_300_000, 1_300_000)
DATA = DataFigures((1000,) * 10, ImageSpec(3, 32, 32))


def limits(free_disk_bytes: int = 100 * GB, **settings: Any) -> dict[str, Limit]:
    return ceilings(validate(LimitSettings, settings), MACHINE, free_disk_bytes=free_disk_bytes)


def broken(settings: dict[str, Any] | None = None, **config: Any) -> tuple[Violation, ...]:
    plan = plan_run(validate(RunConfig, config), FIGURES, DATA, evaluation_batch_size=64)
    return violations(plan, limits(**(settings or {})))


def test_every_place_of_a_plan_has_a_limit() -> None:
    assert {field.name for field in fields(RunPlan)} == limits().keys()


def test_what_is_not_configured_follows_from_the_machine() -> None:
    found = limits()
    assert (found["compute_threads"].at_most, found["compute_memory"].at_most) == (8, 8 * GB)
    assert found["run_disk"].at_most == 100 * GB
    assert found["compute_threads"].name == "limits.compute_threads"


def test_what_is_configured_holds_and_no_run_takes_more_disk_than_there_is() -> None:
    found = limits(compute_threads=64, compute_memory="4GB", run_disk="2GB")
    assert found["compute_threads"].at_most == 64
    assert found["compute_memory"].at_most == 4 * GB
    assert found["run_disk"].at_most == 2 * GB
    assert limits(free_disk_bytes=GB, run_disk="2GB")["run_disk"].at_most == GB


def test_an_ordinary_run_is_within_all_of_them() -> None:
    assert broken() == ()


@pytest.mark.parametrize(
    ("config", "knob", "limit"),
    [
        ({"evaluation_threads": 9}, "evaluation_threads", "limits.compute_threads"),
        ({"learners": {"cpu_threads": 257}}, "learners.cpu_threads", "limits.worker_threads"),
        (
            {"learners": {"num_snapshots": 1000, "num_steps": 1000}},
            "learners.num_snapshots",
            "what is free in the state directory",
        ),
        (
            {"initialization": {"steps": 1, "batch_size": 5000}},
            "initialization.batch_size",
            "limits.compute_memory",
        ),
        (
            {"initialization": {"steps": 2**31 - 1}},
            "initialization.steps",
            "limits.compute_images",
        ),
        (
            {"learners": {"num_steps": 2**31 - 1}},
            "learners.num_steps",
            "limits.worker_images",
        ),
        (
            {"learners": {"max_attempts": 2**31 - 1}},
            "learners.num_steps",
            "limits.worker_images",
        ),
    ],
)
def test_a_setting_that_asks_for_too_much_is_named_with_its_limit(
    config: dict[str, Any], knob: str, limit: str
) -> None:
    found = broken(**config)
    assert [(item.knob, item.limit.name) for item in found] == [(knob, limit)]


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = broken(evaluation_threads=9, learners={"cpu_threads": 300})
    with pytest.raises(OverLimitError) as refused:
        require_none(found)
    sentence = str(refused.value)
    assert "learners.cpu_threads = 300: training of a learner comes to 300 threads" in sentence
    assert "over limits.worker_threads = 256 threads. Lower learners.cpu_threads" in sentence
    assert "evaluation_threads = 9: evaluation on the coordinator comes to 9 threads" in sentence
    require_none(())


def test_of_each_setting_the_worst_is_said() -> None:
    # 1,000 threads are 125 times the limit on threads, and their stacks all of the memory.
    found = broken({"compute_memory": "9GB"}, evaluation_threads=1000)
    assert {item.limit.name for item in found} == {
        "limits.compute_threads",
        "limits.compute_memory",
    }
    with pytest.raises(OverLimitError) as refused:
        require_none(found)
    assert str(refused.value).count("evaluation_threads = 1000: ") == 1
    assert "Lower evaluation_threads to at most 8," in str(refused.value)


def test_a_model_that_is_too_large_is_named() -> None:
    (found, *_) = broken({"compute_memory": "1200MB"}, model="resnet18")
    assert (found.knob, found.value) == ("model", "resnet18")
    assert "Choose a smaller model, a lower evaluation_threads, or raise limits" in str(found)


def test_a_batch_that_does_not_fit_a_worker_is_told_which_would() -> None:
    learners = {"batch_size": 9000, "num_learners": 1, "num_steps": 1}
    (found,) = broken({"worker_memory": "40GB"}, learners=learners)
    assert found.knob == "learners.batch_size"
    # Of 40 GB the process takes 1 GiB, the weights 225 MB, a thread 8 MiB; the shard's 9000 images
    # 6144 bytes each. An image takes 5.3 MB, and 9 bytes for each of its 3072 numbers.
    left = 40 * GB - 2**30 - 225_000_000 - 2**23 - 9000 * 6144
    assert f"Lower learners.batch_size to at most {left // (5_300_000 + 27_648)}, or" in str(found)
