"""Ranks: a test's function in two processes of one group, each of which leaves a record."""

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed

NUM_RANKS = 2
# Of a rank; at the top of its module, since it is sent to another process.
Train = Callable[[int], dict[str, Any]]


def _join_and_train(train: Train, rank: int, folder: Path) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS
    )
    (folder / f"{rank}.json").write_text(json.dumps(train(rank)))
    distributed.destroy_process_group()


def records_of_ranks(train: Train, folder: Path) -> list[dict[str, Any]]:
    """What `train` returns on each rank, in their order; every process has to end well."""
    spawning = multiprocessing.get_context("spawn")
    processes = [
        spawning.Process(target=_join_and_train, args=(train, rank, folder))
        for rank in range(NUM_RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * NUM_RANKS
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]
