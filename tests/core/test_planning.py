"""Costs of runs, counted by hand.

Weights take 100 bytes; an image has 1 x 2 x 6 = 12 numbers and takes 1000 bytes in training and 300
in evaluation. Ten classes have 50 examples: 20 of each are held out, so 200 and 300 are left.
"""

from dataclasses import replace
from typing import Any

import pytest

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.config.values import validate
from lipt.core.planning import (
    PROCESS_BYTES,
    THREAD_BYTES,
    Limit,
    Part,
    PlannedCost,
    RunPlan,
    Stage,
    excesses,
    plan_learner,
    plan_run,
    total,
)
from lipt.data.inputs.specs import ImageSpec
from lipt.models.footprint import ModelFigures

MB = 10**6


def memory(*parts: Part) -> PlannedCost:
    return PlannedCost("worker_memory", "bytes", "memory of a worker", parts)


def excess(cost: PlannedCost, limit: Limit) -> list[str]:
    return list(excesses([cost], {"worker_memory": limit}))


def test_over_limit_error_names_the_largest_part_and_the_largest_fitting_value() -> None:
    process, batch = Part("its process", 10 * MB), Part("a batch", 100, MB, "a.size", 100)
    cost = memory(process, batch)
    limit = Limit("limits.m", 50 * MB)
    [sentence] = excess(cost, limit)
    assert sentence == (
        "a.size = 100: memory of a worker comes to 110.0 MB, 100.0 MB of it for a batch, over "
        "limits.m = 50.0 MB. Lower a.size to at most 40, or raise limits.m."
    )
    assert excess(memory(process, replace(batch, count=40)), limit) == []


@pytest.mark.parametrize(
    ("parts", "remedy"),
    [
        # Not even the lowest value fits beside the rest.
        (
            (Part("x", 2, 60, "a", 2), Part("y", 1, 50, "b", 1)),
            "Choose a lower a, a lower b, or raise m",
        ),
        # What it is set to is no number that costs.
        (
            (Part("copies", 5, 60, "model", "resnet18"), Part("y", 1, 50, "b", 1)),
            "Choose a smaller model, a lower b, or raise m",
        ),
        ((Part("x", 2, 60), Part("y", 0, 50, "b", 0)), "Raise m"),
    ],
)
def test_over_limit_error_without_a_fitting_value(parts: tuple[Part, ...], remedy: str) -> None:
    [sentence] = excess(memory(*parts), Limit("m", 100))
    assert sentence.endswith(f" {remedy}.")


FIGURES = ModelFigures(weights_bytes=100, training_bytes=1000, evaluation_bytes=300)
INPUTS, COUNTS = ImageSpec(1, 2, 6), (50,) * 10
# The process, the data as RGB, and five copies of the weights.
ALWAYS = PROCESS_BYTES + 500 * 3 * 12 + 5 * 100


def plan(figures: ModelFigures = FIGURES, **sections: Any) -> RunPlan:
    config = validate(RunConfig, {"evaluation_threads": 1, **sections})
    return plan_run(config, figures, INPUTS, COUNTS, evaluation_batch_size=16)


def learner(figures: ModelFigures = FIGURES, **settings: Any) -> Stage:
    config = RunConfig(model="mine", learners=LearnersConfig(**settings))
    return plan_learner(config, figures, example_bytes=12)


def memories(planned: RunPlan) -> dict[str, int]:
    return {stage.name: total(stage.memory) for stage in planned.stages}


def stage_of(planned: RunPlan, name: str) -> Stage:
    [found] = [stage for stage in planned.stages if stage.name == name]
    return found


def test_memory_of_each_stage() -> None:
    planned = plan(
        initialization={"steps": 5, "batch_size": 7},
        learners={"num_minibatches": 2, "batch_size": 3},
        soup={"batch_norm_examples": 11},
    )
    found = memories(planned)
    assert found["theta*"] == ALWAYS + THREAD_BYTES + 7 * (1000 + 6 * 12)
    assert found["shards"] == ALWAYS + THREAD_BYTES + 2 * 3 * 12 * 3
    scored = 200 * 12 + 11 * 12 + 16 * (300 + 6 * 12) + 100
    assert found["soup"] == ALWAYS + THREAD_BYTES + scored


def test_batches_are_limited_by_the_data_set() -> None:
    planned = plan(
        initialization={"steps": 5, "batch_size": 2**31 - 1},
        soup={"batch_norm_examples": 2**31 - 1},
    )
    found, scored = memories(planned), 200 * 12 + 300 * 12 + 16 * (300 + 6 * 12) + 100
    assert found["theta*"] == ALWAYS + THREAD_BYTES + 300 * (1000 + 6 * 12)
    assert found["soup"] == ALWAYS + THREAD_BYTES + scored


