from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from lipt.trainer.comparison.intervals import Difference
from lipt.trainer.comparison.outcomes import Reach, Reached, outcomes
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.comparison.verdict import Answers, answers, verdict
from tests.trainer.made_up import made_up_outcome, made_up_trial


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

NAMES = (("craig", 0.78), ("gradmatch", 0.79), ("herding", 0.80))


def answer(*found: Trial) -> Answers:
    (only,) = answers(outcomes(found))
    return only


# Is it better than a random subset of its size?


def test_a_clear_winner_is_said_to_win_and_the_others_not() -> None:
    found = answer(
        *RANDOM, *trials("craig", [0.75, 0.77, 0.765]), *trials("grand", [0.4, 0.5, 0.3])
    )
    assert found.better.startswith("At 10% craig beats random by 3.2 points (95% interval ")
    assert found.better.endswith("3 seeds); grand does not beat it.")
    assert found.beats_random


def test_all_that_beat_random_are_named() -> None:
    winners = [(name, [base, base + 0.02, base + 0.01]) for name, base in NAMES]
    found = answer(*RANDOM, *(item for name, values in winners for item in trials(name, values)))
    assert found.better.startswith("At 10% herding beats random by 8.0 points ")
    assert found.better.endswith("3 seeds), and so do gradmatch and craig.")


def test_one_that_beats_random_is_named_before_a_luckier_one_that_does_not() -> None:
    lucky, sure = trials("grand", [0.70, 0.95, 0.85]), trials("craig", [0.75, 0.77, 0.765])
    found = answer(*RANDOM, *lucky, *sure)
    assert found.better.startswith("At 10% craig beats random by 3.2 points (")
    assert found.better.endswith("; grand does not beat it.")


def test_what_does_not_beat_random_is_said_so() -> None:
    found = answer(*RANDOM, *trials("grand", [0.4, 0.5, 0.3]))
    assert found.better.startswith(
        "At 10% grand does not beat random: it differs by -33.0 points (95% interval "
    )
    assert not found.beats_random
    more = answer(*RANDOM, *trials("grand", [0.4, 0.5, 0.3]), *trials("craig", [0.7] * 3))
    assert more.better.startswith(
        "At 10% craig and grand do not beat random: the best, craig, differs by -3.0 points"
    )


def test_a_difference_within_its_interval_is_no_win_and_how_many_seeds_it_needs_is_said() -> None:
    # Differences 4, -2 and 2 points: their deviation is 3.055 points, and 39 seeds make
    # t(0.975, 38) = 2.0244 times that over sqrt(39), 0.990 points; 38 make 1.004.
    found = answer(*RANDOM, *trials("craig", [0.76, 0.72, 0.75]))
    assert "craig does not beat random: it differs by +1.3 points" in found.better
    assert found.better.endswith(", 3 seeds; about 39 would tell one point).")


def test_one_seed_is_no_verdict() -> None:
    found = answer(*trials("uniform", [0.7]), *trials("craig", [0.9]))
    assert found.better == "At 10% one seed is too few to tell craig from random."


def test_several_trainings_of_one_seed_are_said_to_be_of_one() -> None:
    both = (
        trial
        for repeat in range(3)
        for name, accuracy in (("uniform", 0.7), ("craig", 0.8))
        for trial in trials(name, [accuracy + repeat / 1000], repeat=repeat)
    )
    assert answer(*both).better.endswith("10.0 to 10.0, 3 trainings of one seed).")


def test_without_random_nothing_is_claimed() -> None:
    found = answer(*trials("craig", [0.9, 0.9]))
    assert found.better == "At 10% craig was not compared with a random subset."


def test_training_that_was_too_short_is_named() -> None:
    rising = trials("craig", [0.75, 0.77, 0.765], levelled_off=False)
    assert answer(*RANDOM, *rising).better.endswith("was still rising with craig: train longer.")
    short = [
        trial
        for strategy in ("uniform", "craig")
        for trial in trials(strategy, [0.7, 0.7], levelled_off=False)
    ]
    # Of re-drawn random nobody asks it.
    short += trials("redrawn", [0.7, 0.7], every=1, levelled_off=False)
    assert answer(*short).better.endswith("rising with all of them: train longer.")


def test_fractions_are_told_apart() -> None:
    more = [*trials("uniform", [0.8, 0.8], 0.075), *trials("craig", [0.9, 0.91], 0.075)]
    everything = trials("everything", [0.8] * 3, 1.0)
    rows = outcomes([*RANDOM, *trials("craig", [0.70] * 3), *more, *everything])
    first, second = answers(rows)
    assert first.better.startswith("At 7.5% craig beats")
    assert second.better.startswith("At 10% craig does not")


def test_what_is_chosen_again_has_answers_of_its_own() -> None:
    again = trials("craig", [0.75, 0.77, 0.765], every=5)
    as_often = trials("redrawn", [0.73, 0.73, 0.73], every=5)
    rows = outcomes([*RANDOM, *again, *as_often, *trials("craig", [0.4, 0.5, 0.3])])
    once, often = answers(rows)
    assert (once.every, often.every) == (0, 5)
    assert once.better.startswith("At 10% craig does not beat random: ")
    assert often.better.startswith(
        "At 10% craig chosen again every 5 epochs beats random re-drawn every 5 epochs by 3.2 "
    )


