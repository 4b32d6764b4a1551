"""Recall, seconds and memory of approximate neighbours, against all pairs.

Features are made up: of 200 clusters, 24 directions in each, seen through a random layer with a
ReLU, as a network's are. Recall is that of the 10 nearest of 500 examples; the exact search of
these is timed, too, and its seconds are for all examples by proportion.

    python benchmarks/neighbours.py [--examples 100000] [--features 512] [--counts 10]
"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.selection.meter import metered
from lipt.common.determinism import pinned_kernels
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.solvers.neighbours import nearest_neighbours

NUM_CLUSTERS, NUM_LATENT, NUM_ASKED = 200, 24, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, nargs="+", default=[100_000])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--count", type=int, default=10)
    arguments = parser.parse_args()
    table = Table("examples", "recall", "CPU s", "extra MB", "exact, CPU s by proportion")
    table.title = f"{arguments.count} nearest by {arguments.features} features, one thread"
    with pinned_kernels(1):
        for num_examples in arguments.examples:
            features_ND = made_up(num_examples, arguments.features)
            exact_QM, seconds = exact(features_ND, arguments.count)
            found_NM, cost = metered(
                lambda features_ND=features_ND: nearest_neighbours(
                    features_ND, arguments.count, search="approximate"
                ),
                "cpu",
            )
            same = found_NM[asked(num_examples)][:, :, None] == exact_QM[:, None]
            table.add_row(
                f"{num_examples}",
                f"{float(same.any(dim=2).float().mean()):.4f}",
                f"{cost.cpu_seconds:.0f}",
                f"{cost.extra_mb:.0f}",
                f"{seconds * num_examples / NUM_ASKED:.0f}",
            )
    Console().print(table)


def asked(num_examples: int) -> Tensor:
    return torch.arange(0, num_examples, num_examples // NUM_ASKED)[:NUM_ASKED]


def exact(features_ND: Tensor, count: int) -> tuple[Tensor, float]:
    """The nearest of some examples by direction, in float64, and the CPU seconds it took."""
    started, parts = time.process_time(), []
    own_QD = torch.nn.functional.normalize(features_ND[asked(len(features_ND))].double(), dim=1)
    for rows in row_blocks(len(features_ND), 8 * (features_ND.shape[1] + NUM_ASKED)):
        rows_BD = torch.nn.functional.normalize(features_ND[rows].double(), dim=1)
        parts.append(own_QD @ rows_BD.T)
    cosines_QN = torch.cat(parts, dim=1)
    cosines_QN.scatter_(1, asked(len(features_ND))[:, None], -2.0)
    return cosines_QN.topk(count, dim=1).indices, time.process_time() - started


def made_up(num_examples: int, num_features: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    layer = torch.randn(NUM_LATENT, num_features, generator=generator)
    centres = 1.5 * torch.randn(NUM_CLUSTERS, NUM_LATENT, generator=generator)
    features_ND = torch.empty(num_examples, num_features)
    for rows in row_blocks(num_examples, 8 * num_features):
        size = rows.stop - rows.start
        clusters_B = torch.randint(NUM_CLUSTERS, (size,), generator=generator)
        latent = centres[clusters_B] + torch.randn(size, NUM_LATENT, generator=generator)
        features_ND[rows] = (latent @ layer).relu()
    return features_ND


if __name__ == "__main__":
    main()
