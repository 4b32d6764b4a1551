"""Soups of the same learners: examples evaluated, and theta_p's test accuracy, side by side.

    python -m benchmarks.soups

The learners of a data set and seed are trained once; each method merges the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any
from unittest import mock

import torch
from sklearn.datasets import make_classification
from torch import Tensor

import lipt
from lipt.common.config.run_config import SoupMethod, merge
from lipt.core.pipeline import merge_learners, model_inputs
from lipt.core.pretraining.evaluation import Evaluator
from lipt.core.workspace import InMemory
from lipt.data.dataset import Dataset
from lipt.data.targets.values import Tally

_CIFAR = f"parquet:{os.environ.get('LIPT_DATA', 'data')}/cifar10-jpeg/train.parquet"
# The paper's first: the others are compared with it.
METHODS = (SoupMethod.INTERPOLATION, SoupMethod.GREEDY, SoupMethod.UNIFORM)
_TENTH = {"fraction": 0.1}
RUNS: dict[str, dict[str, Any]] = {
    _CIFAR: {"soup": {"batch_norm_examples": 128}, "validation": _TENTH},
    "digits": {},
    "table": {"validation": _TENTH},
}


def train_and_test(name: str) -> tuple[Dataset, Dataset]:
    """Four fifths and one fifth of at most 4,000 images, or of 8,000 made-up rows."""
    if name == "table":
        values_ND, labels_N = make_classification(
            8000, n_features=20, n_informative=10, n_classes=5, random_state=0
        )
        examples_N, labels_N = torch.from_numpy(values_ND).float(), torch.from_numpy(labels_N)
    else:
        whole = lipt.open_dataset(name)
        ids = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:4000]
        examples_N, labels_N = whole.images(ids), whole.labels_N[ids]
    cut = len(labels_N) * 4 // 5
    train, test = (examples_N[:cut], labels_N[:cut]), (examples_N[cut:], labels_N[cut:])
    return lipt.open_dataset(train), lipt.open_dataset(test)


@dataclass
class Measured:
    """Validation examples evaluated for a soup, theta*'s among them, and its test accuracy."""

    examples: int = 0
    accuracy: float = 0.0


def measure(name: str, seed: int) -> dict[SoupMethod, Measured]:
    """Merge the same learners by every method."""
    data, test = train_and_test(name)
    # The soup that comes with the learners is not looked at. One thread counts.
    run = merge({"soup": {"method": "uniform"}, "evaluation_threads": 1}, RUNS[name])
    trained = lipt.Pretrained(data, seed=seed, run=run, device="cpu", progress=False)
    workspace, config = InMemory(data, torch.device("cpu")), trained.config
    inputs, model = model_inputs(workspace, config), workspace.new_model(config)
    learners = [partial(dict[str, Tensor], weights) for weights in trained.learners]
    examples_N = test.examples(torch.arange(len(test)))
    tested = Evaluator([model], inputs, "cpu", examples_N, test.target, test.targets_N, None)
    found, add = {method: Measured() for method in METHODS}, Tally.add
    for method, counted in found.items():
        soup = config.soup.model_copy(update={"method": method})
        merging = config.model_copy(update={"soup": soup})

        def added(tally: Tally, outputs_BT: Tensor, targets_B: Tensor) -> None:
            counted.examples += len(targets_B)  # noqa: B023 - called in this turn alone
            add(tally, outputs_BT, targets_B)

        with mock.patch.object(Tally, "add", added):
            made, _ = merge_learners(workspace, merging, inputs, trained.theta_star, learners)
        counted.accuracy = tested.score(made.weights).accuracy
    return found


def row(name: str, method: SoupMethod, found: Sequence[Mapping[SoupMethod, Measured]]) -> str:
    """A row of the table: means over seeds, and the standard error of the difference."""
    own, paper = ([one[which] for one in found] for which in (method, METHODS[0]))
    examples = fmean(one.examples for one in own)
    times = fmean(one.examples for one in paper) / examples
    points = [100 * (one.accuracy - other.accuracy) for one, other in zip(own, paper, strict=True)]
    accuracy, error = 100 * fmean(one.accuracy for one in own), stdev(points) / len(points) ** 0.5
    return (
        f"| {name.split('/')[-2:][0]} | `{method.value}` | {examples:,.0f} | {times:.1f} "
        f"| {accuracy:.1f} | {fmean(points):+.1f} ± {error:.1f} |"
    )


def main(names: Iterable[str] = tuple(RUNS), num_seeds: int = 5) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| data | method | validation examples | times fewer | accuracy, % | difference |")
    for name in names:
        found = [measure(name, seed) for seed in range(num_seeds)]
        print(*(row(name, method, found) for method in METHODS), sep="\n", flush=True)


if __name__ == "__main__":
    main()
