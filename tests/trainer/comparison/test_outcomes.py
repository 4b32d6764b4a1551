from math import inf

import pytest

from lipt.trainer.comparison.outcomes import (
    Difference,
    Gap,
    Outcome,
    Reached,
    outcomes,
    paired_difference,
)
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.comparison.verdict import (
    Contrast,
    Verdict,
    alternatives,
    answers,
    cells,
    text_tables,
    verdict,
)
from lipt.trainer.main_training.records import Evaluation
from tests.trainer.made_up import made_up_outcome, made_up_trial, trials


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
    ours: list[Trial], everything: tuple[tuple[float, float], ...] = (SOON, SOON)
) -> Outcome:
    """The outcome of our trials where random ends with 50%."""
    baselines = [*evaluated("everything", *everything), *evaluated("resampled", LATE, SOON)]
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
    assert only.sentence.startswith("At 10% craig does not beat random")
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
    assert verdict(rows).splitlines()[-1] == (
        "At 10% some seeds gave the same subset; distinct ones: auto 1 of 3."
    )


RANDOM_ROW = made_up_outcome(strategy="uniform", difference=None)
EVERYTHING_ROW = made_up_outcome(
    strategy="everything", fraction=1.0, difference=None, converged=None
)
CRAIG = made_up_outcome(
    difference=Difference(0.01, -0.02, 0.04, 3),
    everything=Gap(Difference(-0.03, -0.05, -0.01, 3)),
    selection_seconds=24.0,
    bytes_sent=2_000_000.0,
    target=0.754,
    reached=Reached(3, 2, 105.0, 31.2),
)


def test_rows_have_accuracy_difference_cost_and_alternatives() -> None:
    assert tuple(cells(CRAIG).values()) == (
        *("10%", "craig", "50.0% +- 1.0", "+1.0 (-2.0 to +4.0)", "3"),
        *("100.0%", "yes", "10", "31 s", "2.0 MB"),
    )
    assert cells(RANDOM_ROW)["to random (95% interval)"] == "-"
    rows = alternatives([RANDOM_ROW, CRAIG, EVERYTHING_ROW])
    assert [tuple(row.values()) for row in rows] == [
        ("10%", "craig", "-3.0 (-5.0 to -1.0)", "-", "75.4%", "2 of 3", "105", "31 s", "24 s"),
    ]
    lines = text_tables([RANDOM_ROW, CRAIG, EVERYTHING_ROW])
    assert lines.index("") == 4
    assert lines[5].endswith("target  reached in  steps till then  time till then  choosing")


WINNER, LOSER = trials("craig", [0.75, 0.77, 0.765]), trials("grand", [0.4, 0.5, 0.3])


def answer(*found: Trial) -> Verdict:
    (only,) = answers(outcomes(found))
    return only


def test_verdicts_are_win_undecided_and_loss() -> None:
    found = answer(*RANDOM, *WINNER, *LOSER)
    assert found.sentence.startswith("At 10% craig beats random by 3.2 points (95% interval ")
    assert found.sentence.endswith(", 3 seeds).")
    assert found.beats_random
    results = {row.strategy: row.result for row in found.contrasts}
    assert results == {"craig": "better", "grand": "worse"}
    found = answer(*trials("uniform", [0.7]), *trials("craig", [0.9]))
    assert found.sentence == "At 10% one seed is too few to tell craig from random."
    found = answer(*trials("craig", [0.9, 0.9]))
    assert found.sentence == "At 10% craig was not compared with a random subset."
    found = answer(*RANDOM, *LOSER)
    assert found.sentence.startswith(
        "At 10% grand does not beat random: it differs by -33.0 points (95% interval "
    )
    assert not found.beats_random
    more = answer(*RANDOM, *LOSER, *trials("craig", [0.7] * 3))
    assert more.sentence.startswith(
        "At 10% no strategy beats random: the best, craig, differs by -3.0 points"
    )


def test_a_baseline_at_chance_prevents_a_verdict() -> None:
    everything = trials("everything", [0.8, 0.121, 0.8], 1.0, chance=0.104)
    found = answer(*RANDOM, *WINNER, *everything)
    assert found == Verdict(
        0.1,
        "At 10% this recipe does not learn here: everything reaches 12.1%, chance is 10.4%. There "
        "is no verdict. Train for more steps, lower learning_rate, or set augmentation=none.",
        learned=False,
    )
    rows = outcomes([*RANDOM, *WINNER, *everything])
    assert not any(row.beats_random for row in rows)


