"""The soup streams learners from disk: their number does not show in its memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipt.common.images.formats import ImageFormat
from lipt.common.targets.values import SingleLabel
from lipt.common.weights.encodings import encode_sparse, open_weights
from lipt.common.weights.specs import Weights, specs_of
from lipt.core.evaluation import Evaluator, Scored
from lipt.core.soup import greedy_soup, uniform_soup
from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.memory import reset_peak, resident_bytes
from tests.one_by_one import one_by_one

MODEL_BYTES = 16 * 2**20


def learner() -> Weights:
    """16 MiB in eight tensors, a tenth of them zero."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(8, 2**19, generator=generator)
    weights[torch.rand(weights.shape, generator=generator) < 0.1] = 0.0
    return {f"w{number}": tensor.clone() for number, tensor in enumerate(weights)}


def growth(cluster: Cluster, method: str, path: Path, num_learners: int) -> int:
    # What is freed goes back at once, so that what is counted is what is in use.
    process = cluster.start(
        f"soup-{num_learners}",
        ["-m", "tests.faults.test_soup_memory", method, str(path), str(num_learners)],
        {"MALLOC_MMAP_THRESHOLD_": "262144"},
    )
    assert process.wait() == 0, process.text()
    return int(process.wait_for(r"growth (\d+)")[1])


@pytest.mark.parametrize(
    ("method", "num_learners"),
    [
        ("greedy", 12),
        pytest.param("greedy", 64, marks=pytest.mark.faults),
        pytest.param("uniform", 64, marks=pytest.mark.faults),
    ],
)
def test_memory_of_a_soup_does_not_grow_with_its_learners(
    cluster: Cluster, method: str, num_learners: int, record: Record
) -> None:
    path = cluster.directory / "learner"
    path.write_bytes(encode_sparse(learner()))
    few, many = (growth(cluster, method, path, num) for num in (4, num_learners))
    models = [f"{size / MODEL_BYTES:.2f} models' worth" for size in (few, many)]
    record(f"4 learners {models[0]}, {num_learners} learners {models[1]}")
    # The soup, the ingredient, the model that evaluates, one of eight tensors in the making, and
    # up to half a model of pages that the allocator has not given back.
    assert max(few, many) <= 3.7 * MODEL_BYTES


class Held(nn.Module):
    """A model that holds weights, and does nothing with them."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        for name, tensor in weights.items():
            self.register_parameter(name, nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).float()


def main() -> None:
    """Make a soup of one file read n times, and print how much memory that took at most.

    Counted is what comes on top of the evaluator, and its model with it.
    """
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