def test_every_parallel_evaluation_has_a_model_and_a_batch() -> None:
    learners = {"num_learners": 10}
    one, four, all_ = (
        memories(plan(evaluation_threads=number, learners=learners))["soup"]
        for number in (1, 4, 200)
    )
    each = 16 * (300 + 6 * 12) + 100
    assert four - one == 3 * (each + THREAD_BYTES)
    # Of ten learners, and nine mixtures of each, no more than ten are asked for together.
    assert all_ - one == 9 * each + 199 * THREAD_BYTES


def test_an_untrained_theta_star_costs_no_activations_or_images() -> None:
    theta = stage_of(plan(learners={"cpu_threads": 1}), "theta*")
    assert total(theta.memory) == ALWAYS + THREAD_BYTES
    assert (total(theta.images), total(theta.threads)) == (0, 0)


def test_a_plan_counts_evaluation_and_training_threads() -> None:
    planned = plan(evaluation_threads=3, initialization={"steps": 1}, learners={"cpu_threads": 9})
    threads = {stage.name: total(stage.threads) for stage in planned.stages}
    assert threads == {"theta*": 9, "shards": 0, "learners": 9, "soup": 3}
    assert stage_of(planned, "soup").memory[2].cost == 9 * THREAD_BYTES


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
def test_a_plan_counts_images_of_initialization(
    initialization: dict[str, Any], images: int
) -> None:
    assert total(stage_of(plan(initialization=initialization), "theta*").images) == images


@pytest.mark.parametrize(
    ("method", "evaluations"),
    # Each learner alone, and two of them once or at 4 ratios.
    [("greedy", 3 + 2), ("interpolation", 3 + 2 * 4), ("uniform", 3)],
)
def test_a_plan_counts_images_of_the_soup_s_evaluations(method: str, evaluations: int) -> None:
    soup = {"method": method, "num_alphas": 4, "batch_norm_examples": 50}
    learners = {"num_learners": 3, "batch_size": 1}
    planned = stage_of(plan(soup=soup, learners=learners), "soup")
    assert total(planned.images) == evaluations * 250


def test_a_simplex_soup_keeps_every_learner_and_its_difference_from_theta_star() -> None:
    learners = {"num_learners": 3}
    greedy, simplex = (
        memories(plan(soup={"method": method}, learners=learners))["soup"]
        for method in ("greedy", "simplex")
    )
    # Each of the three takes 100 bytes, and so does its difference.
    assert simplex - greedy == 3 * 2 * 100


def test_disk_is_weights_shards_results_and_snapshots() -> None:
    learners = {"num_learners": 5, "num_minibatches": 2, "batch_size": 3, "num_snapshots": 4}
    disk, *files = plan(learners=learners).files
    assert [total(cost.parts) for cost in files] == [100, 2 * 3 * 12]
    # A result has a mask of a bit for each value of 4 bytes.
    assert total(disk.parts) == 2 * 100 + 5 * (2 * 3 * 12 + 103) + 4 * 5 * 103


def test_frozen_layers_are_not_submitted() -> None:
    learners = {"num_learners": 3, "num_snapshots": 2}
    whole, parts = (
        total(plan(figures, learners=learners).files[0].parts)
        for figures in (FIGURES, replace(FIGURES, frozen_bytes=36))
    )
    # 100 and a mask of 3, or 64 and one of 2: of a result and two snapshots of each learner.
    assert whole - parts == 3 * 3 * (103 - 66)


def test_parts_of_a_minibatch_take_their_share_of_its_activations() -> None:
    whole, parts = (
        total(learner(num_minibatches=3, batch_size=4, accumulation_steps=number).memory)
        for number in (1, 4)
    )
    assert whole - parts == 4 * (1000 + 6 * 12) * 3 // 4


def test_memory_and_images_of_a_learner_are_counted() -> None:
    memory = learner(
        num_minibatches=3, batch_size=4, num_steps=9, num_snapshots=7, cpu_threads=2
    ).memory
    assert total(memory) == (
        PROCESS_BYTES
        + 5 * 100
        # 6 bytes a pixel: before and after augmentation, and as a number; and 3 of those ahead.
        + 4 * (1000 + 6 * 12 + 3 * 12)
        # The file and its images.
        + 3 * 4 * 12 * 2
        + 7 * 100
        + 2 * THREAD_BYTES
    )
    settings = ("batch_size", "num_minibatches", "num_snapshots", "cpu_threads")
    knobs = [part.knob for part in memory if part.knob]
    assert knobs == ["model", *(f"learners.{name}" for name in settings)]
    for batch_size, counted in ((100, 100), (1, 64)):
        images = learner(num_minibatches=2, batch_size=batch_size, max_attempts=3).images
        assert total(images) == 10 * 2 * counted * 3
    kinds = [replace(FIGURES, frozen_bytes=size) for size in (0, 40)]
    whole, parts = (
        total(learner(figures, num_steps=9, num_snapshots=7).memory) for figures in kinds
    )
    assert whole - parts == (3 + 7) * 40
