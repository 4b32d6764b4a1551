"""Losses in several processes: all ranks draw by what each of them saw."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import distributed

from lipt.trainer import StaleLossSampler

_NUM_RANKS = 2


def train(rank: int, folder: str) -> None:
    """One process: every example once, then the hardest ones, and what a checkpoint holds."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=_NUM_RANKS
    )
    # A pool of everything: the first three epochs have everybody, then the hardest eight.
    sampler = StaleLossSampler(24, budget=8, pool=3, rank=rank, num_ranks=_NUM_RANKS, uneven="drop")
    seen = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
        ids = torch.tensor(seen[-1])
        sampler.update(ids, ids.float() + epoch)
    sampler.gather()
    known = sampler.state_dict()["losses"]["noted_ids"].tolist()
    record = {"seen": seen, "noted": sorted(known)}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(record))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_all_ranks_draw_by_the_losses_of_all(tmp_path: Path) -> None:
    spawning = multiprocessing.get_context("spawn")
    processes = [
        spawning.Process(target=train, args=(rank, str(tmp_path))) for rank in range(_NUM_RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (
        json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(_NUM_RANKS)
    )
    pairs = zip(first["seen"], second["seen"], strict=True)
    epochs = [sorted(one + other) for one, other in pairs]
    assert sorted(row for epoch in epochs[:3] for row in epoch) == list(range(24))
    # A loss is the row number and the epoch; those of both ranks decide.
    losses = {row: row + epoch for epoch in range(3) for row in epochs[epoch]}
    hardest = sorted(losses.values())[-8:]
    assert sorted(losses[row] for row in epochs[3]) == hardest
    # What a checkpoint of one rank holds after `gather` is everybody's.
    assert first["noted"] == second["noted"] == epochs[3]
