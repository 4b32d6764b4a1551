"""Signals of a target: texts without their prompts, words, and mean states, by hand."""

from pathlib import Path

import pytest
import torch
from torch import nn

import lipt
from lipt.common.errors import InvalidRequestError
from lipt.core.pretraining.merged_tokens import texts_at_once, with_mean_states
from lipt.core.signals.targeted import (
    TargetSignals,
    numbered,
    without_prompts,
    words_of,
)
from lipt.data.targets.values import MASKED, NextTokens, SingleLabel

BEGIN, END, PAD = 1, 2, 0


def test_a_completion_alone_begins_where_it_counts() -> None:
    # The prompt 7 8 and the completion 9 4; then a text without a prompt.
    tokens_BL = torch.tensor([[BEGIN, 7, 8, 9, 4, PAD], [BEGIN, 5, PAD, PAD, PAD, PAD]])
    wanted_BL = torch.full((2, 6), MASKED)
    wanted_BL[0, 2:5] = torch.tensor([9, 4, END])
    wanted_BL[1, :2] = torch.tensor([5, END])
    moved_BL, next_BL = without_prompts(tokens_BL, wanted_BL)
    assert moved_BL.tolist() == [[BEGIN, 9, 4, PAD, PAD, PAD], [BEGIN, 5, PAD, PAD, PAD, PAD]]
    assert next_BL[0].tolist() == [9, 4, END, MASKED, MASKED, MASKED]
    assert next_BL[1].tolist() == wanted_BL[1].tolist()


class Echo(nn.Module):
    """States are the tokens themselves, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 4)

    def forward(self, tokens_BL: torch.Tensor) -> torch.Tensor:
        logits_BLV: torch.Tensor = self.fc(tokens_BL[..., None].float().expand(-1, -1, 2))
        return logits_BLV


def test_later_positions_of_a_text_count_more_and_padding_nothing() -> None:
    _, means_BD = with_mean_states(Echo(), torch.tensor([[1, 6, 3, 0], [4, 0, 0, 0]]))
    # Of the tokens 1, 6 and 3 with the weights 1/6, 2/6 and 3/6.
    assert torch.allclose(means_BD, torch.tensor([[22 / 6, 22 / 6], [4.0, 4.0]]))


def test_words_of_bytes_are_words_and_marks_in_lower_case(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text('ask,say\n"Add, then Sort!",Grüße 42\nx,y\n')
    dataset = lipt.open_dataset(f"csv:{file}?prompt=ask&completion=say&max_length=40")
    found = list(words_of(dataset, torch.tensor([1, 0])))
    assert found == [["x", "y"], ["add", ",", "then", "sort", "!", "grüße", "42"]]


def test_words_of_what_is_no_text_are_refused() -> None:
    dataset = lipt.open_dataset((torch.rand(4, 3), [0, 1, 0, 1]))
    with pytest.raises(InvalidRequestError, match=r"words are compared, and .* holds"):
        next(words_of(dataset, torch.tensor([0])))


def test_words_of_several_lists_share_their_numbers() -> None:
    vocabulary = dict[str, int]()
    assert numbered([["a", "b", "a"], []], vocabulary).tolist() == [[0, 1, 0], [-1, -1, -1]]
    assert numbered([["c", "b"]], vocabulary).tolist() == [[2, 1]]


def test_fewer_texts_are_scored_at_once_the_more_logits_they_have() -> None:
    assert texts_at_once(NextTokens(num_tokens=2**16, length=2**9)) == 2
    assert texts_at_once(NextTokens(num_tokens=2**20, length=2**16)) == 1
    assert texts_at_once(SingleLabel(10)) > 10**6


def test_some_examples_keep_the_whole_target() -> None:
    signals = TargetSignals(losses_N=torch.arange(4.0), target_features_MD=torch.eye(3))
    taken = signals.take(torch.tensor([2, 0]))
    assert taken.losses_N is not None
    assert taken.losses_N.tolist() == [2.0, 0.0]
    assert taken.target_features_MD is not None
    assert len(taken.target_features_MD) == 3
    assert signals.merged(TargetSignals(after_NP=torch.ones(4, 1))).losses_N is signals.losses_N
