from __future__ import annotations

import pytest
import torch

from tests.golden.comparison import Stage, by_name, describe_difference, in_words
from tests.golden.digests import digest


def stages(**changed: str) -> list[Stage]:
    """A pipeline of four learners and five subsets; some digests are given."""
    made = [
        *(Stage(kind, "0", exact=True) for kind in ("shards", "densities")),
        Stage("theta*", "1"),
        *(Stage("learner", "2", str(number)) for number in range(4)),
        Stage("soup", "3"),
        Stage("theta_p", "4"),
        *(Stage("subset", "5", name) for name in ("auto", "el2n", "craig", "grand")),
        Stage("subset", "StrategyOptionError", "uniform, balanced", exact=True),
    ]
    return [Stage(one.kind, changed.get(one.name, one.digest), one.item, one.exact) for one in made]


RECORDED = {stage.name: stage.digest for stage in stages()}


def test_equal_stages_have_no_difference() -> None:
    assert describe_difference("digits", stages(), RECORDED) is None


def test_the_first_difference_is_named_with_what_comes_before_and_after_it() -> None:
    changed = {"learner 3": "x", "theta_p": "y", "subset el2n": "z", "subset craig": "z"}
    assert describe_difference("digits", stages(**changed), RECORDED) == (
        "digits: first difference at learner 3: 2 was recorded, x is computed\n"
        "  equal before it: shards, densities, theta*, learners 0-2\n"
        "  also different: theta_p, 2 of 5 subsets (first: el2n)\n"
        "Record a deliberate change with `make golden`, and explain it in the commit message.\n"
        "An unexpected one is a defect."
    )


def test_one_flipped_bit_of_theta_p_is_reported_at_its_stage() -> None:
    weights = {"fc.weight": torch.linspace(-1, 1, 50), "fc.bias": torch.zeros(5)}
    recorded = {**RECORDED, "theta_p": digest(weights)}
    assert describe_difference("digits", stages(theta_p=digest(weights)), recorded) is None
    bits = weights["fc.weight"].view(torch.int32)
    bits[17] ^= 1
    message = describe_difference("digits", stages(theta_p=digest(weights)), recorded)
    assert message is not None
    assert message.startswith("digits: first difference at theta_p: ")
    assert "learners 0-3, soup\n  also different: nothing\n" in message


def test_stages_that_vanish_or_appear_are_differences() -> None:
    message = describe_difference("digits", stages()[:-1], RECORDED)
    assert message is not None
    assert "recorded, but not computed any more: subset uniform, balanced" in message
    added = [*stages(), Stage("subset", "7", "new")]
    message = describe_difference("digits", added, RECORDED)
    assert message is not None
    assert "first difference at subset new: nothing was recorded, 7 is computed" in message


def test_a_refusal_that_becomes_a_subset_is_a_difference() -> None:
    message = describe_difference("digits", stages(**{"subset uniform, balanced": "8"}), RECORDED)
    assert message is not None
    assert "StrategyOptionError was recorded, 8 is computed" in message


def test_kinds_are_summed_up() -> None:
    every = stages()
    assert in_words([], every) == "nothing"
    assert in_words(every[3:4], every) == "learner 0"
    assert in_words([every[3], every[5], every[6]], every) == "learners 0, 2-3"
    assert in_words(every[-5:], every) == "all 5 subsets"


def test_two_stages_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="two stages are called 'learner 1'"):
        by_name([Stage("learner", "a", "1"), Stage("learner", "b", "1")], exact=False)
