"""Lazy greedy against the plain one, compiled and not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection import compiling
from lipt.core.selection.compiled_loops import lazy_greedy_compiled
from lipt.core.selection.solvers.greedy import (
    DEFAULT_EPSILON,
    choose_one_by_one,
    lazy_greedy,
    lazy_greedy_torch,
    sample_size,
    stochastic_facility_location,
)
from lipt.core.selection.solvers.levels import LevelRows, StoredLevels


def stored(matrix_NT: Tensor) -> StoredLevels:
    return StoredLevels(matrix_NT, matrix_NT.sum(dim=1, dtype=torch.int64))


def with_numba(levels: StoredLevels, budget: int) -> list[int]:
    return lazy_greedy_compiled(
        levels.matrix_NT.numpy(), levels.sums_N.clone().numpy(), budget
    ).tolist()


def plain_greedy(rows: list[list[int]], budget: int) -> list[int]:
    """Every gain of every example before every pick, in whole numbers."""
    chosen: list[int] = []
    best = [0] * len(rows[0])
    for _ in range(budget):
        left = [index for index in range(len(rows)) if index not in chosen]
        gains = {
            index: sum(max(new - old, 0) for new, old in zip(rows[index], best, strict=True))
            for index in left
        }
        chosen.append(max(left, key=lambda index: (gains[index], -index)))
        best = [max(pair) for pair in zip(rows[chosen[-1]], best, strict=True)]
    return chosen


def test_by_hand() -> None:
    # Sums 9, 8, 8, 3. After 0: the others add 3, 5, 3. After 2: 1 adds 0 and 3 adds 2.
    matrix = torch.tensor(
        [[5, 4, 0, 0], [4, 4, 0, 0], [0, 3, 5, 0], [0, 0, 0, 3]], dtype=torch.int32
    )
    matrix[1, 2] = 0
    levels = stored(matrix)
    assert lazy_greedy_torch(levels, 4).tolist() == [0, 2, 3, 1]
    assert with_numba(levels, 4) == [0, 2, 3, 1]


@given(data=st.data())
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_both_paths_are_plain_greedy_ties_included(dtype: torch.dtype, data: st.DataObject) -> None:
    num_examples = data.draw(st.integers(1, 24))
    num_targets = data.draw(st.integers(1, 24))
    # Few levels give many ties; the highest ones would overflow what is narrower than int64.
    highest = data.draw(st.sampled_from([0, 1, 3, 255, 2**15 - 1, 2**24 - 1]))
    highest = min(highest, torch.iinfo(dtype).max)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    matrix_NT = torch.randint(0, highest + 1, (num_examples, num_targets), generator=generator)
    budget = data.draw(st.integers(1, num_examples))
    levels = stored(matrix_NT.to(dtype))
    expected = plain_greedy(matrix_NT.tolist(), budget)
    assert lazy_greedy_torch(levels, budget).tolist() == expected
    assert with_numba(levels, budget) == expected


@pytest.mark.parametrize("level", [0, 7])
def test_all_equal_ends_with_the_lowest_ids(level: int) -> None:
    levels = stored(torch.full((40, 40), level, dtype=torch.int32))
    assert lazy_greedy_torch(levels, 30).tolist() == list(range(30))
    assert with_numba(levels, 30) == list(range(30))


def test_sums_beyond_32_bits_are_exact() -> None:
    # Two rows of 2^24 - 1 that differ by 1 in one of 300 places: 2^32 apart from 32 bits.
    matrix = torch.full((2, 300), 2**24 - 1, dtype=torch.int32)
    matrix[0, 5] -= 1
    levels = stored(matrix)
    assert levels.sums_N.tolist() == [300 * (2**24 - 1) - 1, 300 * (2**24 - 1)]
    assert lazy_greedy_torch(levels, 1).tolist() == with_numba(levels, 1) == [1]


def test_nothing_that_is_given_is_changed() -> None:
    levels = stored(
        torch.randint(0, 100, (20, 20), generator=torch.Generator().manual_seed(0)).int()
    )
    matrix, sums = levels.matrix_NT.clone(), levels.sums_N.clone()
    first = lazy_greedy(levels, 9)
    assert torch.equal(lazy_greedy(levels, 9), first)
    assert torch.equal(levels.matrix_NT, matrix)
    assert torch.equal(levels.sums_N, sums)


def test_without_numba_torch_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = stored(
        torch.randint(0, 100, (30, 30), generator=torch.Generator().manual_seed(1)).int()
    )
    expected = lazy_greedy(levels, 12)
    monkeypatch.setattr(compiling, "_numba_is_installed", lambda: False)
    assert not compiling.can_compile(torch.device("cpu"))
    assert torch.equal(lazy_greedy(levels, 12), expected)


def test_code_that_cannot_be_kept_on_disk_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numba

    def refusing(*, nogil: bool, fastmath: object, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", refusing)

    def doubled(value: int) -> int:
        return 2 * value

    assert compiling.compiled(doubled)(4) == 8


def random_levels(num_examples: int) -> StoredLevels:
    generator = torch.Generator().manual_seed(0)
    points_N2 = torch.rand(num_examples, 2, generator=generator)
    matrix_NN = (1000 * (1.5 - torch.cdist(points_N2, points_N2))).int()
    return StoredLevels(matrix_NN, matrix_NN.sum(dim=1, dtype=torch.int64))


class Watched:
    """Examples that are all alike, and which of them are looked at for a pick."""

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples
        self.samples: list[list[int]] = []

    def __len__(self) -> int:
        return self.num_examples

    def rows(self, ids_n: Tensor) -> Tensor:
        if len(ids_n) > 1:
            self.samples.append(ids_n.tolist())
        return torch.zeros(len(ids_n), self.num_examples, dtype=torch.int32)


def solve(
    levels: LevelRows, budget: int, *, epsilon: float = DEFAULT_EPSILON, seed: int = 0
) -> Tensor:
    generator = derive_generator(seed, "test")
    return stochastic_facility_location(levels, budget, epsilon=epsilon, generator=generator)


def value(levels: StoredLevels, chosen_K: Tensor) -> float:
    return float(levels.matrix_NT[chosen_K].max(dim=0).values.double().sum())


@pytest.mark.parametrize(
    ("num_candidates", "budget", "epsilon", "expected"),
    [
        (1000, 100, 0.1, 24),  # 10 ln 10 = 23.03
        (1000, 100, 0.9, 2),  # 1.05: hardly a choice, which is why 0.9 is no default
        (50_000, 5_000, 0.01, 47),  # 46.05
        (7, 7, 0.1, 3),
    ],
)
def test_sample_sizes(num_candidates: int, budget: int, epsilon: float, expected: int) -> None:
    assert sample_size(num_candidates, budget, epsilon) == expected


def test_the_default_looks_at_more_than_one_candidate_per_pick() -> None:
    watched = Watched(500)
    solve(watched, 50)
    assert [len(sample) for sample in watched.samples] == [24] * 50
    assert all(sample == sorted(set(sample)) for sample in watched.samples)


def test_the_default_is_close_to_greedy_and_far_from_random() -> None:
    levels = random_levels(400)
    greedy = value(levels, lazy_greedy_torch(levels, 40))
    drawn = value(levels, torch.randperm(400, generator=torch.Generator().manual_seed(1))[:40])
    assert (value(levels, solve(levels, 40)) - drawn) / (greedy - drawn) > 0.8
    # What the libraries ship as the default samples next to nothing.
    assert (value(levels, solve(levels, 40, epsilon=0.9)) - drawn) / (greedy - drawn) < 0.7


def test_a_sample_of_everything_is_greedy() -> None:
    levels = random_levels(60)
    chosen = solve(levels, 20, epsilon=1e-30)
    assert chosen.tolist() == lazy_greedy_torch(levels, 20).tolist()


def test_one_seed_gives_one_answer() -> None:
    levels = random_levels(100)
    assert torch.equal(solve(levels, 10), solve(levels, 10))
    assert not torch.equal(solve(levels, 10), solve(levels, 10, seed=1))


@pytest.mark.parametrize(("num_examples", "budget"), [(1, 1), (9, 9), (30, 29), (30, 1)])
def test_distinct_ids_to_the_last(num_examples: int, budget: int) -> None:
    chosen = solve(random_levels(num_examples), budget)
    assert len(set(chosen.tolist())) == budget


def test_every_candidate_is_as_likely_to_be_looked_at() -> None:
    # 3,000 samples of ceil(10 / 5 ln 2) = 2 of 10: each 600 times, deviation 21.9.
    counts_N = torch.zeros(10)
    for seed in range(3000):
        watched = Watched(10)
        solve(watched, 5, epsilon=0.5, seed=seed)
        counts_N[watched.samples[0]] += 1
    assert ((counts_N - 600).abs() < 100).all()


def test_gains_change_with_every_pick() -> None:
    # Gains 5, 4, 3; the pick 0 takes 3 from 1 and none from 2.
    kernel = torch.tensor([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double()
    chosen = choose_one_by_one(
        torch.tensor([5.0, 4.0, 3.0]).double(),
        3,
        rows_of=lambda positions_B: kernel[positions_B],
        update=_take_away,
    )
    assert chosen.indices_K.tolist() == [0, 2, 1]


def test_gains_equal_in_float32_tie() -> None:
    gains_N = 1 + torch.tensor([0.0, 2.0**-40, 2.0**-30]).double()
    chosen = choose_one_by_one(
        gains_N, 3, rows_of=lambda positions_B: torch.zeros(len(positions_B), 3), update=_nothing
    )
    assert chosen.indices_K.tolist() == [0, 1, 2]


@pytest.mark.parametrize("rows_ahead", [1, 2, 4, 100])
def test_rows_are_those_of_the_pick_and_never_more_than_are_left(rows_ahead: int) -> None:
    asked: list[int] = []
    seen: list[tuple[int, float]] = []

    def rows_of(positions_B: Tensor) -> Tensor:
        asked.append(len(positions_B))
        return positions_B[:, None].double().expand(-1, 6)

    def update(_: Tensor, row_N: Tensor, position: int) -> None:
        seen.append((position, float(row_N[0])))

    # All tie, so the largest that a sort finds need not hold the one that is picked.
    chosen = choose_one_by_one(
        torch.zeros(6).double(), 5, rows_of=rows_of, update=update, rows_ahead=rows_ahead
    )
    assert chosen.indices_K.tolist() == [0, 1, 2, 3, 4]
    # Nothing is to be updated after the last pick.
    assert seen == [(position, float(position)) for position in range(4)]
    assert max(asked) <= min(rows_ahead, 5)


def _take_away(gains_N: Tensor, row_N: Tensor, position: int) -> None:
    gains_N.sub_(row_N)


def _nothing(gains_N: Tensor, row_N: Tensor, position: int) -> None:
    """Leave the gains as they are."""
