"""The plan of `auto`: what is left out by what was found, and when it is plain random."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lipt.core.selection.plan import Evidence, make_plan

# As on cifar10-jpeg: a head that gets 40% and 20% of two classes wrong, and labels that are right.
CLEAN = Evidence(
    fraction=0.1,
    errors_C=(0.4, 0.2),
    num_classes=2,
    noise_rate=0.0,
    noise_low=0.0,
    noise_C=(0.0, 0.0),
    training="short",
)


def test_few_are_taken_from_what_the_head_gets_right_and_then_some() -> None:
    # Half as many again as it gets wrong.
    assert make_plan(replace(CLEAN, fraction=0.05)).left_out_C == pytest.approx((0.6, 0.3))


def test_a_tenth_is_taken_from_what_the_head_gets_right() -> None:
    plan = make_plan(CLEAN)
    assert plan.left_out_C == pytest.approx((0.4, 0.2))
    assert plan.method == "facility_location"
    assert "without the 30% whose labels are trusted least" in plan.why


def test_from_a_fifth_on_right_labels_are_drawn_at_random() -> None:
    for fraction in (0.2, 0.3, 1.0):
        plan = make_plan(replace(CLEAN, fraction=fraction))
        assert plan.method == "random"
        assert plan.left_out_C == (0.0, 0.0)
        assert "no gain is known" in plan.why


def test_wrong_labels_are_left_out_at_any_fraction_where_it_is_sure_that_there_are_some() -> None:
    noisy = replace(
        CLEAN,
        fraction=0.5,
        errors_C=(0.45, 0.15),
        noise_rate=0.2,
        noise_low=0.18,
        noise_C=(0.2, 0.12),
    )
    plan = make_plan(noisy)
    # 1.5 for each wrong one, and no more than the head gets wrong.
    assert plan.left_out_C == pytest.approx((0.3, 0.15))
    assert plan.method == "random"
    assert "class-balanced random, without the 23% whose labels are trusted least" in plan.why


def test_a_few_wrong_labels_are_no_reason_to_leave_anything_out() -> None:
    nearly = replace(CLEAN, fraction=0.5, noise_rate=0.02, noise_low=0.01, noise_C=(0.2, 0.0))
    assert make_plan(nearly).left_out_C == (0.0, 0.0)


def test_a_class_always_keeps_something_to_choose_from() -> None:
    hard = replace(
        CLEAN, fraction=0.01, errors_C=(0.9, 0.1, 0.1), num_classes=3, noise_C=(0.0,) * 3
    )
    assert make_plan(hard).left_out_C == pytest.approx((0.7, 0.15, 0.15))


def test_a_head_that_guesses_is_not_listened_to() -> None:
    guessing = replace(CLEAN, errors_C=(0.5, 0.44))
    plan = make_plan(guessing)
    assert plan.method == "random"
    assert plan.left_out_C == (0.0, 0.0)
    assert "right on 53.0%" in plan.why


def test_wrong_labels_do_not_make_a_head_look_unskilled() -> None:
    # Right on 60% where 64% of the labels are right is next to everything there is.
    ten = replace(
        CLEAN,
        errors_C=(0.4,) * 10,
        num_classes=10,
        noise_rate=0.36,
        noise_low=0.35,
        noise_C=(0.35,) * 10,
    )
    assert ten.skill == pytest.approx(0.5 / 0.54)
    assert make_plan(ten).method == "facility_location"


def test_one_class_alone_is_drawn_at_random() -> None:
    alone = replace(CLEAN, errors_C=(0.0, 0.0), num_classes=1)
    assert make_plan(alone).method == "random"


def test_many_near_copies_are_left_out_and_the_rest_counts_as_all() -> None:
    # A twentieth of the examples is a tenth of the different ones.
    redundant = make_plan(replace(CLEAN, fraction=0.05, copies=0.5))
    assert redundant.leaves_out_copies
    assert redundant.left_out_C == make_plan(CLEAN).left_out_C
    assert "one of each picture, as 50.0% are near copies" in redundant.why


def test_a_few_near_copies_are_kept() -> None:
    few = replace(CLEAN, copies=0.1)
    assert make_plan(few) == make_plan(CLEAN)


def test_main_training_to_the_end_is_taken_from_what_is_typical_only_where_very_few_are() -> None:
    to_the_end = replace(CLEAN, training="converged")
    assert make_plan(replace(to_the_end, fraction=0.01)).left_out_C == pytest.approx((0.6, 0.3))
    # Half-way from a hundredth to a tenth.
    assert make_plan(replace(to_the_end, fraction=0.055)).left_out_C == pytest.approx((0.3, 0.15))
    plan = make_plan(to_the_end)
    assert (plan.method, plan.left_out_C) == ("random", (0.0, 0.0))
    assert "no gain is known of choosing 10% of the examples where labels are right" in plan.why


def test_where_labels_are_wrong_the_rest_is_represented_up_to_a_fifth() -> None:
    noisy = replace(CLEAN, noise_rate=0.2, noise_low=0.1, noise_C=(0.2, 0.1), training="converged")
    assert make_plan(replace(noisy, fraction=0.1)).method == "facility_location"
    assert make_plan(replace(noisy, fraction=0.2)).method == "random"
    # Of the second class, too, as many are wrong as of all.
    assert make_plan(replace(noisy, fraction=0.1)).left_out_C == pytest.approx((0.3, 0.2))


def test_a_head_that_is_seldom_wrong_is_believed_at_any_fraction() -> None:
    accurate = replace(CLEAN, errors_C=(0.08, 0.02), training="converged")
    plan = make_plan(replace(accurate, fraction=0.15))
    assert (plan.method, plan.left_out_C) == ("facility_location", (0.08, 0.02))
    plan = make_plan(replace(accurate, fraction=0.5))
    assert (plan.method, plan.left_out_C) == ("random", (0.08, 0.02))


def test_of_a_class_that_it_does_not_know_an_accurate_head_is_not_believed() -> None:
    # Rare in a long tail, say: right on 90% in the mean over classes all the same.
    rare = replace(CLEAN, errors_C=(0.01, 0.15), training="converged", fraction=0.5)
    assert make_plan(rare).left_out_C == (0.01, 0.0)


def test_facility_location_never_looks_at_what_is_trusted_least() -> None:
    nearly_many = replace(CLEAN, fraction=0.099, training="converged")
    assert make_plan(nearly_many).method == "facility_location"
    assert make_plan(nearly_many).left_out_C == pytest.approx((0.16, 0.08))


def test_only_what_is_surely_wrong_is_no_part_of_a_classs_share() -> None:
    typical = make_plan(replace(CLEAN, fraction=0.01))
    assert any(typical.left_out_C)
    assert typical.wrong_C == (0.0, 0.0)
    noisy = make_plan(
        replace(CLEAN, errors_C=(0.5, 0.4), noise_rate=0.3, noise_low=0.2, noise_C=(0.2, 0.3))
    )
    # Half as many again as are wrong in all, and no more than the head contradicts.
    assert noisy.wrong_C == pytest.approx((0.45, 0.4))
