from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipt.common.errors import StateError
from lipt.core.signals.dynamics import (
    Dynamics,
    counted_learners,
    deviation_over_moments,
    mean_over_learners,
    mean_over_moments,
)


def make_dynamics(num_examples: int = 5) -> Dynamics:
    generator = torch.Generator().manual_seed(0)
    return Dynamics(
        probabilities_NLT=torch.rand(num_examples, 2, 3, generator=generator),
        margins_NLT=torch.randn(num_examples, 2, 3, generator=generator),
        error_norms_NL=torch.rand(num_examples, 2, generator=generator),
        disagreement_N=torch.rand(num_examples, generator=generator),
        own_learner_N=torch.tensor([1, -1, 0, 0, -1], dtype=torch.int16)[:num_examples],
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    dynamics = make_dynamics()
    dynamics.save(tmp_path / "d")
    loaded = Dynamics.load(tmp_path / "d")
    assert len(loaded) == 5
    for name, values in vars(dynamics).items():
        assert torch.equal(getattr(loaded, name), values), name
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_some_examples_in_the_order_given() -> None:
    dynamics = make_dynamics()
    taken = dynamics.take(torch.tensor([3, 0]))
    for name, values in vars(dynamics).items():
        assert torch.equal(getattr(taken, name), values[[3, 0]]), name


@pytest.mark.parametrize("content", [b"", b"no safetensors"])
def test_file_of_something_else_is_refused_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(StateError, match="Delete it: they are computed again"):
        Dynamics.load(tmp_path / "d")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="training dynamics"):
        Dynamics.load(tmp_path / "d")


def test_theta_star_counts_once_in_a_mean() -> None:
    # 4 at theta*, then 1, 2 by one learner and 3, 10 by the other: 20 / 5 and not 24 / 6.
    values_NLT = torch.tensor([[[4.0, 1.0, 2.0], [4.0, 3.0, 10.0]]])
    everyone_NL = torch.ones(1, 2, dtype=torch.bool)
    mean_N = mean_over_moments(values_NLT, everyone_NL)
    assert mean_N.tolist() == [4.0]
    # 0 + 9 + 4 + 1 + 36 = 50
    deviation_N = deviation_over_moments(values_NLT, everyone_NL, mean_N)
    assert deviation_N.tolist() == pytest.approx([math.sqrt(10)])


def test_the_learner_that_was_trained_on_an_example_has_no_say_on_it() -> None:
    # The other one and theta*: 4 + 3 + 10 by three, and 4 + 1 + 2.
    values_NLT = torch.tensor([[[4.0, 1.0, 2.0], [4.0, 3.0, 10.0]]]).expand(3, -1, -1)
    counted_NL = counted_learners(torch.tensor([0, 1, -1], dtype=torch.int16), 2)
    assert counted_NL.tolist() == [[False, True], [True, False], [True, True]]
    means_N = mean_over_moments(values_NLT, counted_NL)
    assert means_N.tolist() == pytest.approx([17 / 3, 7 / 3, 4.0])
    assert mean_over_learners(values_NLT[:, :, 2], counted_NL).tolist() == [10.0, 2.0, 6.0]


def test_a_learner_that_is_alone_keeps_its_say() -> None:
    own_learner_N = torch.tensor([0, -1], dtype=torch.int16)
    assert counted_learners(own_learner_N, 1).tolist() == [[True], [True]]
    # Two are needed, and only one is left of two; of three, two are.
    assert counted_learners(own_learner_N, 2, num_needed=2).tolist() == [[True] * 2] * 2
    assert counted_learners(own_learner_N, 3, num_needed=2).tolist() == [
        [False, True, True],
        [True, True, True],
    ]


def slowly(values_NLT: Tensor, own_learner_N: Tensor) -> list[list[float]]:
    """Of each example theta*, then every later state of the learners not trained on it."""
    states = []
    for values_LT, own in zip(values_NLT.tolist(), own_learner_N.tolist(), strict=True):
        of_example = [values_LT[0][0]]
        for learner, values_T in enumerate(values_LT):
            if learner != own:
                of_example += values_T[1:]
        states.append(of_example)
    return states


def test_statistics_are_those_of_a_loop_that_skips_the_own_learner() -> None:
    generator = torch.Generator().manual_seed(0)
    values_NLT = torch.randn(50, 3, 4, generator=generator)
    own_learner_N = torch.randint(-1, 3, (50,), generator=generator)
    counted_NL = counted_learners(own_learner_N, 3)
    states = [torch.tensor(row).double() for row in slowly(values_NLT, own_learner_N)]
    assert {len(row) for row in states} == {1 + 2 * 3, 1 + 3 * 3}
    means_N = mean_over_moments(values_NLT, counted_NL)
    torch.testing.assert_close(means_N, torch.stack([row.mean() for row in states]))
    torch.testing.assert_close(
        deviation_over_moments(values_NLT, counted_NL, means_N),
        torch.stack([row.std(correction=0) for row in states]),
    )
    ends = slowly(values_NLT[:, :, 2:], own_learner_N)
    torch.testing.assert_close(
        mean_over_learners(values_NLT[:, :, 3], counted_NL),
        torch.stack([torch.tensor(row[1:]).double().mean() for row in ends]),
    )


def test_equal_examples_tie_to_the_last_bit_wherever_they_stand() -> None:
    generator = torch.Generator().manual_seed(0)
    one_LT, own_learner_N = torch.randn(7, 4, generator=generator), torch.tensor([-1, 3])
    # Alone and among many: sums over a longer axis may be taken in another order.
    for own in own_learner_N.tolist():
        alone = mean_over_moments(one_LT[None], counted_learners(torch.tensor([own]), 7))
        many_N = torch.full((1001,), own)
        counted_NL = counted_learners(many_N, 7)
        values_NLT = one_LT.expand(1001, -1, -1).clone()
        values_NLT[::2] = torch.randn(501, 7, 4, generator=generator)
        means_N = mean_over_moments(values_NLT, counted_NL)
        assert means_N[1::2].unique().tolist() == alone.tolist()
        deviations_N = deviation_over_moments(values_NLT, counted_NL, means_N)
        assert len(deviations_N[1::2].unique()) == 1
