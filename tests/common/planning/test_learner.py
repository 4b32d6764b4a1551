"""A learner's cost by hand: weights of 100 bytes, images of 12 numbers that take 1000 bytes."""

from __future__ import annotations

from dataclasses import replace

from lipt.common.config.run_config import LearnersConfig
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning.learner import (
    PROCESS_BYTES,
    THREAD_BYTES,
    learner_images,
    learner_memory,
)

FIGURES = ModelFigures(
    weights_bytes=100, trained_bytes=90, training_bytes=1000, evaluation_bytes=300
)


def test_memory_is_weights_activations_shard_snapshots_and_threads() -> None:
    learners = LearnersConfig(
        num_minibatches=3, batch_size=4, num_steps=9, num_snapshots=7, cpu_threads=2
    )
    cost = learner_memory(learners, "mine", FIGURES, example_bytes=12)
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
    assert [part.knob for part in cost.parts if part.knob] == [
        "model",
        "learners.batch_size",
        "learners.num_minibatches",
        "learners.num_snapshots",
        "learners.cpu_threads",
    ]


def test_images_are_those_of_all_steps_and_attempts() -> None:
    learners = LearnersConfig(num_steps=10, num_minibatches=2, batch_size=100, max_attempts=3)
    assert learner_images(learners).total == 10 * 2 * 100 * 3


def test_frozen_layers_have_neither_gradient_nor_momentum_nor_snapshots() -> None:
    learners = LearnersConfig(num_steps=9, num_snapshots=7)
    kinds = [replace(FIGURES, frozen_bytes=size) for size in (0, 40)]
    whole, parts = (
        learner_memory(learners, "mine", figures, example_bytes=12).total for figures in kinds
    )
    assert whole - parts == (3 + 7) * 40
