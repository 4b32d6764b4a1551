from __future__ import annotations

from dataclasses import replace

from lipt.trainer.comparison.intervals import Difference
from lipt.trainer.comparison.outcomes import Reach, Reached
from lipt.trainer.comparison.table import (
    HEADER,
    INSTEAD_HEADER,
    cells,
    instead,
    markdown,
    notes,
    plain,
)
from tests.trainer.made_up import made_up_outcome

UNDECIDED = Difference(0.01, -0.02, 0.04, 3, "seeds", 12)
RANDOM = made_up_outcome(strategy="uniform", rival="", difference=None)
EVERYTHING = made_up_outcome(
    strategy="everything", fraction=1.0, rival="", difference=None, levelled_off=None
)
REACH = Reach(
    target=0.754,
    of_random=True,
    own=Reached(3, 2, 105.0, 31.2),
    everything=Reached(3, 3, 90.0, 2.5),
    redrawn=None,
    to_everything=None,
    to_redrawn=None,
)
CRAIG = made_up_outcome(
    difference=UNDECIDED,
    to_everything=Difference(-0.03, -0.05, -0.01, 3),
    choosing_seconds=24.0,
    total_seconds=31.0,
    bytes_sent=2_000_000.0,
    reach=REACH,
)


def test_a_row_has_accuracy_its_difference_and_how_many_seeds_would_decide() -> None:
    assert cells(CRAIG) == (
        *("10%", "craig", "50.0% +- 1.0", "+1.0 (-2.0 to +4.0)", "3 of about 12"),
        *("100.0%", "yes", "10", "31 s", "2.0 MB"),
    )
    assert cells(RANDOM)[3:5] == ("-", "3")
    assert cells(replace(CRAIG, num_seeds=2, num_trainings=6, difference=None))[4] == "2 x 3"


def test_what_was_not_measured_is_a_dash() -> None:
    row = replace(CRAIG, subset_accuracy=None, levelled_off=None, bytes_sent=0.0)
    assert cells(row)[5:7] == ("-", "-")
    assert cells(row)[-1] == "-"


def test_what_people_would_do_instead_has_a_table_of_its_own() -> None:
    rows = instead([RANDOM, CRAIG, EVERYTHING])
    assert rows == [
        ("10%", "craig", "-3.0 (-5.0 to -1.0)", "-", "75.4%", "2 of 3", "105", "31 s", "24 s"),
        # Towards the same target.
        ("100%", "everything", "-", "-", "75.4%", "3 of 3", "90", "2.5 s", "0 s"),
    ]
    assert {len(row) for row in rows} == {len(INSTEAD_HEADER)}


def test_a_target_that_is_never_reached_has_no_time() -> None:
    never = replace(REACH, own=Reached(3, 0, None, None))
    assert instead([replace(CRAIG, reach=never)])[0][5:] == ("0 of 3", "-", "-", "24 s")


def test_without_any_of_it_there_is_one_table() -> None:
    assert instead([RANDOM]) == []
    lines = plain([RANDOM])
    assert len(lines) == 2
    assert lines[1].startswith("10%       random (uniform)  50.0% +- 1.0")


def test_the_notes_say_what_intervals_are_over() -> None:
    (over, needed) = notes([CRAIG])
    assert over == "Intervals are over the seeds of the whole pipeline."
    assert needed.startswith('Where one is too wide to decide, "of about" says how many')
    averaged = notes([replace(CRAIG, num_trainings=6, difference=Difference(0.1, 0.0, 0.2, 3))])
    assert averaged == [
        "Intervals are over the seeds of the whole pipeline, each with its trainings averaged."
    ]
    one_seed = replace(CRAIG, difference=Difference(0.1, 0.0, 0.2, 3, "trainings"))
    assert notes([one_seed])[0].startswith("Intervals are over the trainings of one pipeline seed")
    assert notes([RANDOM]) == []


def test_markdown_has_a_column_for_every_cell() -> None:
    lines = markdown([RANDOM, CRAIG, EVERYTHING])
    first, second = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert {line.count("|") for line in first} == {len(HEADER) + 1}
    assert {line.count("|") for line in second[: second.index("")]} == {len(INSTEAD_HEADER) + 1}
    assert first[2].startswith("| 10% | random (uniform) | 50.0% +- 1.0 | - | 3 |")
