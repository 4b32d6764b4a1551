import pytest

from lipt.trainer.comparison.outcomes import (
    Difference,
    Outcome,
    Reached,
    answers,
    cells,
    outcomes,
    paired_difference,
    text_tables,
    verdict,
)
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.main_training.records import Evaluation
from tests.trainer.made_up import made_up_trial, trials


def test_the_interval_is_student_s_t() -> None:
    # Differences 1, 2, 3: mean 2, std 1, standard error 1/sqrt(3), t(0.975, 2) = 4.30265.
    found = paired_difference({0: 2, 1: 4, 2: 6, 7: 1}, {0: 1, 1: 2, 2: 3, 8: 1})
    assert found is not None
    assert (found.mean, found.num_seeds) == (2.0, 3)
    assert found.low == pytest.approx(2 - 4.30265 / 3**0.5, abs=1e-4)
    assert found.high == pytest.approx(2 + 4.30265 / 3**0.5, abs=1e-4)


def evaluated(strategy: str, *evaluations: tuple[float, float], before: float = 0.0) -> list[Trial]:
    """A seed each, looked at after 10 steps in 1 s, and after 20 in 2 s."""
    return [
        made_up_trial(
            seed=seed,
            strategy=strategy,
            fraction=1.0 if strategy == "everything" else 0.1,
            pretraining_seconds=before,
            selection_seconds=0.0,
            test_accuracy=0.5,
            evaluations=(Evaluation(10, 1.0, first), Evaluation(20, 2.0, second)),
        )
        for seed, (first, second) in enumerate(evaluations)
    ]


SOON, LATE, NEVER = (0.5, 0.6), (0.4, 0.5), (0.3, 0.4)


def reaching(
    ours: list[Trial],
    everything: tuple[tuple[float, float], ...] = (SOON, SOON),
    resampled: tuple[tuple[float, float], ...] = (LATE, SOON),
) -> Outcome:
    """The outcome of our trials where random ends with 50%."""
    baselines = [*evaluated("everything", *everything), *evaluated("resampled", *resampled)]
    return named(outcomes([*evaluated("uniform", SOON, SOON), *ours, *baselines]))["craig"]


def test_seconds_are_compared_where_all_reach_the_target() -> None:
    row = reaching(evaluated("craig", SOON, LATE, before=5.0))
    assert row.reached == Reached(num_trainings=2, num_reached=2, steps=15, seconds=6.5)
    assert row.everything.seconds is not None
    # 6 - 1 and 7 - 1; 6 - 2 and 7 - 1.
    assert row.everything.seconds.mean == 5.5
    # Their deviation is sqrt(0.5), the standard error 0.5, and t(0.975, 1) = 12.7062.
    assert row.everything.seconds.low == pytest.approx(5.5 - 12.7062 / 2, abs=1e-4)
    assert mean(row.resampled.seconds) == 5.0
    row = reaching(evaluated("craig", SOON, NEVER))
    assert row.reached == Reached(2, 1, steps=10, seconds=1)
    assert row.everything.seconds is None
    row = reaching(evaluated("craig", SOON, SOON), everything=(SOON, NEVER))
    assert row.everything.seconds is None


RANDOM = [*trials("uniform", [0.70, 0.72, 0.71]), *trials("uniform_per_class", [0.72, 0.74, 0.73])]
RESAMPLED = trials("resampled", [0.78, 0.80, 0.79])
EVERYTHING = trials("everything", [0.80, 0.80, 0.80], 1.0)


def named(rows: list[Outcome]) -> dict[str, Outcome]:
    return {row.strategy: row for row in rows}


def mean(difference: Difference | None) -> float:
    assert difference is not None
    return difference.mean


def test_all_are_compared_with_the_better_random_and_everything() -> None:
    rows = outcomes([*RANDOM, *trials("craig", [0.74, 0.76, 0.75])])
    assert [row.strategy for row in rows] == ["uniform_per_class", "uniform", "craig"]
    assert mean(rows[2].difference) == pytest.approx(0.02)
    assert rows[0].difference is rows[1].difference is None
    rows = named(outcomes([*RANDOM, *RESAMPLED, *EVERYTHING, *trials("craig", [0.75] * 3)]))
    craig, resampled = rows["craig"], rows["resampled"]
    assert mean(craig.everything.accuracy) == pytest.approx(-0.05)
    assert mean(craig.resampled.accuracy) == pytest.approx(-0.04)
    assert mean(rows["uniform"].everything.accuracy) == pytest.approx(-0.09)
    assert mean(resampled.difference) == pytest.approx(0.06)
    assert mean(resampled.everything.accuracy) == pytest.approx(-0.01)
    assert resampled.resampled.accuracy is None
    everything = rows["everything"]
    assert everything.difference is everything.everything.accuracy is None


def test_soft_labels_are_compared_with_the_same_without_and_no_verdict() -> None:
    soft = [*trials("craig+soft", [0.79] * 3), *trials("uniform+soft", [0.77] * 3)]
    everything = [*EVERYTHING, *trials("everything+soft", [0.81] * 3, 1.0)]
    rows = outcomes([*RANDOM, *soft, *trials("craig", [0.74] * 3), *everything])
    names = [row.strategy for row in rows if row.fraction == 0.1]
    assert names == ["uniform_per_class", "uniform", "craig", "craig+soft", "uniform+soft"]
    found = named(rows)
    assert mean(found["craig+soft"].difference) == pytest.approx(0.05)
    assert mean(found["uniform+soft"].difference) == pytest.approx(0.06)
    assert mean(found["everything+soft"].difference) == pytest.approx(0.01)
    assert found["everything+soft"].converged is None
    assert cells(found["craig+soft"])["to random (95% interval)"].endswith(" to without")
    assert "craig +soft" in "\n".join(text_tables(rows))
    soft = [*trials("craig+soft", [0.79] * 3), *trials("everything+soft", [0.81] * 3, 1.0)]
    rows = outcomes([*RANDOM, *soft, *trials("craig", [0.70] * 3), *EVERYTHING])
    assert not named(rows)["craig+soft"].beats_random
    (only,) = answers(rows)
    assert only.better.startswith("At 10% craig does not beat random")
    assert "soft" not in verdict(rows)


EVALUATIONS = (Evaluation(10, 1.0, 0.70), Evaluation(20, 2.0, 0.80))


def test_without_random_there_is_no_target_and_no_difference() -> None:
    (row,) = outcomes(trials("craig", [0.8] * 2, evaluations=EVALUATIONS))
    assert (row.target, row.reached, row.difference) == (None, None, None)


def test_strategies_whose_seeds_gave_the_same_subset_are_named() -> None:
    accuracies = [0.6, 0.6, 0.6]
    random, craig = trials("uniform", accuracies), trials("craig", accuracies)
    rows = outcomes([*random, *craig, *trials("auto", accuracies, digest="d")])
    assert {row.strategy: row.num_subsets for row in rows} == {"uniform": 3, "auto": 1, "craig": 3}
    assert (
        verdict(rows)
        .splitlines()[0]
        .endswith(" Some seeds gave the same subset; distinct ones: auto 1 of 3.")
    )
