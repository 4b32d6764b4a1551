"""The partition greedy against exact greedy: objective, seconds and memory by number of parts.

The objective is CRAIG's: the sum of the distances of all gradients from their nearest chosen one,
summed in float64 over all examples, less that of random subsets: 1 is exact greedy's. Each
solver is a process of its own, so that its peak of memory is its own.

    python benchmarks/partition_greedy.py [--examples 50000] [--budgets 500 5000]

Gradients are made up: 10 classes, errors of a model that is right of about 80%, features in 200
clusters of unequal size, 128 of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lipt.common.determinism import pinned_kernels
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.pairs import Proximity, proximity
from lipt.core.selection.gradients.vectors import gradients_of
from lipt.core.selection.solvers.representatives import choose_representatives
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals

NUM_CLASSES, NUM_FEATURES, NUM_CLUSTERS = 10, 128, 200
PARTITIONS = (1, 2, 4, 8, 16)
NUM_RANDOM = 3


def main() -> None:
    arguments = parsed()
    if arguments.partitions is not None:
        print(json.dumps(measured(arguments.examples, arguments.budgets[0], arguments.partitions)))
        return
    similarity = made_up(arguments.examples)
    for budget in arguments.budgets:
        table = Table("parts", "distances", "of exact's gain", "seconds", "CPU s", "peak MB")
        table.title = f"{budget} of {arguments.examples} examples, one thread"
        drawn = (
            sum(
                distances(similarity, subset_K)
                for subset_K in random_subsets(arguments.examples, budget)
            )
            / NUM_RANDOM
        )
        table.add_row("random", f"{drawn:.0f}", "0", "", "", "")
        exact = 0.0
        for partitions in PARTITIONS:
            row = in_process(arguments.examples, budget, partitions)
            total = distances(similarity, torch.tensor(row["chosen"]))
            exact = total if partitions == 1 else exact
            table.add_row(
                str(partitions),
                f"{total:.0f}",
                f"{(drawn - total) / (drawn - exact):.4f}",
                f"{row['seconds']:.1f}",
                f"{row['cpu_seconds']:.1f}",
                f"{row['peak_mb']:.0f}",
            )
        Console().print(table)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--budgets", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--partitions", type=int, help="measure this number alone, as JSON")
    return parser.parse_args()


def made_up(num_examples: int) -> Proximity:
    """Distances of gradients in clusters; the same at every call."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(NUM_CLUSTERS, NUM_FEATURES, generator=generator)
    # Of unequal size: the largest is some hundred times the smallest.
    shares = torch.logspace(0, -2, NUM_CLUSTERS)
    clusters_N = shares.multinomial(num_examples, replacement=True, generator=generator)
    noise_ND = torch.randn(num_examples, NUM_FEATURES, generator=generator)
    features_ND = (centres[clusters_N] + 0.7 * noise_ND).relu()
    labels_N = clusters_N % NUM_CLASSES
    logits_NC = 1.5 * torch.randn(num_examples, NUM_CLASSES, generator=generator)
    logits_NC[torch.arange(num_examples), labels_N] += 4
    signals = Signals(errors_of(logits_NC, labels_N), features_ND, labels_N)
    return proximity(gradients_of(signals))


def random_subsets(num_examples: int, budget: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randperm(num_examples, generator=generator)[:budget] for _ in range(NUM_RANDOM)]


def distances(similarity: Proximity, chosen_K: Tensor) -> float:
    """The sum over all examples of the distance to the nearest chosen one."""
    total = 0.0
    for rows in row_blocks(len(similarity), 8 * len(chosen_K)):
        total -= float(similarity.block(rows, chosen_K).amax(dim=1).double().sum())
    return total


def in_process(num_examples: int, budget: int, partitions: int) -> dict:
    command = [sys.executable, __file__, "--examples", str(num_examples), "--budgets", str(budget)]
    done = subprocess.run(
        [*command, "--partitions", str(partitions)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def measured(num_examples: int, budget: int, partitions: int) -> dict:
    """What one solver chooses and takes; memory beyond what the gradients take."""
    with pinned_kernels(1):
        similarity = made_up(num_examples)
        # Machine code is loaded, or compiled, before the clock starts.
        solve(made_up(500), 5, partitions)
        Path("/proc/self/clear_refs").write_text("5")
        before_mb = status_mb("VmRSS")
        started, started_cpu = time.perf_counter(), time.process_time()
        chosen_K = solve(similarity, budget, partitions)
        return {
            "chosen": chosen_K.tolist(),
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - started_cpu,
            "peak_mb": status_mb("VmHWM") - before_mb,
        }


def solve(similarity: Proximity, budget: int, partitions: int) -> Tensor:
    return choose_representatives(
        similarity,
        budget,
        solver="partition",
        precision="auto",
        epsilon=0.1,
        partitions=partitions,
        seed=0,
    ).chosen_K


def status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
