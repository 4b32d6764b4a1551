"""Next tokens as a kind of target, by hand-computed losses."""

import math

import pytest
import torch

from lipt.common.errors import ConfigError
from lipt.data.targets.values import MASKED, NextTokens, token_values

# Two texts of three positions and four tokens. A row's probabilities are 1/2, 1/4, 1/8, 1/8.
TARGET = NextTokens(num_tokens=4, length=3)
ROW = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
OUTPUTS = ROW.expand(2, 3, 4)
WANTED = torch.tensor([[MASKED, 0, 1], [MASKED, MASKED, 3]])


def test_the_loss_is_the_mean_over_the_tokens_that_count() -> None:
    # (log 2 + log 4) / 2, and log 8.
    found = TARGET.losses(OUTPUTS, WANTED)
    assert found.tolist() == pytest.approx([1.5 * math.log(2), 3 * math.log(2)])


def test_masked_positions_have_no_gradient() -> None:
    outputs = OUTPUTS.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(TARGET.mean_loss(outputs, WANTED), outputs)
    assert (slopes.abs().sum(dim=-1) > 0).tolist() == [[False, True, True], [False, False, True]]


def test_the_score_is_the_share_of_right_tokens() -> None:
    tally = TARGET.tally()
    tally.add(OUTPUTS[:1], WANTED[:1])
    tally.add(OUTPUTS[1:], WANTED[1:])
    assert tally.score() == pytest.approx(1 / 3)
    assert TARGET.merits(OUTPUTS, WANTED).tolist() == [0.5, 0.0]


def test_outputs_that_are_not_finite_are_wrong() -> None:
    outputs = OUTPUTS.clone()
    outputs[0, 1, 2] = math.nan
    assert TARGET.counts(outputs, WANTED).tolist() == [0, 3]


def test_chance_is_the_most_frequent_token() -> None:
    assert TARGET.chance(torch.tensor([[MASKED, 1, 1], [MASKED, MASKED, 3]])) == pytest.approx(
        2 / 3
    )


def test_a_model_of_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape \(2, 4\), and the next tokens \(2, 3\)\. Choose"):
        TARGET.losses(torch.zeros(2, 4), WANTED)
    with pytest.raises(ConfigError, match=r"signals of 3 tokens of 2 texts are not available"):
        TARGET.residuals(OUTPUTS, WANTED)


def test_texts_are_grouped_by_their_length() -> None:
    values = token_values(WANTED, 4)
    assert values.strata_names == ("up to 2 tokens", "above 2 tokens")
    assert values.strata_N.tolist() == [0, 0]
    assert token_values(torch.tensor([[1, 2, 3]]), 4).strata_N.tolist() == [1]