def test_a_comparison_without_a_strategy_says_so() -> None:
    assert verdict(outcomes(RANDOM)) == "At 10% nothing was chosen."


# Is it faster than training on everything for as long?

BETTER = Difference(0.02, 0.01, 0.03, 3)
WORSE = Difference(-0.02, -0.03, -0.01, 3)
UNDECIDED = Difference(0.002, -0.02, 0.024, 3, "seeds", 9)
ALONE = Difference(0.02, -inf, inf)


def faster(**changes: Any) -> str:
    (found,) = answers([made_up_outcome(**changes)])
    return found.faster


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (BETTER, "better than everything by 2.0 points (95% interval 1.0 to 3.0, 3 seeds)."),
        (WORSE, "worse than everything by 2.0 points (95% interval 1.0 to 3.0, 3 seeds)."),
        (
            UNDECIDED,
            (
                "not told apart from everything, at +0.2 points (95% interval -2.0 to +2.4, "
                "3 seeds)."
            ),
        ),
        (ALONE, "+2.0 points from everything (one seed tells nothing)."),
    ],
)
def test_how_it_stands_to_everything_is_said(difference: Difference, text: str) -> None:
    assert faster(to_everything=difference) == f"Trained for as many steps, craig is {text}"


def test_re_drawn_random_stands_beside_everything() -> None:
    text = faster(to_everything=BETTER, to_redrawn=WORSE)
    assert "better than everything by 2.0 points" in text
    assert "and worse than random re-drawn every epoch by 2.0 points" in text


def reach(**changes: Any) -> Reach:
    values: dict[str, Any] = {
        "target": 0.5,
        "of_random": False,
        "own": Reached(3, 3, 60, 12.2),
        "everything": Reached(3, 3, 80, 4.0),
        "redrawn": None,
        "to_everything": None,
        "to_redrawn": None,
    }
    return Reach(**values | changes)


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (
            Difference(8.2, 7.0, 9.4, 3),
            "choosing is slower by 8.2 s (95% interval 7.0 s to 9.4 s, 3 seeds)",
        ),
        (
            Difference(-8.2, -9.4, -7.0, 3),
            "choosing is faster by 8.2 s (95% interval 7.0 s to 9.4 s, 3 seeds)",
        ),
        (Difference(1.0, -7.0, 9.0, 3), "neither is shown to be faster"),
    ],
)
def test_who_reaches_the_target_sooner_is_said_with_the_seconds_of_both(
    difference: Difference, text: str
) -> None:
    found = faster(to_everything=BETTER, reach=reach(to_everything=difference))
    assert found.endswith(
        " To 50.0% it takes 12 s (60 steps), choosing included; everything takes 4.0 s "
        f"(80 steps), so {text}."
    )


NEVER, SOMETIMES = Reached(3, 0, None, None), Reached(3, 2, 70, 5.0)


@pytest.mark.parametrize(
    ("own", "theirs", "text"),
    [
        (NEVER, Reached(3, 3, 80, 4.0), "choosing is slower"),
        (Reached(3, 3, 60, 2.0), NEVER, "choosing is faster"),
        (SOMETIMES, Reached(3, 3, 80, 4.0), "neither is shown to be faster"),
        (NEVER, NEVER, "neither is shown to be faster"),
    ],
)
def test_a_target_that_is_not_always_reached_decides_only_where_it_is_plain(
    own: Reached, theirs: Reached, text: str
) -> None:
    found = faster(to_everything=BETTER, reach=reach(own=own, everything=theirs))
    assert found.endswith(f", so {text}.")
    if own is NEVER:
        assert "it takes more than all steps in each of 3 trainings, choosing included" in found
    if own is SOMETIMES:
        assert "it takes 5.0 s (70 steps) in 2 of 3 trainings, and never else" in found


def test_where_the_target_comes_from_is_said() -> None:
    found = faster(to_everything=BETTER, reach=reach(of_random=True))
    assert " To 50.0%, what random ends with, it takes 12 s" in found


def test_without_everything_and_re_drawn_random_nothing_is_said_of_them() -> None:
    assert faster() == ""


# What did choosing cost?


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"pretraining_seconds": 12.0, "selection_seconds": 0.25, "choosing_seconds": 12.25},
            (
                "cost 12 s (12 s of pre-training and 0.2 s of selection), 2.5 times the 5.0 s "
                "of main training; it is paid once, however often the subset is trained on."
            ),
        ),
        (
            {"selection_seconds": 2.0, "choosing_seconds": 2.0, "every": 5},
            (
                "cost 2.0 s (0.0 s of pre-training and 2.0 s of selection), 40% of the 5.0 s "
                "of main training; every training pays for selection again."
            ),
        ),
    ],
)
def test_what_choosing_cost_is_said_in_seconds_and_as_a_share(
    changes: dict[str, Any], text: str
) -> None:
    (found,) = answers([made_up_outcome(training_seconds=5.0, **changes)])
    assert found.cost == f"Choosing with craig {text}"


def test_the_verdict_is_a_line_for_each_answer() -> None:
    rows = [made_up_outcome(to_everything=WORSE)]
    (found,) = answers(rows)
    assert verdict(rows).splitlines() == [found.better, found.faster, found.cost]
