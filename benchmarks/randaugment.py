"""RandAugment grouped over the batch against torchvision's, one image at a time.

Both sides take turns in one process with one thread, so that whatever else the
machine does hits both; the ratio is what to look at.

    python benchmarks/randaugment.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandAugment
from torchvision.transforms.autoaugment import _apply_op

from lipt.common.determinism import pinned_kernels
from lipt.core.learner.augmentation import OPERATIONS, randaugment

MAGNITUDE = 9
CAPTION = "median of the turns"
CASES = [((256, 3, 32, 32), 1), ((256, 3, 32, 32), 2), ((256, 1, 8, 8), 2), ((32, 3, 224, 224), 2)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="RandAugment grouped over the batch against torchvision, one image at a time."
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side (default 7)")
    rounds = parser.parse_args().rounds
    console = Console()
    with pinned_kernels(1):
        console.print(batches(rounds))
        console.print(operations(rounds))


def batches(rounds: int) -> Table:
    table = Table("batch", "operations", title="images per second, one thread", caption=CAPTION)
    for column in ("torchvision", "grouped", "ratio"):
        table.add_column(column, justify="right")
    for shape, num_ops in CASES:
        images_BCHW = random_images(*shape)
        theirs, ours = interleaved(
            partial(one_by_one, RandAugment(num_ops=num_ops, magnitude=MAGNITUDE), images_BCHW),
            partial(
                randaugment,
                images_BCHW,
                num_ops=num_ops,
                magnitude=MAGNITUDE,
                generator=torch.Generator().manual_seed(0),
            ),
            rounds,
        )
        row = (f"{len(images_BCHW) / theirs:,.0f}", f"{len(images_BCHW) / ours:,.0f}")
        table.add_row(str(list(shape)), str(num_ops), *row, f"{theirs / ours:.1f}")
    return table


def operations(rounds: int) -> Table:
    """Groups of 18, what an operation without sign gets of 256 images."""
    images_BCHW = random_images(18, 3, 32, 32)
    table = Table("operation", title="microseconds per image of 3 x 32 x 32", caption=CAPTION)
    for column in ("torchvision", "grouped", "ratio"):
        table.add_column(column, justify="right")
    for name, operation in OPERATIONS.items():
        level = operation.level(MAGNITUDE, 32, 32)
        torchvision_op = partial(
            _apply_op,
            op_name=name,
            magnitude=level,
            interpolation=InterpolationMode.NEAREST,
            fill=None,
        )
        theirs, ours = interleaved(
            partial(one_by_one, torchvision_op, images_BCHW),
            partial(operation.apply, images_BCHW, level),
            rounds,
            repeats=20,
        )
        per_image = 1e6 / len(images_BCHW)
        row = (f"{theirs * per_image:.1f}", f"{ours * per_image:.1f}", f"{theirs / ours:.1f}")
        table.add_row(name, *row)
    return table


def one_by_one(call: Callable[[Tensor], Tensor], images_BCHW: Tensor) -> list[Tensor]:
    return [call(image) for image in images_BCHW]


def random_images(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, shape, generator=generator).to(torch.uint8)


def interleaved(
    first: Callable[[], object], second: Callable[[], object], rounds: int, *, repeats: int = 1
) -> tuple[float, float]:
    """Median seconds of a call of each, taken in turns after one call to warm up."""
    first()
    second()
    turns = [(seconds(first, repeats), seconds(second, repeats)) for _ in range(rounds)]
    return statistics.median(a for a, _ in turns), statistics.median(b for _, b in turns)


def seconds(call: Callable[[], object], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


if __name__ == "__main__":
    main()
