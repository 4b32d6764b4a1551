"""A plan by hand.

Weights of 100 bytes; an image has 1 x 2 x 6 = 12 numbers and takes 1000 bytes in training and 300
in evaluation. Ten classes of 50 examples: 20 of each are held out, so 200 and 300 are left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import validate
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning import PROCESS_BYTES, THREAD_BYTES, Cost
from lipt.coordinator.planning.plan import DataFigures, RunPlan, plan_run

FIGURES = ModelFigures(
    weights_bytes=100, trained_bytes=90, training_bytes=1000, evaluation_bytes=300
)
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


def test_batch_norm_that_is_left_alone_takes_no_images() -> None:
    soup = plan(soup={"reestimate_batch_norm": False}).compute_memory[2]
    assert soup.total == ALWAYS + THREAD_BYTES + 200 * 12 + 16 * (300 + 6 * 12) + 100


def test_a_set_that_is_read_from_disk_takes_no_memory() -> None:
    large = DataFigures((10_000,) * 100, ImageSpec(3, 224, 224))
    assert large.resident_bytes == 0
    assert DATA.resident_bytes == 500 * 3 * 12


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


def test_disk_is_weights_shards_results_and_snapshots() -> None:
    learners = {"num_learners": 5, "num_minibatches": 2, "batch_size": 3, "num_snapshots": 4}
    # A result has a mask of a bit for each value of 4 bytes.
    assert plan(learners=learners).run_disk[0].total == (
        2 * 100 + 5 * (2 * 3 * 12 + 103) + 4 * 5 * 103
    )


def test_files_are_weights_and_a_shard() -> None:
    learners = {"num_minibatches": 2, "batch_size": 3}
    assert totals(plan(learners=learners).max_blob_bytes) == [100, 2 * 3 * 12]


def test_of_frozen_layers_nothing_is_handed_in() -> None:
    config = validate(RunConfig, {"learners": {"num_learners": 3, "num_snapshots": 2}})
    figures = replace(FIGURES, frozen_bytes=36)
    whole, parts = (
        plan_run(config, given, DATA, evaluation_batch_size=16).run_disk[0].total
        for given in (FIGURES, figures)
    )
    # 100 and a mask of 3, or 64 and one of 2: of a result and two snapshots of each learner.
    assert whole - parts == 3 * 3 * (103 - 66)
