"""Makes a soup of one file read n times, and prints how much memory that took at most.

Counted is what comes on top of the evaluator, and its model with it.

Run: python soup_memory.py METHOD FILE NUM_LEARNERS
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.images.formats import ImageFormat
from lipt.common.targets.values import SingleLabel
from lipt.common.weights.encodings import open_weights
from lipt.common.weights.specs import Weights, specs_of
from lipt.core.evaluation import Evaluator, Scored
from lipt.core.soup import greedy_soup, uniform_soup
from tests.faults.memory import reset_peak, resident_bytes
from tests.faults.test_soup_memory import learner
from tests.one_by_one import one_by_one


class Held(nn.Module):
    """A model that holds weights, and does nothing with them."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        for name, tensor in weights.items():
            self.register_parameter(name, nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).float()


def main() -> None:
    method, path, num_learners = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    specs = specs_of(learner())
    scores = iter(range(10**9))

    def evaluate(weights: Mapping[str, Tensor]) -> Scored:
        evaluator(weights)
        return Scored(next(scores) / 1e9, {})  # each mixture is the best so far

    def opened() -> Mapping[str, torch.Tensor]:
        return open_weights(path, like=specs)

    def ignore(_done: int, _total: int) -> None:
        """No progress bar."""

    evaluator = Evaluator(
        model=Held(learner()),
        inputs=ImageFormat(1, 1, 1, mean=(0.0,), std=(1.0,)),
        device="cpu",
        examples_N=torch.zeros(1, 1, 1, 1, dtype=torch.uint8),
        target=SingleLabel(1),
        targets_N=torch.zeros(1, dtype=torch.int64),
        batch_norm_examples_M=None,
    )
    evaluator(opened())
    gc.collect()
    reset_peak()
    before = resident_bytes()
    learners = [opened] * num_learners
    if method == "greedy":
        soup = greedy_soup(learners, one_by_one(evaluate), num_alphas=2, on_progress=ignore)
    else:
        soup = uniform_soup(learners, one_by_one(evaluate), on_progress=ignore)
    assert sum(item.kept for item in soup.ingredients.values()) == num_learners
    model_bytes = sum(spec.num_bytes for spec in specs.values())
    sys.stdout.write(f"growth {resident_bytes(peak=True) - before + model_bytes}\n")


if __name__ == "__main__":
    main()
