from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from lipt.core.selection.solvers.linear_cut import (
    cut_picks,
    exact_bits,
    spherical_kmeans,
    unit_rows,
)
from lipt.core.selection.solvers.pursuit import NonNegativeFit, Pursuer, Pursuit
from tests.properties import at_most


class StoredAtoms:
    """Atoms whose vectors are there, with estimates as rough as asked for."""

    def __init__(self, vectors_NP: Tensor, target_P: Tensor, *, rounding: float = 0.0) -> None:
        self.vectors_NP, self.target_P = vectors_NP.double(), target_P.double()
        self.squares_N = self.vectors_NP.square().sum(dim=1)
        self.target_products_N = self.vectors_NP @ self.target_P
        self.target_square = float(self.target_P.square().sum())
        self.used: list[int] = []
        self.rounding = rounding
        self.generator = torch.Generator().manual_seed(3)

    def use(self, atom: int) -> None:
        assert atom not in self.used
        self.used.append(atom)

    def drop(self, position: int) -> None:
        self.used[position] = self.used[-1]
        self.used.pop()

    def num_examples(self, atoms: Sequence[int]) -> int:
        return len(atoms)

    def products(self, atoms_M: Tensor) -> Tensor:
        return self.vectors_NP[atoms_M] @ self.vectors_NP[self.used].T

    def estimate(self, weights_K: Tensor) -> tuple[Tensor, Tensor]:
        missing_P = self.target_P - weights_K @ self.vectors_NP[self.used]
        bounds_N = self.rounding * self.squares_N.sqrt()
        noise_N = 2 * torch.rand(len(bounds_N), generator=self.generator).double() - 1
        return self.vectors_NP @ missing_P + bounds_N * noise_N, bounds_N


def pursue_stored(
    vectors_NP: Tensor, target_P: Tensor, budget: int, *, ridge: float = 0, rounding: float = 0
) -> Pursuit:
    atoms: Any = StoredAtoms(vectors_NP, target_P, rounding=rounding)
    return Pursuer(atoms, ridge=ridge).run(budget)


def fit_nnls(vectors_KP: Tensor, target_P: Tensor, ridge: float = 0.0) -> Tensor:
    """The exact non-negative weights, from the vectors themselves; the ridge as extra rows."""
    size = len(vectors_KP)
    matrix = np.vstack([vectors_KP.numpy().T, ridge**0.5 * np.eye(size)])
    return torch.from_numpy(nnls(matrix, np.concatenate([target_P.numpy(), np.zeros(size)]))[0])


def plain_pursuit(vectors_NP: Tensor, target_P: Tensor, budget: int, ridge: float) -> list[int]:
    """The definition: the largest product with what is missing, then all weights anew."""
    used: list[int] = []
    missing_P = target_P
    while len(used) < budget:
        products_N = vectors_NP @ missing_P
        products_N[used] = -torch.inf
        best = int(products_N.argmax())
        if products_N[best] <= 1e-9 * float(target_P.norm() * vectors_NP[best].norm()):
            break
        used.append(best)
        weights_K = fit_nnls(vectors_NP[used], target_P, ridge)
        used = [atom for atom, weight in zip(used, weights_K, strict=True) if weight > 1e-12]
        missing_P = target_P - fit_nnls(vectors_NP[used], target_P, ridge) @ vectors_NP[used]
        if float(missing_P.norm()) <= 1e-7 * float(target_P.norm()):
            break
    return used


def random_problem(num_atoms: int, num_dims: int, seed: int, shift: float) -> tuple[Tensor, Tensor]:
    """Vectors around a common direction, and their sum."""
    generator = torch.Generator().manual_seed(seed)
    vectors_NP = torch.randn(num_atoms, num_dims, generator=generator).double() + shift
    return vectors_NP, vectors_NP.sum(dim=0)


def test_rounding_ties_of_atoms_take_the_first() -> None:
    vectors_NP = torch.tensor([[1.0, 0.0], [1.0 + 2.0**-50, 0.0]], dtype=torch.float64)
    found = pursue_stored(vectors_NP, torch.tensor([1.0, 0.0]), 1, rounding=1e-6)
    assert found.atoms_K.tolist() == [0]


@settings(max_examples=at_most(80))
@given(
    num_atoms=st.integers(1, 30),
    num_dims=st.integers(1, 20),
    seed=st.integers(0, 10_000),
    shift=st.sampled_from([0.0, 0.3, 2.0]),
    ridge=st.sampled_from([0.0, 0.1, 2.0]),
    data=st.data(),
)
def test_pursuit_equals_the_plain_algorithm(
    num_atoms: int, num_dims: int, seed: int, shift: float, ridge: float, data: st.DataObject
) -> None:
    vectors_NP, target_P = random_problem(num_atoms, num_dims, seed, shift)
    budget = data.draw(st.integers(1, num_atoms))
    scaled_ridge = ridge * float(vectors_NP.square().sum(dim=1).mean())
    found = pursue_stored(vectors_NP, target_P, budget, ridge=ridge)
    expected = plain_pursuit(vectors_NP, target_P, budget, scaled_ridge)
    assert found.atoms_K.tolist() == expected
    assert_optimal(found, vectors_NP, target_P, scaled_ridge)
    if len(expected) < budget and found.residual > 1e-6:
        missing_P = target_P - found.weights_K @ vectors_NP[found.atoms_K]
        products_N = vectors_NP @ missing_P / (vectors_NP.norm(dim=1) * target_P.norm())
        products_N[found.atoms_K] = 0
        assert float(products_N.max()) < 1e-7


