"""Number of learners: theta_p of 1, 2 and 8 learners of the same length, on the same data.

    python -m benchmarks.learner_numbers [--seeds 3] [--out learner_numbers.jsonl]

Each learner is a worker's work, so that more learners take no longer with as many workers. The data
is 20,000 images of cifar10-jpeg (../shared/data), the test 5,000 others. Rows in the file `--out`
are not measured again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import lipt
from benchmarks.json_lines import append, read
from lipt.common.requests import Proxy
from lipt.common.tensor_files import pack
from lipt.core.pipeline import model_inputs
from lipt.core.pretraining.evaluation import Evaluator
from lipt.core.stages.proxy import proxied_signals
from lipt.core.stages.resolve import Sources
from lipt.data.dataset import Dataset
from lipt.data.loading import open_dataset
from tests.golden.datasets import cifar10_folder

NUMBERS = (1, 2, 8)
_TRAIN, _TEST = 20_000, 5_000
_SCORES = ("theta_p", "soup", "beside")


def main() -> None:
    parser = argparse.ArgumentParser(description="The value of more learners.")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the pipeline (default 3)")
    parser.add_argument("--out", type=Path, default=Path("learner_numbers.jsonl"))
    arguments = parser.parse_args()
    path = cifar10_folder() / "train.parquet"
    if not path.is_file():
        print(f"skipped: there is no {path}")
        return
    torch.set_num_threads(1)
    train, test = train_and_test(path)
    for seed in range(arguments.seeds):
        done = {(row["learners"], row["seed"]) for row in read(arguments.out)}
        for number in NUMBERS:
            if (number, seed) not in done:
                append(arguments.out, measure(train, test, number, seed))
    rows = list(read(arguments.out))
    print("| learners | theta_p, test accuracy | `ridge:soup` | `ridge:patches+soup` |")
    print("|---:|---:|---:|---:|")
    for number in NUMBERS:
        print(f"| {number} | {' | '.join(cell(rows, number, name) for name in _SCORES)} |")


def train_and_test(path: Path) -> tuple[Dataset, Dataset]:
    data, generator = open_dataset(f"parquet:{path}"), torch.Generator().manual_seed(0)
    ids_N = torch.randperm(len(data), generator=generator)[: _TRAIN + _TEST]
    parts = ids_N[:_TRAIN].sort().values, ids_N[_TRAIN:].sort().values
    train, test = (lipt.open_dataset((data.images(ids), data.labels_N[ids])) for ids in parts)
    return train, test


def measure(train: Dataset, test: Dataset, number: int, seed: int) -> dict[str, Any]:
    """theta_p's accuracy on the test, and leave-one-out accuracies of heads on its features."""
    settings = {"evaluation_threads": 1, "learners": {"num_learners": number}}
    trained = lipt.Pretrained(train, seed=seed, run=settings, device="cpu", progress=False)
    theta_p, workspace, config = trained.theta_p, trained.workspace, trained.config
    inputs, examples_N = model_inputs(workspace, config), test.examples(torch.arange(len(test)))
    models = [workspace.new_model(config)]
    tested = Evaluator(models, inputs, "cpu", examples_N, test.target, test.targets_N, None)
    row: dict[str, Any] = {"learners": number, "seed": seed}
    row["theta_p"] = tested.score(theta_p).accuracy
    sources = Sources(config, inputs, workspace.put(pack(theta_p)))
    for name, proxy in (("soup", "ridge:soup"), ("beside", "ridge:patches+soup")):
        facts = proxied_signals(workspace, sources, Proxy.parse(proxy)).facts or {}
        row[name] = facts["accuracy"]
    return row


def cell(rows: list[dict[str, Any]], number: int, name: str) -> str:
    """Mean in percent, and its standard error."""
    scores = [100 * row[name] for row in rows if row["learners"] == number]
    error = stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else 0.0
    return f"{fmean(scores):.1f} ± {error:.1f}"


if __name__ == "__main__":
    main()
