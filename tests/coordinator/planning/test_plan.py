"""A plan by hand.

Weights of 100 bytes; an image has 1 x 2 x 6 = 12 numbers and takes 1000 bytes in training and 300
in evaluation. Ten classes of 50 examples: 20 of each are held out, so 200 and 300 are left.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import validate
from lipt.common.errors import OverLimitError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning import PROCESS_BYTES, THREAD_BYTES, Cost, Limit, Violation
from lipt.common.process.machine import Machine
from lipt.coordinator.planning.admission import ceilings, require_none, violations
from lipt.coordinator.planning.plan import DataFigures, RunPlan, plan_run
from lipt.coordinator.settings import LimitSettings

FIGURES = ModelFigures(weights_bytes=100, training_bytes=1000, evaluation_bytes=300)
DATA = DataFigures((50,) * 10, ImageSpec(1, 2, 6))
# The process, the data as RGB, and five copies of the weights.
ALWAYS = PROCESS_BYTES + 500 * 3 * 12 + 5 * 100


def plan(data: DataFigures = DATA, **sections: Any) -> RunPlan:
    config = validate(RunConfig, {"evaluation_threads": 1, **sections})
    return plan_run(config, FIGURES, data, evaluation_batch_size=16)


def totals(costs: tuple[Cost, ...]) -> list[int]:
    return [cost.total for cost in costs]


def test_memory_of_each_stage() -> None:
    planned = plan(
        initialization={"steps": 5, "batch_size": 7},
        learners={"num_minibatches": 2, "batch_size": 3},
        soup={"batch_norm_examples": 11},
    )
    assert totals(planned.compute_memory) == [
        ALWAYS + THREAD_BYTES + 7 * (1000 + 6 * 12),
        ALWAYS + THREAD_BYTES + 2 * 3 * 12 * 3,
        ALWAYS + THREAD_BYTES + 200 * 12 + 11 * 12 + 16 * (300 + 6 * 12) + 100,
    ]


def test_batches_and_images_are_no_more_than_there_are() -> None:
    planned = plan(
        initialization={"steps": 5, "batch_size": 2**31 - 1},
        soup={"batch_norm_examples": 2**31 - 1},
    )
    theta, _, soup = totals(planned.compute_memory)
    assert theta == ALWAYS + THREAD_BYTES + 300 * (1000 + 6 * 12)
    assert soup == ALWAYS + THREAD_BYTES + 200 * 12 + 300 * 12 + 16 * (300 + 6 * 12) + 100


def test_each_of_several_that_are_scored_at_a_time_has_a_model_and_a_batch() -> None:
    one, four, all_ = (plan(evaluation_threads=number) for number in (1, 4, 200))
    each = 16 * (300 + 6 * 12) + 100
    assert totals(four.compute_memory)[2] - totals(one.compute_memory)[2] == 3 * (
        each + THREAD_BYTES
    )
    # Of ten learners, and nine mixtures of each, no more than ten are asked for together.
    assert totals(all_.compute_memory)[2] - totals(one.compute_memory)[2] == (
        9 * each + 199 * THREAD_BYTES
    )


def test_theta_that_is_not_trained_has_no_activations_and_no_images() -> None:
    planned = plan()
    assert planned.compute_memory[0].total == ALWAYS + THREAD_BYTES
    assert planned.compute_images[0].total == 0
    assert [cost.parts[0].knob for cost in planned.compute_threads] == ["evaluation_threads"]


def test_threads_are_those_of_evaluation_and_of_theta_s_training() -> None:
    planned = plan(evaluation_threads=3, initialization={"steps": 1}, learners={"cpu_threads": 9})
    assert totals(planned.compute_threads) == [3, 9]
    assert totals(planned.worker_threads) == [9]
    assert planned.compute_memory[2].parts[2].cost == 9 * THREAD_BYTES


@pytest.mark.parametrize(
    ("initialization", "images"),
    [
        ({"steps": 5, "batch_size": 100}, 5 * 100),
        # A step on few images takes no less time than one on 64.
        ({"steps": 5, "batch_size": 7}, 5 * 64),
        # 300 images make 3 steps of 100 an epoch.
        ({"epochs": 2.0, "batch_size": 100}, 6 * 100),
    ],
)
def test_images_of_theta_s_training(initialization: dict[str, Any], images: int) -> None:
    assert plan(initialization=initialization).compute_images[0].total == images


def test_images_of_the_soup_are_those_of_its_evaluations() -> None:
    soup = {"num_alphas": 4, "batch_norm_examples": 50}
    learners = {"num_learners": 3, "batch_size": 1}
    # Each learner alone, and two of them at 4 ratios; 250 images each.
    assert plan(soup=soup, learners=learners).compute_images[1].total == (3 + 2 * 4) * 250
    uniform = {**soup, "method": "uniform"}
    assert plan(soup=uniform, learners=learners).compute_images[1].total == 3 * 250


def test_halving_takes_images_of_slices_and_of_the_last_ratios() -> None:
    soup = {"num_alphas": 4, "batch_norm_examples": 50, "search": "halving"}
    learners = {"num_learners": 3, "batch_size": 1}
    # 4 ratios on 5 of 200 examples, 2 on 10, the last on all; batch norm takes 16, 16 and 50.
    halved = 4 * (5 + 16) + 2 * (10 + 16) + 250
    assert halved == 386
    # Rounded up to a multiple of the ratios, for each of two learners.
    planned = plan(soup=soup, learners=learners)
    assert planned.compute_images[1].total == 3 * 250 + 2 * 388


def test_disk_is_weights_shards_results_and_snapshots() -> None:
    learners = {"num_learners": 5, "num_minibatches": 2, "batch_size": 3, "num_snapshots": 4}
    assert totals(plan(learners=learners).max_blob_bytes) == [100, 2 * 3 * 12]
    # A result has a mask of a bit for each value of 4 bytes.
    assert plan(learners=learners).run_disk[0].total == (
        2 * 100 + 5 * (2 * 3 * 12 + 103) + 4 * 5 * 103
    )


def test_of_frozen_layers_nothing_is_handed_in() -> None:
    config = validate(RunConfig, {"learners": {"num_learners": 3, "num_snapshots": 2}})
    figures = replace(FIGURES, frozen_bytes=36)
    whole, parts = (
        plan_run(config, given, DATA, evaluation_batch_size=16).run_disk[0].total
        for given in (FIGURES, figures)
    )
    # 100 and a mask of 3, or 64 and one of 2: of a result and two snapshots of each learner.
    assert whole - parts == 3 * 3 * (103 - 66)


GB = 10**9
MACHINE = Machine(num_cores=2, memory_bytes=10 * GB)
MOST = 2**31 - 1
# resnet18 on 32x32 pixels, about; and ten thousand examples of ten classes.
RESNET18 = ModelFigures(45 * 10**6, 5_300_000, 1_300_000)
TEN_THOUSAND = DataFigures((1000,) * 10, ImageSpec(3, 32, 32))


def limits(free_disk_bytes: int = 100 * GB, **settings: Any) -> dict[str, Limit]:
    return ceilings(validate(LimitSettings, settings), MACHINE, free_disk_bytes=free_disk_bytes)


def broken(settings: dict[str, Any] | None = None, **config: Any) -> tuple[Violation, ...]:
    plan = plan_run(validate(RunConfig, config), RESNET18, TEN_THOUSAND, evaluation_batch_size=64)
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
        ({"initialization": {"steps": MOST}}, "initialization.steps", "limits.compute_images"),
        ({"learners": {"num_steps": MOST}}, "learners.num_steps", "limits.worker_images"),
        ({"learners": {"max_attempts": MOST}}, "learners.num_steps", "limits.worker_images"),
    ],
)
def test_a_setting_that_asks_for_too_much_is_named_with_its_limit(
    config: dict[str, Any], knob: str, limit: str
) -> None:
    found = broken(**config)
    assert [(item.knob, item.limit.name) for item in found] == [(knob, limit)]


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
    assert found.knob == "model"
    assert str(found).startswith("model = resnet18: ")
    assert "Choose a smaller model, a lower evaluation_threads, or raise limits" in str(found)


def test_a_batch_that_does_not_fit_a_worker_is_told_which_would() -> None:
    learners = {"batch_size": 9000, "num_learners": 1, "num_steps": 1}
    (found,) = broken({"worker_memory": "40GB"}, learners=learners)
    assert found.knob == "learners.batch_size"
    # Of 40 GB the process takes 1 GiB, the weights 225 MB, a thread 8 MiB; the shard's 9000 images
    # 6144 bytes each. An image takes 5.3 MB, and 9 bytes for each of its 3072 numbers.
    left = 40 * GB - 2**30 - 225_000_000 - 2**23 - 9000 * 6144
    assert f"Lower learners.batch_size to at most {left // (5_300_000 + 27_648)}, or" in str(found)
