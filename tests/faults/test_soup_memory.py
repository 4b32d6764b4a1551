"""The soup streams learners from disk: their number does not show in its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipt.common.weights.encodings import encode_sparse
from lipt.common.weights.specs import Weights
from tests.cluster import Cluster
from tests.faults.conftest import Record

SCRIPT = "tests.faults.soup_memory"
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
        ["-m", SCRIPT, method, str(path), str(num_learners)],
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
