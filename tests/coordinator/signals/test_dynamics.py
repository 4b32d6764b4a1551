from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from lipt.common.errors import StateError
from lipt.coordinator.signals.dynamics import (
    Dynamics,
    deviation_over_moments,
    mean_over_moments,
)


def make_dynamics(num_examples: int = 5) -> Dynamics:
    generator = torch.Generator().manual_seed(0)
    return Dynamics(
        probabilities_NLT=torch.rand(num_examples, 2, 3, generator=generator),
        margins_NLT=torch.randn(num_examples, 2, 3, generator=generator),
        error_norms_NL=torch.rand(num_examples, 2, generator=generator),
        disagreement_N=torch.rand(num_examples, generator=generator),
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
    mean_N = mean_over_moments(values_NLT)
    assert mean_N.tolist() == [4.0]
    # 0 + 9 + 4 + 1 + 36 = 50
    assert deviation_over_moments(values_NLT, mean_N).tolist() == pytest.approx([math.sqrt(10)])


def test_statistics_over_moments_are_those_of_all_states_in_a_row() -> None:
    values_NLT = torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(0))
    rows_NS = torch.cat([values_NLT[:, :1, 0], values_NLT[:, :, 1:].flatten(1)], dim=1).double()
    mean_N = mean_over_moments(values_NLT)
    torch.testing.assert_close(mean_N, rows_NS.mean(dim=1))
    torch.testing.assert_close(
        deviation_over_moments(values_NLT, mean_N), rows_NS.std(dim=1, correction=0)
    )