def assert_optimal(found: Pursuit, vectors_NP: Tensor, target_P: Tensor, ridge: float) -> None:
    chosen_KP = vectors_NP[found.atoms_K]
    assert bool((found.weights_K > 0).all())
    assert len(set(found.atoms_K.tolist())) == len(found.atoms_K)
    weights_K = fit_nnls(chosen_KP, target_P, ridge)
    size = float(weights_K.abs().max())
    torch.testing.assert_close(found.weights_K, weights_K, rtol=1e-5, atol=1e-6 * size)
    missing_P = target_P - found.weights_K @ chosen_KP
    slopes_K = chosen_KP @ missing_P - ridge * found.weights_K
    lengths_K = chosen_KP.norm(dim=1) * target_P.norm()
    assert float((slopes_K / lengths_K).abs().max()) < 1e-9
    assert found.residual == pytest.approx(float(missing_P.norm() / target_P.norm()), abs=1e-6)


@settings(max_examples=at_most(50))
@given(seed=st.integers(0, 10_000), rounding=st.sampled_from([1e-3, 0.1, 3.0]))
def test_low_precision_estimates_do_not_change_the_choice(seed: int, rounding: float) -> None:
    vectors_NP, target_P = random_problem(25, 12, seed, 0.5)
    exact = pursue_stored(vectors_NP, target_P, 9)
    rough = pursue_stored(vectors_NP, target_P, 9, rounding=rounding)
    assert rough.atoms_K.tolist() == exact.atoms_K.tolist()
    assert torch.equal(rough.weights_K, exact.weights_K)


def test_a_fit_ignores_vectors_without_gain() -> None:
    nothing = torch.empty(0, dtype=torch.float64)
    for target in (0.0, -1.0):
        fit = NonNegativeFit(torch.device("cpu"))
        assert not fit.add(nothing, 1.0, target)
        assert len(fit) == 0


def grow(vectors_KP: Tensor, target_P: Tensor) -> tuple[NonNegativeFit, list[int]]:
    """A fit that was offered all vectors, and the numbers of those in use, by position."""
    fit, used = NonNegativeFit(torch.device("cpu")), []
    for number, vector_P in enumerate(vectors_KP):
        added = fit.add(
            vectors_KP[used] @ vector_P, float(vector_P @ vector_P), float(vector_P @ target_P)
        )
        if added:
            used.append(number)
            drop_all(used, fit.settle())
    return fit, used


def drop_all(used: list[int], positions: Sequence[int]) -> None:
    for position in positions:
        used[position] = used[-1]
        used.pop()


@given(size=st.integers(1, 90), num_dims=st.integers(1, 100), seed=st.integers(0, 10_000))
def test_a_fit_stays_exact_as_it_grows_and_shrinks(size: int, num_dims: int, seed: int) -> None:
    vectors_KP, target_P = random_problem(size, num_dims, seed, 0.1)
    fit, used = grow(vectors_KP, target_P)
    weights_K = fit_nnls(vectors_KP[used], target_P)
    torch.testing.assert_close(fit.weights_K, weights_K, rtol=1e-5, atol=1e-7)
    missing_P = target_P - weights_K @ vectors_KP[used]
    explained = float(target_P.square().sum() - missing_P.square().sum())
    assert fit.explained == pytest.approx(explained, rel=1e-7)


def test_linearly_dependent_vectors_are_refused() -> None:
    vectors_KP = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]).double()
    fit, used = grow(vectors_KP, torch.tensor([1.0, 2.0, 5.0]).double())
    assert used == [0, 1]
    assert fit.weights_K.tolist() == pytest.approx([1, 2])
    vectors_KP = torch.eye(70, dtype=torch.float64) + 0.1
    fit, used = grow(vectors_KP, vectors_KP.sum(dim=0))
    assert used == list(range(70))
    assert fit.weights_K.tolist() == pytest.approx([1] * 70)


def test_refining_drops_negative_weights() -> None:
    fit, _ = grow(torch.eye(3).double(), torch.tensor([1.0, 2.0, 3.0]).double())
    # b was (1, -1, 3): the products with what is missing are those of (0, -3, 0).
    assert fit.refine(torch.tensor([0.0, -3.0, 0.0]).double()) == [1]
    assert fit.weights_K.tolist() == [1, 3]
    assert fit.explained == pytest.approx(10)
    fit, _ = grow(torch.eye(3).double(), torch.tensor([1.0, 2.0, 3.0]).double())
    assert fit.refine(torch.tensor([-2.0, -3.0, 0.0]).double()) == [1, 0]
    assert fit.weights_K.tolist() == [3]


