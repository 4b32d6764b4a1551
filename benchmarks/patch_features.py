"""Images per CPU-second of patch features: as they are made, and as a convolution would make them.

Random pixels, one thread. Run: python benchmarks/patch_features.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from lipt.common.determinism import pinned_kernels
from lipt.core.proxies.patches import (
    PATCH_SIDE,
    STRIDE,
    PatchFilters,
    draw_filters,
    patch_features,
)

ROUNDS = 5
CASES = [((3, 32, 32), 1024), ((1, 28, 28), 1024), ((1, 8, 8), 1024), ((3, 224, 224), 128)]


def main() -> None:
    table = Table("images", "features", "convolution", "ratio")
    table.title = f"images per CPU-second, one thread, median of {ROUNDS} turns"
    with pinned_kernels(1):
        for shape, num_images in CASES:
            images_NCHW = torch.randint(0, 256, (num_images, *shape), dtype=torch.uint8)
            filters = draw_filters(images_NCHW, generator=torch.Generator().manual_seed(0))
            ours, theirs = measure(images_NCHW, filters)
            size = "x".join(map(str, shape))
            table.add_row(size, f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}")
    Console().print(table)


def measure(images_NCHW: Tensor, filters: PatchFilters) -> tuple[float, float]:
    sides: tuple[Callable[[], object], ...] = (
        lambda: patch_features(images_NCHW, filters),
        lambda: [convolved(part, filters) for part in torch.split(images_NCHW, 64)],
    )
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for side, times in zip(sides, seconds, strict=True):
            started = time.process_time()
            side()
            times.append(time.process_time() - started)
    ours, theirs = (len(images_NCHW) / statistics.median(times) for times in seconds)
    return ours, theirs


def convolved(images_BCHW: Tensor, filters: PatchFilters) -> Tensor:
    """The same numbers by the plain way: scale, conv2d, divide, two relus, pool."""
    channels, side = images_BCHW.shape[1], filters.side
    pixels_BCHW = functional.interpolate(
        images_BCHW.float() / 255, (side, side), mode="bilinear", antialias=True
    )
    kernels = filters.weights_PF.T.reshape(-1, channels, PATCH_SIDE, PATCH_SIDE)
    responses = functional.conv2d(pixels_BCHW, kernels, filters.biases_F, stride=STRIDE)
    responses = responses / responses.flatten(1).std(dim=1)[:, None, None, None]
    signs = torch.cat([(responses - 0.25).relu(), (-responses - 0.25).relu()], dim=1)
    return functional.adaptive_avg_pool2d(signs, 2).sqrt().flatten(1)


if __name__ == "__main__":
    main()
