"""Defaults of one call: a model for the kind of data, and learners that fit its size; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lipt.common.config.run_config import LearnersConfig, ValidationConfig
from lipt.coordinator.pretraining.sharding import num_validation_examples

# Images up to this keep their own size, and gain nothing from a network for larger ones.
_SMALL_IMAGE = 64
# A minibatch below this says little of ten classes; fewer learners get larger ones.
_FEWEST_IN_A_BATCH = 32
_FEWEST_LEARNERS = 2


def default_model(example: Any) -> str:
    """The built-in model for data whose examples look like this one.

    Args:
        example: an image (PIL, or an array or tensor of integers), features (floating point),
            token ids (one row of integers), or a dictionary of such things.
    """
    if isinstance(example, Mapping):
        return "text:tiny" if "input_ids" in example else "mlp"
    size = getattr(example, "size", None)
    if not hasattr(example, "dtype"):  # PIL: width and height
        large = isinstance(size, Sequence) and max(size) > _SMALL_IMAGE
        return "torchvision:resnet18" if large else "resnet8"
    if "float" in str(example.dtype):
        return "mlp"
    if len(example.shape) == 1:
        return "text:tiny"
    # Of channels, height and width the channels are never the most.
    return "resnet8" if max(example.shape) <= _SMALL_IMAGE else "torchvision:resnet18"


def fitting_run(class_counts: Sequence[int], learners: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run under which its shards fit the data; empty where the paper's own do.

    Args:
        class_counts: examples of each class.
        learners: the caller's own settings of learners, which stay.

    Returns:
        Overrides of a run, nested as in `RunConfig`.
    """
    config = LearnersConfig()
    num_train = sum(class_counts) - num_validation_examples(class_counts, ValidationConfig())
    given = {name for name in ("num_learners", "batch_size") if name in learners}
    number = int(learners.get("num_learners", config.num_learners))
    per_learner = int(learners.get("num_minibatches", config.num_minibatches))
    size = int(learners.get("batch_size", config.batch_size))
    if number * per_learner * size <= num_train or len(given) > 1:
        return {}
    if "batch_size" in given:
        return {"learners": {"num_learners": max(1, num_train // (per_learner * size))}}
    if "num_learners" not in given:
        most = num_train // (per_learner * _FEWEST_IN_A_BATCH)
        number = max(_FEWEST_LEARNERS, min(number, most))
    size = max(1, num_train // (number * per_learner))
    return {"learners": {"num_learners": number, "batch_size": min(size, config.batch_size)}}