def swapped(rows: Tensor) -> Tensor:
    return rows.roll(rows.shape[-1] // 2, dims=-1)


def gains_of(
    similarities: Tensor, own: Tensor, scale: float, picks: list[int]
) -> list[tuple[float, float]]:
    """The gain of each pick beside the largest there was; F is worked out anew each time."""

    def value(chosen: list[int]) -> float:
        inside = torch.zeros(len(own), dtype=torch.bool)
        inside[chosen] = True
        cut = similarities[inside][:, ~inside].sum()
        return float(own[inside].sum() + scale * cut)

    gains = []
    for number, pick in enumerate(picks):
        chosen = picks[:number]
        values = {
            e: value([*chosen, e]) - value(chosen) for e in range(len(own)) if e not in chosen
        }
        gains.append((values[pick], max(values.values())))
    return gains


def rows_of(kind: str, num_rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, 6, generator=generator)
    if kind == "similar":
        rows += 3
    if kind == "duplicates":
        rows = rows[torch.randint(max(1, num_rows // 3), (num_rows,), generator=generator)]
    if kind == "zeros":
        rows[::2] = 0
    return unit_rows(rows, exact_bits(num_rows))


@pytest.mark.parametrize("kind", ["any", "similar", "duplicates", "zeros"])
@pytest.mark.parametrize("pairs", [False, True])
@settings(max_examples=at_most(10))
@given(
    num_rows=st.integers(1, 14),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1.0, 0.25, 1 / 3]),
)
def test_each_pick_has_the_largest_gain(
    kind: str, pairs: bool, num_rows: int, seed: int, scale: float
) -> None:
    rows = rows_of(kind, num_rows, seed)
    map_rows = swapped if pairs else torch.Tensor.double
    own = torch.randint(-4, 5, (num_rows,), generator=torch.Generator().manual_seed(seed)) / 8
    own = own.double()
    picks = list(cut_picks(rows, own, num_rows, scale=scale, map_rows=map_rows))
    positions = [position for _, position in picks]
    assert sorted(positions) == list(range(num_rows))
    # Near ties may go either way: what counts is that no other gains more.
    plain = gains_of(rows.double() @ map_rows(rows.double()).T, own, scale, positions)
    for (gain, _), (expected, largest) in zip(picks, plain, strict=True):
        assert gain == pytest.approx(expected, abs=1e-9)
        assert expected == pytest.approx(largest, abs=1e-9)


def test_rows_are_normalized_and_zeros_stay() -> None:
    rows = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 0.0]]), bits=20)
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]])
    torch.testing.assert_close(rows, expected, rtol=0, atol=2.0**-21)
    assert ((rows.double() * 2**20) % 1 == 0).all()


@pytest.mark.parametrize("num_rows", [1, 100, 20_000])
def test_sums_of_products_are_exact_in_any_order(num_rows: int) -> None:
    bits = exact_bits(num_rows)
    rows = unit_rows(torch.randn(num_rows, 24, generator=generator(num_rows)), bits).double()
    shuffled = rows[torch.randperm(num_rows, generator=generator())].sum(dim=0)
    total = rows.sum(dim=0)
    assert torch.equal(total, shuffled)
    assert torch.equal((rows @ total)[:50], (rows[:50] * shuffled).flip(1).sum(dim=1))


def test_the_integer_grid_cannot_overflow() -> None:
    for num_rows in (1, 1_000, 50_000, 1_281_167, 10**8):
        # Gains of pairs: up to 4 (num_rows + 1), as multiples of 4**-bits.
        assert 4 * (num_rows + 1) * 4 ** exact_bits(num_rows) <= 2**53
    assert exact_bits(1_281_167) == 14
    assert exact_bits(1) == 22


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bundles(num_each: int) -> Tensor:
    centres = torch.eye(3).repeat_interleave(num_each, dim=0)
    rows = centres + 0.2 * torch.randn(centres.shape, generator=generator(5))
    return rows * torch.linspace(0.1, 10, len(rows))[:, None]


@pytest.mark.parametrize("seed", range(5))
def test_separate_directions_are_found(seed: int) -> None:
    found = spherical_kmeans(bundles(20), 3, generator=generator(seed)).reshape(3, 20)
    assert (found == found[:, :1]).all()
    assert len(found[:, 0].unique()) == 3


@pytest.mark.parametrize("rows", [torch.ones(6, 3), torch.zeros(6, 3), torch.ones(1, 2)])
def test_equal_rows_are_one_cluster(rows: Tensor) -> None:
    assert spherical_kmeans(rows, 4, generator=generator()).tolist() == [0] * len(rows)
