from __future__ import annotations

import pytest
import torch

from lipt.core.selection.registry import STRATEGIES
from lipt.core.selection.strategy import Need
from lipt.estimates.trials import Trial, can_be_tried, extrapolated, try_strategy
from lipt.estimates.work import Range, exactly
from tests.lipt.estimates.test_choosing import choice, subject


def test_what_was_tried_itself_is_told() -> None:
    trials = [Trial(10.0, exactly(1.0)), Trial(40.0, Range(2.0, 4.0))]
    assert extrapolated(trials, 40.0) == Range(2.0, 4.0)


def test_a_smaller_part_takes_its_share() -> None:
    assert extrapolated([Trial(40.0, Range(2.0, 4.0))], 20.0) == Range(1.0, 2.0)


def test_a_larger_part_is_between_the_cost_and_how_seconds_grew() -> None:
    # Four times the cost took twice as long: of 16 times the cost four times, or sixteen.
    trials = [Trial(10.0, exactly(1.0)), Trial(40.0, exactly(2.0))]
    assert extrapolated(trials, 640.0) == Range(8.0, 32.0)


@pytest.mark.parametrize(("seconds", "power"), [(0.9, 0.5), (1000.0, 2.0)])
def test_growth_is_believed_within_reason(seconds: float, power: float) -> None:
    # Faster for more, or a thousand times slower: that was something else on the machine.
    trials = [Trial(10.0, exactly(1.0)), Trial(40.0, exactly(seconds))]
    found = extrapolated(trials, 160.0)
    assert seconds * 4**power in (pytest.approx(found.low), pytest.approx(found.high))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_that_looks_at_one_model_can_be_tried(name: str) -> None:
    asked = choice(name, 60)
    if not can_be_tried(asked):
        assert asked.needs & {Need.DYNAMICS, Need.PAIRED_FEATURES}
        return
    found = try_strategy(
        asked,
        subject(600, features=8),
        num_validation=40,
        threads=1,
        device=torch.device("cpu"),
    )
    assert 0 < found.low <= found.high
