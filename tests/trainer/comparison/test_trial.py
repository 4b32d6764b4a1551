from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lipt.common.errors import ConfigError
from lipt.trainer.comparison.trial import Trial, TrialFile, levelled_off, read_trials

TRIAL = Trial(
    seed=0,
    strategy="uniform",
    fraction=0.1,
    num_examples=10,
    num_steps=5,
    weighted=False,
    test_accuracy=0.5,
    subset_accuracy=1.0,
    levelled_off=True,
    pretraining_seconds=1.5,
    selection_seconds=0.25,
    training_seconds=10.0,
    bytes_sent=7,
    digest="d",
)
IDENTITY = {"model": "resnet8", "data": "f"}


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([(10, 0.2), (100, 0.996)], True),  # saturated
        ([(50, 0.8), (80, 0.90), (100, 0.905)], True),  # still
        ([(50, 0.8), (80, 0.85), (100, 0.905)], False),  # rising
        ([(50, 0.8), (80, 0.95), (100, 0.90)], True),  # falling is not rising
        ([(100, 0.9)], False),  # nothing to compare with
    ],
)
def test_levelled_off(accuracies: list[tuple[int, float]], expected: bool) -> None:
    assert levelled_off(accuracies, 100) is expected


def test_trials_are_found_again_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    TrialFile(path, IDENTITY).add(TRIAL)
    again = TrialFile(path, IDENTITY)
    assert again.find(0, "uniform", 0.1) == TRIAL
    assert again.find(1, "uniform", 0.1) is None
    assert read_trials(path) == (IDENTITY, [TRIAL])


def test_a_line_that_was_cut_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    file = TrialFile(path, IDENTITY)
    file.add(TRIAL)
    file.add(replace(TRIAL, seed=1))
    path.write_text(path.read_text()[:-20])
    again = TrialFile(path, IDENTITY)
    assert again.trials == [TRIAL]
    again.add(replace(TRIAL, seed=1))
    assert [trial.seed for trial in read_trials(path)[1]] == [0, 1]


def test_another_comparisons_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    TrialFile(path, IDENTITY).add(TRIAL)
    with pytest.raises(ConfigError, match="a comparison with another model"):
        TrialFile(path, IDENTITY | {"model": "resnet18"})
    assert read_trials(path) == (IDENTITY, [TRIAL])  # and left as it was


@pytest.mark.parametrize("content", ["", "garbage\n", "[1]\n", '{"a": 1}\n'])
def test_what_is_no_comparison_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"trials\.jsonl is not a file that 'lipt compare' wrote"):
        read_trials(path)
