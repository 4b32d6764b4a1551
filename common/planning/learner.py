"""Learner's cost: threads, memory and images of one learner, wherever it is trained.

Memory is what a CPU takes in float32, main memory and a device's own together. Measured on
networks of five kinds, a batch takes 0.85 to 1.0 times what is planned in training, MobileNet
1.8 times; in evaluation 1.0 to 1.4 times.
"""

from __future__ import annotations

from lipt.common.config.run_config import LearnersConfig
from lipt.common.models.footprint import ModelFigures
from lipt.common.planning.costs import Cost, Part, Unit

# An interpreter with torch and its libraries.
PROCESS_BYTES = 2**30
# A thread's stack, and what a library keeps for each.
THREAD_BYTES = 2**23
# theta*, the model, its gradient, its momentum, and one in the making: an update, or the result.
MODEL_COPIES = 5
# Of these the last three are of what is trained alone.
_TRAINED_COPIES = 3
# Of a batch, for each byte of a stored example: of images uint8 before and after augmentation, and
# float32 as they are normalized; columns take less. What the model makes of them is among its
# figures.
INPUT_BYTES = 6
# Likewise, of what is made ahead while a learner is trained on a batch, whose uint8 is there only
# once by then: one batch that is ready, and one that augmentation has three times.
_AHEAD_BYTES = 3
# A step on fewer images takes no less time.
STEP_IMAGES = 64
# A shard's file, and its examples.
_SHARD_COPIES = 2


def training_bytes_per_example(figures: ModelFigures, example_bytes: int) -> int:
    """What an example of a batch takes while a model is trained on it, by its stored bytes."""
    return figures.training_bytes + INPUT_BYTES * example_bytes


def learner_threads(learners: LearnersConfig) -> Cost:
    """Threads of a worker."""
    part = Part("learners.cpu_threads", learners.cpu_threads, 1, "training")
    return Cost("training of a learner", Unit.THREADS, (part,))


def learner_images(learners: LearnersConfig) -> Cost:
    """Images that a learner puts through its model, should it take all of its attempts."""
    each = learners.num_minibatches * max(learners.batch_size, STEP_IMAGES) * learners.max_attempts
    part = Part("learners.num_steps", learners.num_steps, each, "its steps, in every attempt")
    return Cost("training of a learner", Unit.IMAGES, (part,))


def learner_memory(
    learners: LearnersConfig, model: str, figures: ModelFigures, *, example_bytes: int
) -> Cost:
    """Memory of a worker while it trains a learner."""
    sent = figures.sent_bytes
    # In the mean.
    copy = figures.weights_bytes - figures.frozen_bytes * _TRAINED_COPIES // MODEL_COPIES
    shard = learners.num_minibatches, learners.batch_size * example_bytes * _SHARD_COPIES
    return Cost(
        "memory of a worker",
        Unit.BYTES,
        (
            Part("", 1, PROCESS_BYTES, "its process"),
            Part("model", MODEL_COPIES, copy, "copies of the weights", None, model),
            Part(
                "learners.batch_size",
                learners.batch_size,
                training_bytes_per_example(figures, example_bytes) + _AHEAD_BYTES * example_bytes,
                "the activations of a minibatch",
            ),
            Part("learners.num_minibatches", *shard, "the shard"),
            Part("learners.num_snapshots", learners.num_snapshots, sent, "snapshots", 0),
            Part("learners.cpu_threads", learners.cpu_threads, THREAD_BYTES, "threads"),
        ),
    )
