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
    excesses,
    plan_learner,
    plan_run,
)
from lipt.data.inputs.specs import ImageSpec
from lipt.models.footprint import ModelFigures

MB = 10**6


def memory(*parts: Part) -> PlannedCost:
    return PlannedCost("worker_memory", "bytes", "memory of a worker", parts)


def excess(cost: PlannedCost, limit: Limit) -> list[str]:
    return list(excesses([cost], {"worker_memory": limit}))


def test_over_limit_error_names_the_largest_part_and_the_largest_fitting_value() -> None:
    cost = memory(Part("", 1, 10 * MB, "its process"), Part("a.size", 100, MB, "a batch"))
    limit = Limit("limits.m", 50 * MB)
    [sentence] = excess(cost, limit)
    assert sentence == (
        "a.size = 100: memory of a worker comes to 110.0 MB, 100.0 MB of it for a batch, over "
        "limits.m = 50.0 MB. Lower a.size to at most 40, or raise limits.m."
    )
    assert excess(memory(cost.parts[0], Part("a.size", 40, MB, "a batch")), limit) == []


@pytest.mark.parametrize(
    ("parts", "remedy"),
    [
        # Not even the lowest value fits beside the rest.
        ((Part("a", 2, 60, "x"), Part("b", 1, 50, "y")), "Choose a lower a, a lower b, or raise m"),
        # Or it may be none at all.
        ((Part("a", 2, 60, "x", 0), Part("b", 1, 50, "y")), "Lower a to at most 0, or raise m"),
        # What it is set to is no number that costs.
        (
            (Part("model", 5, 60, "copies", None, "resnet18"), Part("b", 1, 50, "y")),
            "Choose a smaller model, a lower b, or raise m",
        ),
        ((Part("", 2, 60, "x"), Part("b", 0, 50, "y")), "Raise m"),
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


def test_memory_of_each_stage() -> None:
    planned = plan(
        initialization={"steps": 5, "batch_size": 7},
        learners={"num_minibatches": 2, "batch_size": 3},
        soup={"batch_norm_examples": 11},
    )
    stages = (planned.initialization, planned.shards, planned.soup)
    assert [stage.memory.total for stage in stages] == [
        ALWAYS + THREAD_BYTES + 7 * (1000 + 6 * 12),
        ALWAYS + THREAD_BYTES + 2 * 3 * 12 * 3,
        ALWAYS + THREAD_BYTES + 200 * 12 + 11 * 12 + 16 * (300 + 6 * 12) + 100,
    ]


def test_batches_are_limited_by_the_data_set() -> None:
    planned = plan(
        initialization={"steps": 5, "batch_size": 2**31 - 1},
        soup={"batch_norm_examples": 2**31 - 1},
    )
    trained = ALWAYS + THREAD_BYTES + 300 * (1000 + 6 * 12)
    assert planned.initialization.memory.total == trained
    assert (
        planned.soup.memory.total
        == ALWAYS + THREAD_BYTES + 200 * 12 + 300 * 12 + 16 * (300 + 6 * 12) + 100
    )


def test_every_parallel_evaluation_has_a_model_and_a_batch() -> None:
    learners = {"num_learners": 10}
    one, four, all_ = (
        plan(evaluation_threads=number, learners=learners).soup.memory.total
        for number in (1, 4, 200)
    )
    each = 16 * (300 + 6 * 12) + 100
    assert four - one == 3 * (each + THREAD_BYTES)
    # Of ten learners, and nine mixtures of each, no more than ten are asked for together.
    assert all_ - one == 9 * each + 199 * THREAD_BYTES


def test_an_untrained_theta_star_costs_no_activations_or_images() -> None:
    costs = plan(learners={"cpu_threads": 1}).initialization
    assert costs.memory.total == ALWAYS + THREAD_BYTES
    assert (costs.images.total, costs.threads.total) == (0, 0)


def test_a_plan_counts_evaluation_and_training_threads() -> None:
    planned = plan(evaluation_threads=3, initialization={"steps": 1}, learners={"cpu_threads": 9})
    stages = (planned.soup, planned.initialization, planned.learner)
    assert [stage.threads.total for stage in stages] == [3, 9, 9]
    assert planned.soup.memory.parts[2].cost == 9 * THREAD_BYTES


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
    assert plan(initialization=initialization).initialization.images.total == images


@pytest.mark.parametrize(
    ("method", "evaluations"),
    # Each learner alone, and two of them once or at 4 ratios.
    [("greedy", 3 + 2), ("interpolation", 3 + 2 * 4), ("uniform", 3)],
)
def test_a_plan_counts_images_of_the_soup_s_evaluations(method: str, evaluations: int) -> None:
    soup = {"method": method, "num_alphas": 4, "batch_norm_examples": 50}
    learners = {"num_learners": 3, "batch_size": 1}
    assert plan(soup=soup, learners=learners).soup.images.total == evaluations * 250


def test_disk_is_weights_shards_results_and_snapshots() -> None:
    learners = {"num_learners": 5, "num_minibatches": 2, "batch_size": 3, "num_snapshots": 4}
    disk, *files = plan(learners=learners).files
    assert [cost.total for cost in files] == [100, 2 * 3 * 12]
    # A result has a mask of a bit for each value of 4 bytes.
    assert disk.total == 2 * 100 + 5 * (2 * 3 * 12 + 103) + 4 * 5 * 103


def test_frozen_layers_are_not_submitted() -> None:
    learners = {"num_learners": 3, "num_snapshots": 2}
    whole, parts = (
        plan(figures, learners=learners).files[0].total
        for figures in (FIGURES, replace(FIGURES, frozen_bytes=36))
    )
    # 100 and a mask of 3, or 64 and one of 2: of a result and two snapshots of each learner.
    assert whole - parts == 3 * 3 * (103 - 66)


def test_parts_of_a_minibatch_take_their_share_of_its_activations() -> None:
    whole, parts = (
        plan_learner(
            LearnersConfig(num_minibatches=3, batch_size=4, accumulation_steps=number),
            *("mine", FIGURES),
            example_bytes=12,
        ).memory.total
        for number in (1, 4)
    )
    assert whole - parts == 4 * (1000 + 6 * 12) * 3 // 4


def test_memory_and_images_of_a_learner_are_counted() -> None:
    learners = LearnersConfig(
        num_minibatches=3, batch_size=4, num_steps=9, num_snapshots=7, cpu_threads=2
    )
    cost = plan_learner(learners, "mine", FIGURES, example_bytes=12).memory
    assert cost.total == (
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
    knobs = [part.knob for part in cost.parts if part.knob]
    assert knobs == ["model", *(f"learners.{name}" for name in settings)]
    for batch_size, counted in ((100, 100), (1, 64)):
        learners = LearnersConfig(num_minibatches=2, batch_size=batch_size, max_attempts=3)
        images = plan_learner(learners, "mine", FIGURES, example_bytes=12).images
        assert images.total == 10 * 2 * counted * 3
    learners = LearnersConfig(num_steps=9, num_snapshots=7)
    kinds = [replace(FIGURES, frozen_bytes=size) for size in (0, 40)]
    whole, parts = (
        plan_learner(learners, "mine", figures, example_bytes=12).memory.total for figures in kinds
    )
    assert whole - parts == (3 + 7) * 40
