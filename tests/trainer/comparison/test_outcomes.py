from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lipt.trainer.comparison.outcomes import Outcome, outcomes
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.main_training.records import Look
from tests.trainer.made_up import made_up_trial


def trials(
    strategy: str, accuracies: Sequence[float], fraction: float = 0.1, **changes: Any
) -> list[Trial]:
    return [
        made_up_trial(
            seed=seed, strategy=strategy, fraction=fraction, test_accuracy=accuracy, **changes
        )
        for seed, accuracy in enumerate(accuracies)
    ]


RANDOM = [*trials("uniform", [0.70, 0.72, 0.71]), *trials("uniform_per_class", [0.72, 0.74, 0.73])]
REDRAWN = trials("redrawn", [0.78, 0.80, 0.79], every=1)
EVERYTHING = trials("everything", [0.80, 0.80, 0.80], 1.0)


def named(rows: list[Outcome]) -> dict[tuple[str, int], Outcome]:
    return {(row.strategy, row.every): row for row in rows}


def mean(row: Outcome, name: str) -> float:
    difference = getattr(row, name)
    assert difference is not None
    return float(difference.mean)


def test_the_better_random_is_the_one_to_beat() -> None:
    rows = outcomes([*RANDOM, *trials("craig", [0.74, 0.76, 0.75])])
    assert [row.strategy for row in rows] == ["uniform_per_class", "uniform", "craig"]
    assert mean(rows[2], "difference") == pytest.approx(0.02)
    assert rows[2].rival == "random"
    assert rows[0].difference is rows[1].difference is None


def test_all_are_compared_with_everything_and_with_re_drawn_random() -> None:
    rows = named(outcomes([*RANDOM, *REDRAWN, *EVERYTHING, *trials("craig", [0.75] * 3)]))
    craig, redrawn = rows["craig", 0], rows["redrawn", 1]
    assert mean(craig, "to_everything") == pytest.approx(-0.05)
    assert mean(craig, "to_redrawn") == pytest.approx(-0.04)
    assert mean(rows["uniform", 0], "to_everything") == pytest.approx(-0.09)
    assert mean(redrawn, "difference") == pytest.approx(0.06)
    assert mean(redrawn, "to_everything") == pytest.approx(-0.01)
    assert redrawn.to_redrawn is None
    everything = rows["everything", 0]
    assert (everything.difference, everything.to_everything, everything.to_redrawn) == (None,) * 3


def test_baselines_come_first_and_are_no_winners() -> None:
    rows = outcomes([*trials("craig", [0.9] * 3), *REDRAWN, *RANDOM, *EVERYTHING])
    assert [(row.fraction, row.strategy) for row in rows] == [
        (0.1, "redrawn"),
        (0.1, "uniform_per_class"),
        (0.1, "uniform"),
        (0.1, "craig"),
        (1.0, "everything"),
    ]
    assert [row.strategy for row in rows if row.beats_random] == ["craig"]


def test_what_is_chosen_again_is_compared_with_random_re_drawn_as_often() -> None:
    again = trials("craig", [0.77] * 3, every=5)
    as_often = trials("redrawn", [0.76] * 3, every=5)
    rows = named(outcomes([*RANDOM, *REDRAWN, *as_often, *again, *trials("craig", [0.75] * 3)]))
    assert rows["craig", 5].rival == "random re-drawn every 5 epochs"
    assert mean(rows["craig", 5], "difference") == pytest.approx(0.01)
    assert mean(rows["craig", 5], "to_redrawn") == pytest.approx(-0.02)
    assert (rows["craig", 0].rival, rows["craig", 5].label) == (
        "random",
        "craig chosen again every 5 epochs",
    )
    without = named(outcomes([*RANDOM, *again]))
    assert without["craig", 5].rival == "random"


def test_what_changes_has_no_accuracy_on_the_subset_and_everything_need_not_level_off() -> None:
    changing = trials("craig", [0.7] * 3, every=2, subset_accuracy=None)
    everything = trials("everything", [0.8] * 3, 1.0, subset_accuracy=None)
    rows = named(outcomes([*RANDOM, *everything, *changing]))
    assert rows["craig", 2].subset_accuracy is rows["everything", 0].subset_accuracy is None
    assert rows["craig", 2].levelled_off is rows["everything", 0].levelled_off is None
    assert (rows["uniform", 0].subset_accuracy, rows["uniform", 0].levelled_off) == (1.0, True)


def test_trainings_of_a_seed_are_averaged() -> None:
    rows = outcomes([*RANDOM, *trials("uniform", [0.90, 0.92, 0.91], repeat=1)])
    uniform = named(rows)["uniform", 0]
    assert (uniform.num_seeds, uniform.num_trainings) == (3, 6)
    assert uniform.mean_accuracy == pytest.approx(0.81)
    assert uniform.std_accuracy == pytest.approx(0.01)


def test_total_time_is_all_of_it() -> None:
    craig = trials("craig", [0.7] * 3, pretraining_seconds=20.0, waited_seconds=4.0, every=2)
    row = named(outcomes([*RANDOM, *craig]))["craig", 2]
    assert row.total_seconds == 35.0
    assert (row.pretraining_seconds, row.selection_seconds) == (20.0, 5.0)  # 1 s at first
    assert (row.choosing_seconds, row.training_seconds) == (25.0, 10.0)


LOOKS = (Look(10, 1.0, 0.70), Look(20, 2.0, 0.80))


def test_the_target_is_what_fixed_random_ends_with() -> None:
    looked_at = [
        *trials("uniform", [0.7, 0.8], looks=LOOKS),
        *trials("craig", [0.8] * 2, looks=LOOKS),
    ]
    rows = outcomes(looked_at)
    assert [row.reach.target for row in rows if row.reach] == [pytest.approx(0.75)] * 2
    assert rows[1].reach is not None
    assert rows[1].reach.of_random
    assert rows[1].reach.own.steps == 20


def test_another_target_may_be_given() -> None:
    rows = outcomes(trials("craig", [0.8] * 2, looks=LOOKS), target=0.7)
    assert rows[0].reach is not None
    assert (rows[0].reach.target, rows[0].reach.of_random) == (0.7, False)
    assert rows[0].reach.own.steps == 10


def test_without_random_there_is_no_target_and_no_difference() -> None:
    (row,) = outcomes(trials("craig", [0.8] * 2, looks=LOOKS))
    assert (row.reach, row.difference, row.rival) == (None, None, "")
