"""CPU-seconds of a ridge head with leave-one-out outputs, and of its sum Z'Z folded and whole.

20,000 examples of 10 classes, 2,048 made-up features, one thread.
Run: python benchmarks/ridge_head.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from lipt.common.determinism import pinned_kernels
from lipt.core.proxies.gram_sums import GramSums, WeightedRows, class_weights, scaling_of
from lipt.core.proxies.ridge import leave_one_out

NUM_EXAMPLES, NUM_FEATURES, NUM_CLASSES = 20_000, 2_048, 10


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.randint(NUM_CLASSES, (NUM_EXAMPLES,), generator=generator)
    means_CD = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=generator)
    noise_ND = torch.randn(NUM_EXAMPLES, NUM_FEATURES, generator=generator)
    features_ND = means_CD[labels_N] + 20 * noise_ND
    weights_N = class_weights(labels_N)
    scaling = scaling_of(features_ND, weights_N)
    rows = WeightedRows(features_ND, labels_N, weights_N, scaling, NUM_CLASSES)

    def folded() -> None:
        for ids_B in rows.blocks():
            GramSums.of(rows, ids_B)

    def whole() -> None:
        for ids_B in rows.blocks():
            scaled_BD = rows.scaled(ids_B)
            torch.matmul(scaled_BD.T, scaled_BD)

    def head() -> None:
        leave_one_out(
            features_ND, labels_N, NUM_CLASSES, generator=torch.Generator().manual_seed(0)
        )

    table = Table("what", "CPU-seconds", "GFLOP/s")
    table.title = f"{NUM_EXAMPLES} examples, {NUM_FEATURES} features, one thread"
    gigaflops = 2e-9 * NUM_EXAMPLES * NUM_FEATURES**2
    with pinned_kernels(1):
        for name, action in (("Z'Z, upper triangle", folded), ("Z'Z, whole", whole)):
            seconds = timed(action)
            table.add_row(name, f"{seconds:.2f}", f"{gigaflops / seconds:.0f}")
        table.add_row("head and leave-one-out outputs", f"{timed(head):.2f}", "")
    Console().print(table)


def timed(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


if __name__ == "__main__":
    main()
