"""Makes a soup of one file read n times, and prints how much more memory that took at most.

Run: python soup_memory.py FILE NUM_LEARNERS
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from lipt.common.weights.sparse import decode_sparse
from lipt.common.weights.specs import Weights, specs_of
from lipt.coordinator.evaluation import Scored
from lipt.coordinator.pretraining.soup import greedy_soup
from tests.faults.memory import reset_peak, resident_bytes
from tests.faults.test_soup_memory import learner


def main() -> None:
    path, num_learners = Path(sys.argv[1]), int(sys.argv[2])
    specs = specs_of(learner())
    gc.collect()
    scores = iter(range(10**9))

    def evaluate(weights: Weights) -> Scored:
        return Scored(next(scores) / 1e9, {})  # each mixture is the best so far

    def load() -> Weights:
        return decode_sparse(path, like=specs)

    load()
    reset_peak()
    before = resident_bytes()
    soup = greedy_soup(
        [load] * num_learners, evaluate, num_alphas=2, on_progress=lambda _done, _total: None
    )
    assert sum(item.kept for item in soup.ingredients) == num_learners
    sys.stdout.write(f"growth {resident_bytes(peak=True) - before}\n")


if __name__ == "__main__":
    main()
