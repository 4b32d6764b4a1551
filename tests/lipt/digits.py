"""A few digits, as a user has them, and a run on them that is done in seconds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

# Two learners that see next to nothing.
QUICK: Mapping[str, Any] = {
    "learners": {"num_learners": 2, "num_steps": 1, "num_minibatches": 1, "batch_size": 16},
    "soup": {"batch_norm_examples": 32},
}


def few_digits(number: int = 240) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    digits: Any = load_digits()
    return (digits.images[:number] * 15).astype(np.uint8), digits.target[:number].astype(np.int64)
