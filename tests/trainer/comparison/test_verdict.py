from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from lipt.trainer.comparison.table import HEADER, cells, markdown
from lipt.trainer.comparison.trial import Trial
from lipt.trainer.comparison.verdict import outcomes, paired_difference, verdict
from tests.trainer.made_up import made_up_trial


def trials(
    strategy: str,
    accuracies: Sequence[float],
    fraction: float = 0.1,
    *,
    levelled_off: bool = True,
    pretraining_seconds: float = 0.0,
) -> list[Trial]:
    return [
        made_up_trial(
            seed=seed,
            strategy=strategy,
            fraction=fraction,
            test_accuracy=accuracy,
            levelled_off=levelled_off,
            pretraining_seconds=pretraining_seconds,
            bytes_sent=2_000_000 if pretraining_seconds else 0,
        )
        for seed, accuracy in enumerate(accuracies)
    ]


RANDOM = [*trials("uniform", [0.70, 0.72, 0.71]), *trials("uniform_per_class", [0.72, 0.74, 0.73])]


NAMES = (("craig", 0.78), ("gradmatch", 0.79), ("herding", 0.80))


def test_the_interval_is_students() -> None:
    # Differences 1, 2, 3: mean 2, std 1, standard error 1/sqrt(3), t(0.975, 2) = 4.30265.
    found = paired_difference({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2 - 4.30265 / 3**0.5, abs=1e-4)
    assert found.high == pytest.approx(2 + 4.30265 / 3**0.5, abs=1e-4)


def test_only_seeds_that_both_have_are_paired() -> None:
    assert paired_difference({0: 1.0, 5: 9.0}, {0: 0.5, 6: 3.0}).mean == pytest.approx(0.5)


def test_one_pair_tells_nothing() -> None:
    found = paired_difference({0: 0.9}, {0: 0.1})
    assert (found.low, found.high) == (-inf, inf)


def test_the_better_random_is_the_one_to_beat() -> None:
    rows = outcomes([*RANDOM, *trials("craig", [0.74, 0.76, 0.75])])
    assert [row.strategy for row in rows] == ["uniform_per_class", "uniform", "craig"]
    assert rows[2].difference is not None
    assert rows[2].difference.mean == pytest.approx(0.02)
    assert rows[0].difference is rows[1].difference is None


def test_a_clear_winner_is_said_to_win_and_the_others_not() -> None:
    rows = outcomes(
        [*RANDOM, *trials("craig", [0.75, 0.77, 0.765]), *trials("grand", [0.4, 0.5, 0.3])]
    )
    text = verdict(rows)
    assert text.startswith("At 10% craig beats random by 3.2 points (95% interval ")
    assert text.endswith("3 seeds); grand does not beat random.")


def test_all_that_beat_random_are_named() -> None:
    winners = [(name, [base, base + 0.02, base + 0.01]) for name, base in NAMES]
    rows = outcomes([*RANDOM, *(item for name, found in winners for item in trials(name, found))])
    assert all(row.beats_random for row in rows[2:])
    assert verdict(rows).startswith("At 10% herding beats random by 8.0 points ")
    assert verdict(rows).endswith("3 seeds), and so do gradmatch and craig.")


def test_what_does_not_beat_random_is_said_so() -> None:
    rows = outcomes([*RANDOM, *trials("grand", [0.4, 0.5, 0.3])])
    assert verdict(rows).startswith("At 10% grand does not beat random: it differs by -33.0 points")
    more = outcomes([*RANDOM, *trials("grand", [0.4, 0.5, 0.3]), *trials("craig", [0.7] * 3)])
    assert verdict(more).startswith(
        "At 10% craig and grand do not beat random: the best, craig, differs by -3.0 points"
    )


def test_a_difference_within_its_interval_is_no_win() -> None:
    rows = outcomes([*RANDOM, *trials("craig", [0.76, 0.72, 0.75])])
    assert rows[2].difference is not None
    assert rows[2].difference.mean > 0
    assert "craig does not beat random" in verdict(rows)


def test_one_seed_is_no_verdict() -> None:
    rows = outcomes([*trials("uniform", [0.7]), *trials("craig", [0.9])])
    assert verdict(rows) == "At 10% one seed is too few to tell craig from random."


def test_training_that_was_too_short_is_named() -> None:
    rows = outcomes([*RANDOM, *trials("craig", [0.75, 0.77, 0.765], levelled_off=False)])
    assert verdict(rows).endswith("was still rising with craig: train longer.")
    short = [
        trial
        for strategy in ("uniform", "craig")
        for trial in trials(strategy, [0.7, 0.7], levelled_off=False)
    ]
    assert verdict(outcomes(short)).endswith("rising with all of them: train longer.")


def test_fractions_are_told_apart() -> None:
    more = [*trials("uniform", [0.8, 0.8], 0.3), *trials("craig", [0.9, 0.91], 0.3)]
    rows = outcomes([*RANDOM, *trials("craig", [0.70, 0.70, 0.70]), *more])
    assert [row.fraction for row in rows] == [0.1, 0.1, 0.1, 0.3, 0.3]
    assert "At 10% craig does not" in verdict(rows)
    assert "At 30% craig beats" in verdict(rows)


def test_total_time_is_all_of_it() -> None:
    rows = outcomes([*RANDOM, *trials("craig", [0.7, 0.7, 0.7], pretraining_seconds=20.0)])
    assert [row.total_seconds for row in rows] == [11.0, 11.0, 31.0]
    assert cells(rows[2])[-2:] == ("31 s", "2.0 MB")


def test_markdown_has_a_column_for_every_cell() -> None:
    lines = markdown(outcomes(RANDOM))
    assert {line.count("|") for line in lines} == {len(HEADER) + 1}
    assert lines[2].startswith("| 10% | uniform_per_class | 73.0% +- 1.0 | - |")
