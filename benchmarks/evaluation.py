"""Images per second of the soup's evaluations: batch statistics, then accuracy.

Contiguous weights in batches of 128 against the layout and batch size that the
coordinator takes on a CPU, in turns, on as many threads as it uses by default.
Run: python benchmarks/evaluation.py
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model, lay_out
from lipt.common.targets.values import SingleLabel
from lipt.common.weights.specs import Weights
from lipt.core.evaluation import Evaluator, batch_size_for

ROUNDS = 5
CPU = torch.device("cpu")
CASES = [("resnet8", (3, 32, 32), 512), ("resnet8", (1, 8, 8), 4096), ("resnet18", (3, 32, 32), 64)]


def main() -> None:
    threads = RunConfig().evaluation_threads
    table = Table("model", "images", "contiguous, 128", "laid out", "ratio")
    table.title = f"images per second, {threads} threads, median of {ROUNDS} turns"
    with pinned_kernels(threads):
        for spec, shape, num_images in CASES:
            before, after = measure(spec, shape, num_images)
            size = "x".join(map(str, shape))
            table.add_row(spec, size, f"{before:.0f}", f"{after:.0f}", f"{after / before:.2f}")
    Console().print(table)


def measure(spec: str, shape: tuple[int, int, int], num_images: int) -> tuple[float, float]:
    images_NCHW = torch.randint(0, 256, (num_images, *shape), dtype=torch.uint8)
    labels_N = torch.zeros(num_images, dtype=torch.int64)
    image = ImageFormat(*shape, mean=(0.5,) * shape[0], std=(0.25,) * shape[0])

    def evaluator(model: torch.nn.Module, batch_size: int) -> Evaluator:
        return Evaluator(
            model, image, CPU, images_NCHW, SingleLabel(10), labels_N, images_NCHW, batch_size
        )

    inputs = ImageSpec(*shape)
    plain = build_model(spec, num_classes=10, inputs=inputs, seed=0)
    weights: Weights = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    laid_out = lay_out(build_model(spec, num_classes=10, inputs=inputs, seed=0), spec, CPU)
    sides = (evaluator(plain, 128), evaluator(laid_out, batch_size_for(inputs, CPU)))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for side, times in zip(sides, seconds, strict=True):
            started = time.perf_counter()
            side(weights)
            times.append(time.perf_counter() - started)
    before, after = (2 * num_images / statistics.median(times) for times in seconds)
    return before, after


if __name__ == "__main__":
    main()
