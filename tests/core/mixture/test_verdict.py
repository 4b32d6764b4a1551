import pytest
import torch

from lipt.core.mixture.verdict import Finding, judge


def shares(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("gains", "weights", "finding"),
    [
        ([1.0, 1.1, 0.9, 1.0], (0.6, 0.4), Finding.BETTER),
        ([1.0, 1.1, 0.9, 1.0], (0.99, 0.01), Finding.ALONE),
        ([1.0, -1.1, 0.9, -1.0], (0.6, 0.4), Finding.NOT_BETTER),
        ([0.0, 0.0, 0.0, 0.0], (0.5, 0.5), Finding.NOT_BETTER),
    ],
)
def test_verdict(gains: list[float], weights: tuple[float, float], finding: Finding) -> None:
    gains_N, sure_N = torch.tensor(gains), torch.ones(4)
    assert judge(gains_N, sure_N, shares(*weights), ("a", "b")).finding is finding


def test_a_gain_that_other_learners_do_not_show_is_none() -> None:
    gains_N, crossed_N = torch.tensor([1.0, 1.1, 0.9]), torch.tensor([0.5, -0.5, 0.1])
    verdict = judge(gains_N, crossed_N, shares(0.6, 0.4), ("a", "b"))
    assert verdict.finding is Finding.NOT_BETTER


def test_verdict_has_the_gain_and_its_interval() -> None:
    # A mean of 2 with a deviation of 2: 1.96 x 2 / sqrt(4).
    verdict = judge(torch.tensor([0.0, 2.0, 2.0, 4.0]), torch.ones(4), shares(0.6, 0.4), ("a", "b"))
    assert verdict.gain == 2.0
    assert verdict.high - verdict.gain == pytest.approx(1.96 * (8 / 3) ** 0.5 / 2)


def test_verdict_of_one_source_names_it() -> None:
    verdict = judge(torch.zeros(1), torch.zeros(1), shares(1.0), ("web",))
    assert verdict.finding is Finding.NOTHING_TO_MIX
    assert str(verdict) == "There is one source, web, so there is nothing to mix."
