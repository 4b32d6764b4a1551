"""A few digits, as a user has them, and a run on them that is done in seconds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from tests.service import SMALLEST

QUICK = SMALLEST


def few_digits(number: int = 240) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    digits: Any = load_digits()
    return (digits.images[:number] * 15).astype(np.uint8), digits.target[:number].astype(np.int64)
