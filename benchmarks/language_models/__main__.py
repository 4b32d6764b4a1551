"""Mixtures and examples for a small causal language model, against real trainings.

    python -m benchmarks.language_models mixtures|examples|completions [--seeds 0 1] [--cache DIR]
    python -m benchmarks.language_models smollm2 --model FOLDER [--seeds 0] [--cache DIR]

Results are JSON lines in docs/results/language_models, one file for each seed, which is not
measured again. Trained weights stay in the cache, so that a run that was ended continues. One
thread.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

FOLDER = Path(__file__).parents[2] / "docs" / "results" / "language_models"
EXPERIMENTS = ("mixtures", "examples", "completions", "smollm2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--cache", type=Path, default=Path("/tmp/language_models"))
    parser.add_argument("--model", type=Path, help="the folder of SmolLM2, for smollm2")
    asked = parser.parse_args()
    experiment: Any = importlib.import_module(f"benchmarks.language_models.{asked.experiment}")
    given = {"model": asked.model} if asked.model else {}
    lines = list[dict[str, Any]]()
    torch.set_num_threads(1)
    os.nice(19)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in asked.seeds:
        folder = asked.cache / f"{seed}"
        folder.mkdir(parents=True, exist_ok=True)

        def record(name: str, compute: Callable[[], Any], folder: Path = folder) -> Any:
            file = folder / f"{name.replace('/', '-')}.pt"
            if not file.exists():
                began = perf_counter()
                value = compute()
                print(f"{name}: {perf_counter() - began:.0f} s", flush=True)
                torch.save(value, file)
            return torch.load(file, weights_only=True)

        file = FOLDER / f"{asked.experiment}-{seed}.jsonl"
        if not file.exists():
            found = [json.dumps(line) for line in experiment.measure(seed, record, **given)]
            file.write_text("\n".join(found) + "\n")
        lines += map(json.loads, file.read_text().splitlines())
    print(*experiment.table(lines), sep="\n")


if __name__ == "__main__":
    main()
