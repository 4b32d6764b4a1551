from __future__ import annotations

from lipt.trainer.comparison.bench import LOOK_AT, Held
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset


class Counting:
    """Epoch e is example e."""

    num_epochs: int | None = None
    identity = {"counting": True}  # noqa: RUF012 - as the protocol has it

    def __init__(self) -> None:
        self.subset = self.before_epoch(0)

    def before_epoch(self, epoch: int) -> Subset:
        return made_up_subset([epoch])


def test_a_subset_is_held_for_some_epochs_and_then_the_next_one_comes() -> None:
    held = Held(Counting(), every=3)
    assert held.subset.indices.tolist() == [0]
    found = [held.before_epoch(epoch).indices.tolist() for epoch in range(7)]
    assert found == [[0], [0], [0], [1], [1], [1], [2]]
    assert held.subset.indices.tolist() == [2]


def test_how_long_it_is_held_is_part_of_what_decides() -> None:
    assert Held(Counting(), every=3).identity == {"counting": True, "every": 3}


def test_looks_are_shares_in_order_before_the_end() -> None:
    assert sorted(LOOK_AT) == list(LOOK_AT)
    assert all(0 < share < 1 for share in LOOK_AT)
