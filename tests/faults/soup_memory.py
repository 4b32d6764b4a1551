"""Makes a soup of one file read n times, and prints how much memory that took at most.

Counted is what comes on top of the evaluator, and its model with it.

Run: python soup_memory.py FILE NUM_LEARNERS
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.learner_task import ImageFormat
from lipt.common.weights.sparse import decode_sparse
from lipt.common.weights.specs import Weights, specs_of
from lipt.coordinator.evaluation import Evaluator, Scored
from lipt.coordinator.pretraining.soup import greedy_soup
from tests.faults.memory import reset_peak, resident_bytes
from tests.faults.test_soup_memory import learner


class Held(nn.Module):
    """A model that holds weights, and does nothing with them."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        for name, tensor in weights.items():
            self.register_parameter(name, nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).float()


def main() -> None:
    path, num_learners = Path(sys.argv[1]), int(sys.argv[2])
    specs = specs_of(learner())
    scores = iter(range(10**9))

    def evaluate(weights: Mapping[str, Tensor]) -> Scored:
        evaluator(weights)
        return Scored(next(scores) / 1e9, {})  # each mixture is the best so far

    def load() -> Weights:
        return decode_sparse(path, like=specs)

    evaluator = Evaluator(
        model=Held(learner()),
        image=ImageFormat(1, 1, 1, mean=(0.0,), std=(1.0,)),
        device="cpu",
        images_NCHW=torch.zeros(1, 1, 1, 1, dtype=torch.uint8),
        labels_N=torch.zeros(1, dtype=torch.int64),
        batch_norm_images_MCHW=None,
    )
    evaluator(load())
    gc.collect()
    reset_peak()
    before = resident_bytes()
    soup = greedy_soup(
        [load] * num_learners, evaluate, num_alphas=2, on_progress=lambda _done, _total: None
    )
    assert sum(item.kept for item in soup.ingredients) == num_learners
    model_bytes = sum(spec.num_bytes for spec in specs.values())
    sys.stdout.write(f"growth {resident_bytes(peak=True) - before + model_bytes}\n")


if __name__ == "__main__":
    main()
