"""How fast pruned weights become bytes and back in each encoding, on one core, and how small.

Weights of a CIFAR ResNet-18's shapes (44.7 MB in fp32), random values at the given
densities. Speeds are in MB of dense weights per second, and as a share of a plain
copy in the same run. Run: python benchmarks/sparse_codec.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from lipt.common.config.run_config import WeightEncoding
from lipt.common.weights.encodings import encode_weights, open_weights
from lipt.common.weights.files import pack, read_weights
from lipt.common.weights.specs import Weights, specs_of

ResultT = TypeVar("ResultT")

REPEATS = 5


def resnet18_like(density: float) -> Weights:
    """ResNet-18's tensors for 32x32 images, 10 classes, with (1 - density) zeros in each."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv1.weight": (64, 3, 3, 3), "fc.weight": (10, 512), "fc.bias": (10,)}
    for stage, width in enumerate((64, 128, 256, 512)):
        for index in range(4):
            inputs = width // 2 if stage and not index else width
            shapes[f"layer{stage + 1}.{index}.conv.weight"] = (width, inputs, 3, 3)
            shapes[f"layer{stage + 1}.{index}.bn.weight"] = (width,)
            shapes[f"layer{stage + 1}.{index}.bn.bias"] = (width,)
        if stage:
            shapes[f"layer{stage + 1}.shortcut.weight"] = (width, width // 2, 1, 1)
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        values[torch.rand(shape, generator=generator) >= density] = 0.0
        weights[name] = values
    return weights


def timed(function: Callable[[], ResultT]) -> tuple[ResultT, float]:
    """The result and the median seconds of some calls, after one that warms up."""
    result = function()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return result, sorted(seconds)[REPEATS // 2]


def measure(density: float) -> None:
    """Print a row per operation."""
    weights = resnet18_like(density)
    like = specs_of(weights)
    dense_mb = sum(spec.num_bytes for spec in like.values()) / 1e6
    _, copy_seconds = timed(lambda: {name: tensor.clone() for name, tensor in weights.items()})
    rows = []
    for encoding in WeightEncoding:
        content, encode_seconds = timed(lambda encoding=encoding: encode_weights(weights, encoding))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights"
            path.write_bytes(content)
            _, decode_seconds = timed(lambda path=path: dict(open_weights(path, like=like)))
        rows += [
            (f"encode {encoding}", content, encode_seconds),
            (f"decode {encoding} (mapped)", content, decode_seconds),
        ]
    dense, serialize_seconds = timed(lambda: pack(weights))
    _, read_seconds = timed(lambda: read_weights(dense, like=like, max_bytes=len(dense)))
    for what, data, seconds in (
        *rows,
        ("serialize dense", dense, serialize_seconds),
        ("read dense", dense, read_seconds),
    ):
        print(
            f"{density:>7} {what:<32} {len(data) / 1e6:>6.1f} {dense_mb / seconds:>6.0f} "
            f"{copy_seconds / seconds:>8.0%}"
        )


def main() -> None:
    """Measure some densities."""
    torch.set_num_threads(1)
    print(f"{'density':>7} {'what':<32} {'MB':>6} {'MB/s':>6} {'of a copy':>9}")
    for density in (0.85, 0.9, 0.95, 0.5):
        measure(density)


if __name__ == "__main__":
    main()