def test_every_baseline_at_chance_is_named_at_its_fraction_alone() -> None:
    lost = [*trials("uniform", [0.1, 0.1], 0.01), *trials("resampled", [0.3, 0.09], 0.01)]
    first, second = answers(outcomes([*lost, *trials("craig", [0.1, 0.1], 0.01), *RANDOM, *WINNER]))
    assert first.sentence.startswith(
        "At 1% this recipe does not learn here: random (uniform) reaches 10.0% and random "
        "resampled every epoch reaches 9.0%, chance is 10.0%."
    )
    assert (first.learned, second.learned, second.beats_random) == (False, True, True)


def test_a_chosen_subset_at_chance_is_a_verdict() -> None:
    found = answer(*RANDOM, *trials("craig", [0.1] * 3))
    assert found.learned
    assert found.sentence.startswith("At 10% craig does not beat random")


def test_training_that_was_too_short_is_named() -> None:
    rising = trials("craig", [0.75, 0.77, 0.765], converged=False)
    assert answer(*RANDOM, *rising).notes[-1].endswith("was still rising with craig: train longer.")
    short = [
        trial
        for strategy in ("uniform", "craig")
        for trial in trials(strategy, [0.7, 0.7], converged=False)
    ]
    # Not computed for resampled random.
    short += trials("resampled", [0.7, 0.7], converged=False)
    assert answer(*short).notes[-1].endswith("rising with all of them: train longer.")


TO_93 = "everything, to 93.2%"
BETTER = Difference(0.02, 0.01, 0.03, 3)
WORSE = Difference(-0.02, -0.03, -0.01, 3)
UNCLEAR = Difference(0.002, -0.02, 0.024, 3)
ONE_SEED = Difference(0.02, -inf, inf)


@pytest.mark.parametrize(
    ("difference", "target", "cells"),
    [
        (BETTER, None, ("everything", "+2.0 (+1.0 to +3.0)", "better")),
        (WORSE, None, ("everything", "-2.0 (-3.0 to -1.0)", "worse")),
        (UNCLEAR, None, ("everything", "+0.2 (-2.0 to +2.4)", "unclear")),
        (ONE_SEED, None, ("everything", "+2.0", "unclear")),
        (Difference(8.2, 7.0, 9.4, 3), 0.932, (TO_93, "+8.2 s (+7.0 to +9.4)", "slower")),
        (Difference(-8.2, -9.4, -7.0, 3), 0.932, (TO_93, "-8.2 s (-9.4 to -7.0)", "faster")),
        (Difference(1.0, -inf, inf), 0.932, (TO_93, "+1.0 s", "unclear")),
    ],
)
def test_a_difference_is_a_row_with_its_interval_and_result(
    difference: Difference, target: float | None, cells: tuple[str, ...]
) -> None:
    row = Contrast("craig", 0.1, "everything", difference, target)
    assert tuple(row.cells().values()) == ("craig 10%", *cells)


def test_the_verdict_is_a_sentence_a_table_and_notes() -> None:
    seconds = Difference(8.2, 7.0, 9.4, 3)
    best = made_up_outcome(
        strategy="facility_location",
        difference=Difference(0.035, 0.024, 0.045, 3),
        everything=Gap(UNCLEAR, seconds),
        resampled=Gap(WORSE, seconds),
        target=0.932,
        pretraining_seconds=12.0,
        selection_seconds=0.25,
        training_seconds=5.0,
        mean_accuracy=0.9,
        num_seeds=1,
        num_subsets=1,
    )
    other = made_up_outcome(
        strategy="grand", difference=WORSE, mean_accuracy=0.8, num_seeds=1, num_subsets=1
    )
    lines = verdict([best, other]).splitlines()
    assert lines == [
        "At 10% facility_location beats random by 3.5 points (95% interval 2.4 to 4.5, 3 seeds).",
        "subset                 beside                difference (95% interval)  result",
        "facility_location 10%  random                +3.5 (+2.4 to +4.5)        better",
        "facility_location 10%  everything            +0.2 (-2.0 to +2.4)        unclear",
        "facility_location 10%  resampled             -2.0 (-3.0 to -1.0)        worse",
        "facility_location 10%  everything, to 93.2%  +8.2 s (+7.0 to +9.4)      slower",
        "facility_location 10%  resampled, to 93.2%   +8.2 s (+7.0 to +9.4)      slower",
        "grand 10%              random                -2.0 (-3.0 to -1.0)        worse",
        (
            "At 10% choosing with facility_location took 12 s, once: 12 s of pre-training and "
            "0.2 s of selection. Main training took 5.0 s."
        ),
    ]
    # A terminal's width, with the longest name of a strategy.
    assert all(len(line) <= 80 for line in lines[1:-1])


def test_targets_that_some_trainings_miss_are_not_compared() -> None:
    (found,) = answers([made_up_outcome(everything=Gap(BETTER), target=0.5)])
    assert [row.target for row in found.contrasts if row.baseline == "everything"] == [None]
