from dataclasses import replace
from pathlib import Path

import pytest

from lipt.common.errors import ConfigError
from lipt.trainer.comparison.trial import (
    Cell,
    ComparisonPlan,
    TrialFile,
    converged,
    label,
    read_trials,
)
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.records import Evaluation
from tests.trainer.made_up import made_up_trial

TRIAL = made_up_trial(
    pretraining_seconds=1.5,
    selection_seconds=0.25,
    bytes_sent=7,
    evaluations=(Evaluation(10, 2.0, 0.3), Evaluation(20, 4.0, 0.5), Evaluation(30, 6.0, 0.4)),
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
def test_convergence_is_detected(accuracies: list[tuple[int, float]], expected: bool) -> None:
    assert converged(accuracies, 100) is expected


@pytest.mark.parametrize(
    ("score", "chance", "learned"),
    [
        (0.121, 0.1, False),
        # Odds of 1/6 are one and a half times those of 1/9.
        (0.142, 0.1, False),
        (0.144, 0.1, True),
        (0.003, 0.001, True),
        (0.6, 0.5, False),
        (0.61, 0.5, True),
        (0.991, 0.99, False),
        # R² of the mean is 0.
        (-0.2, 0.0, False),
        (0.0, 0.0, False),
        (0.05, 0.0, True),
    ],
)
def test_a_training_has_learned_if_it_beats_chance(
    score: float, chance: float, learned: bool
) -> None:
    assert replace(TRIAL, test_accuracy=score, chance=chance).learned is learned


def test_time_to_target_includes_the_selection() -> None:
    assert TRIAL.reached(0.4) == (20, 1.75 + 4.0)
    assert TRIAL.reached(0.3) == (10, 1.75 + 2.0)
    assert TRIAL.reached(0.51) is None


def test_trials_are_read_back_and_a_truncated_line_repeated(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    file = TrialFile(path, IDENTITY)
    for seed in (0, 1):
        file.add(replace(TRIAL, seed=seed))
    path.write_text(path.read_text()[:-20])
    again = TrialFile(path, IDENTITY)
    assert again.trials == [TRIAL]
    assert again.trials[0].cell == Cell(0, "uniform", 0.1)
    again.add(replace(TRIAL, seed=1))
    assert read_trials(path) == (IDENTITY, [TRIAL, replace(TRIAL, seed=1)])


def test_another_comparisons_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    TrialFile(path, IDENTITY).add(TRIAL)
    with pytest.raises(ConfigError) as refused:
        TrialFile(path, IDENTITY | {"model": "resnet18"})
    assert str(refused.value) == (
        f"{path} is another comparison: its model is 'resnet8', now it is 'resnet18'. "
        "Give --out another name, or remove the file."
    )
    assert read_trials(path) == (IDENTITY, [TRIAL])  # and left as it was


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"[1]\n", b'{"step": 1}\n', b"\x93NUMPY\x01\x00\n"]
)
def test_a_user_s_file_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"mine is no file of 'lipt compare'"):
        TrialFile(path, IDENTITY)
    assert path.read_bytes() == content


def test_the_full_data_is_trained_once_for_all_fractions() -> None:
    plan = ComparisonPlan(("craig",), (0.1, 0.3), (0, 1), "resnet8", Recipe(steps=3))
    names = ("uniform", "uniform_per_class", "resampled", "craig")
    cells = [Cell(0, name, fraction) for fraction in (0.1, 0.3) for name in names]
    assert list(plan.cells(0)) == [Cell(0, "everything", 1.0), *cells]
    plan = ComparisonPlan(("craig",), (0.1,), (0,), "resnet8", Recipe(steps=3), soft_labels=True)
    assert [cell.strategy for cell in plan.cells(0)] == [
        *("everything", "everything+soft", "uniform", "uniform+soft"),
        *("uniform_per_class", "uniform_per_class+soft", "resampled", "craig", "craig+soft"),
    ]
    assert (Cell(0, "craig+soft", 0.1).name, Cell(0, "craig", 0.1).name) == ("craig", "craig")
    assert label("uniform+soft") == "random (uniform) +soft"
