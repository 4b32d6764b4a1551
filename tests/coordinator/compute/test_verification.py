"""The stated probability of unnoticed forgeries, against simulated faulty workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lipt.common.config.tasks import ScoringTask
from lipt.common.inputs.specs import ImageFormat
from lipt.coordinator.compute.verification import Verification, account, scorers_of, unnoticed

NUM_EXAMPLES, RANGE, SHARE = 400, 40, 0.05
WHOLE = ScoringTask(
    model="resnet8",
    num_classes=2,
    image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,)),
    fingerprint="f" * 64,
    start=0,
    stop=NUM_EXAMPLES,
    batch_size=8,
    threads=1,
)
TRUE = torch.rand(NUM_EXAMPLES, 2, generator=torch.Generator().manual_seed(1))
TRIALS = 300


class Scorer:
    """Scores as this process does; `shift` depends on an example's place in its batch."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift, self.num_batches = shift, 0

    def __call__(self, ids_B: Tensor) -> tuple[Tensor]:
        self.num_batches += 1
        return (TRUE[ids_B] + self.shift * torch.arange(len(ids_B))[:, None],)


def verification(share: float = SHARE, *, exact: bool = True, shift: float = 0.0) -> Verification:
    return Verification(WHOLE, Scorer(shift), share=share, exact=exact)


def noticed(credentials: Sequence[str], forged: Sequence[int], by: float = 0.5) -> bool:
    """Whether a pass with a range from each credential in turn finds any forged example."""
    sent = TRUE.clone()
    sent[list(forged)] += by
    checked = verification()
    for place, start in enumerate(range(0, NUM_EXAMPLES, RANGE)):
        checked.draw(credentials[place % len(credentials)], start, (sent[start : start + RANGE],))
        if checked.check(everything=start + RANGE == NUM_EXAMPLES):
            return True
    return False


@pytest.mark.parametrize(
    ("credentials", "forged"),
    [
        (["one"], range(160, 190)),
        (["one", "another"], [*range(12), *range(40, 52)]),
        (["patient"], range(390, 400)),
        (["careful"], range(7, 400, 80)),
    ],
    ids=["one", "two in turn", "late", "a few ids"],
)
def test_forged_examples_are_missed_as_often_as_stated(
    credentials: list[str], forged: Sequence[int]
) -> None:
    missed = sum(not noticed(credentials, forged) for _ in range(TRIALS))
    stated = unnoticed(SHARE, len(forged))
    # Five standard deviations: one failure in a million runs.
    assert abs(missed / TRIALS - stated) < 5 * (stated * (1 - stated) / TRIALS) ** 0.5


def test_the_verified_share_falls_under_load_to_a_minimum() -> None:
    many = replace(WHOLE, stop=100_000, batch_size=100)
    values = torch.zeros(1000, 2)
    checked = Verification(many, lambda ids: (torch.zeros(len(ids), 2),), share=0.05, exact=True)
    checked.draw("a", 0, (values,))
    assert checked.least_share == 0.05
    for start in range(1000, 100_000, 1000):
        checked.draw("a", start, (values,))
    assert checked.least_share == 0.01
    assert checked.check(everything=True) == set()
    # Five standard deviations around a thousand, and fifty of the first two ranges.
    assert 840 < checked.num_verified["a"] < 1300
    # What this process scores makes room again, for six hundred.
    checked.num_here = 10_000
    before = checked.num_verified["a"]
    for start in range(0, 20_000, 1000):
        checked.draw("a", start, (values,))
    checked.check(everything=True)
    assert checked.num_verified["a"] - before > 500


def test_stated_detection_probabilities_by_hand() -> None:
    assert unnoticed(0.5, 3) == 0.125
    assert unnoticed(1.0, 1) == 0.0
    assert unnoticed(0.05, 0) == 1.0
    told = account({"a": 200, "b": 100}, {"b": 7}, 0.5)
    assert told["verified_share"] == 0.5
    assert told["credentials"] == [
        {"credential": "a", "num_examples": 200, "num_verified": 0, "unnoticed_at_1_percent": 0.25},
        {"credential": "b", "num_examples": 100, "num_verified": 7, "unnoticed_at_1_percent": 0.5},
    ]
    assert (scorers_of(told), scorers_of(None)) == ({"a", "b"}, set())


def test_one_bit_is_an_error_only_on_the_same_kind_of_device() -> None:
    sent = TRUE.clone()
    sent[3, 1] = torch.nextafter(sent[3, 1], torch.tensor(2.0))
    for exact, wrong in ((True, {"a"}), (False, set[str]())):
        checked = verification(share=1.0, exact=exact)
        checked.draw("a", 0, (sent[:RANGE],))
        assert checked.check(everything=True) == wrong
    checked = verification(share=1.0, exact=False)
    # What float32 kernels of honest kinds differ by is a thousandth of that.
    checked.draw("a", 0, (sent[:RANGE] + 0.01,))
    assert checked.check(everything=True) == {"a"}


def test_a_suspected_range_is_confirmed_by_its_own_batch() -> None:
    shift = 1e-6
    scorer = Scorer(shift)
    checked = Verification(WHOLE, scorer, share=1.0, exact=True)
    places_N = torch.arange(NUM_EXAMPLES) % WHOLE.batch_size
    sent = TRUE + shift * places_N[:, None]
    # From the second example on: all places differ from those of the batches they are checked in.
    checked.draw("honest", 1, (sent[1:121],))
    assert checked.check(everything=True) == set()
    # Fifteen batches, and one that confirmed the first row that differed.
    assert scorer.num_batches == 16
    sent[200] += 0.01
    checked.draw("liar", 192, (sent[192:208],))
    assert checked.check(everything=True) == {"liar"}


def test_whole_batches_and_then_the_rest_are_checked_without_dropped_credentials() -> None:
    checked = verification(share=1.0)
    checked.draw("a", 0, (TRUE[:12] + 0.5,))
    checked.draw("b", 12, (TRUE[12:18],))
    assert checked.check(everything=False) == {"a"}
    checked.forget("a")
    assert checked.check(everything=True) == set()
    assert checked.num_verified == {"b": 6}
