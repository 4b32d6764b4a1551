"""Signals of a target: what is asked for, and words, by hand."""

from pathlib import Path

import pytest
import torch

import lipt
from lipt.common.errors import InvalidRequestError
from lipt.core.passes import account
from lipt.core.signals.targeted import TargetSignals, numbered, words_of


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


def test_some_examples_keep_the_whole_target() -> None:
    signals = TargetSignals(losses_N=torch.arange(4.0), target_features_MD=torch.eye(3))
    taken = signals.take(torch.tensor([2, 0]))
    assert taken.losses_N is not None
    assert taken.losses_N.tolist() == [2.0, 0.0]
    assert taken.target_features_MD is not None
    assert len(taken.target_features_MD) == 3
    assert signals.merged(TargetSignals(after_NP=torch.ones(4, 1))).losses_N is signals.losses_N


def test_who_computed_either_part_is_named() -> None:
    parts = [TargetSignals(scored_by=account(2, {name: 2}, {}, 0.5)) for name in "ab"]
    merged = parts[0].merged(TargetSignals()).merged(parts[1])
    assert merged.scored_by == account(4, {"a": 2, "b": 2}, {}, 0.5)
