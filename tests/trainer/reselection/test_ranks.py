"""Re-selection in several processes, with torch's own process group between them."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import distributed, nn

from lipt.common.errors import LiptError, MissingExtraError, UnreachableError, WeightsError
from lipt.trainer import ReselectingSampler, StrategyView, Subset
from tests.trainer.made_up import made_up_subset

_NUM_RANKS = 2


class ScriptedClient:
    """Rank 0's: subset 0, an outage, subset 1, ..., and a refusal in the end."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._answers: list[int | LiptError] = [
            0,
            UnreachableError("away."),
            1,
            MissingExtraError("numba", extra="fast", needed_for="That"),
        ]

    def strategies(self) -> list[StrategyView]:
        assert self._rank == 0, "another rank than 0 asks"
        return []

    def subset(self, run: str, strategy: str, **options: Any) -> Subset:
        assert self._rank == 0, "another rank than 0 asks"
        answer = self._answers.pop(0)
        if isinstance(answer, LiptError):
            raise answer
        first = 10 * answer
        return made_up_subset(range(first, first + 9), strategy=strategy, number=answer)


def train(rank: int, folder: str) -> None:
    """One process: three epochs, and a fourth that is refused."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=_NUM_RANKS
    )
    client: Any = ScriptedClient(rank)
    sampler = ReselectingSampler(
        client,
        nn.Linear(2, 2),
        "made-up",
        fraction=0.1,
        every=1,
        rank=rank,
        num_ranks=_NUM_RANKS,
        uneven="drop",
    )
    seen = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen.append(list(sampler))
    refusal = ""
    try:
        sampler.set_epoch(3)
    except LiptError as error:
        refusal = f"{type(error).__name__}: {error}"
    told = [str(item.message) for item in caught if "no new subset" in str(item.message)]
    record = {"seen": seen, "warnings": told, "refusal": refusal}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(record))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_all_ranks_train_on_what_rank_0_was_answered(tmp_path: Path) -> None:
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
    for epoch, start in enumerate((0, 0, 10)):
        parts = set(first["seen"][epoch]), set(second["seen"][epoch])
        assert [len(part) for part in parts] == [4, 4]
        assert not parts[0] & parts[1]
        assert parts[0] | parts[1] < set(range(start, start + 9))
    for record in (first, second):
        assert len(record["warnings"]) == 1
        assert "epoch 1: no new subset (away.)" in record["warnings"][0]
        assert record["refusal"].startswith("MissingExtraError: That needs the package 'numba'")


@pytest.mark.parametrize(
    "error",
    [WeightsError("other names."), MissingExtraError("numba", extra="fast", needed_for="That")],
)
def test_an_error_is_the_same_in_another_process(error: LiptError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.message) == (str(error), error.message)
