"""Known errors: of the labels that are wrong on purpose, how many a diagnosis finds.

Only a demo can count them, because nobody knows them of data of their own.

Shapes: N examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lipt.trainer.diagnosis.diagnosis import Diagnosis

NUM_WORST = 20


@dataclass(frozen=True)
class FoundErrors:
    """What a diagnosis made of labels that are known to be wrong.

    num_examples, num_wrong: of the data.
    num_worst, wrong_of_worst: how many of its worst labels were looked at, and are wrong.
    num_suspects, wrong_of_suspects: how many labels looked wrong to it, and are.
    """

    num_examples: int
    num_wrong: int
    num_worst: int
    wrong_of_worst: int
    num_suspects: int
    wrong_of_suspects: int

    def __str__(self) -> str:
        return (
            f"{self.num_wrong} of {self.num_examples} labels are wrong on purpose. The diagnosis, "
            f"which is not told of them, suspects {self.num_suspects} labels: "
            f"{self.wrong_of_suspects} of these are wrong, and {self.wrong_of_worst} of the first "
            f"{self.num_worst}."
        )


def count_found(
    diagnosis: Diagnosis, is_wrong_N: NDArray[np.bool_], *, num_worst: int = NUM_WORST
) -> FoundErrors:
    """How many of the wrong labels are among the worst and among all suspects.

    Args:
        diagnosis: what was found.
        is_wrong_N: bool, whether an example's label is wrong.
        num_worst: how many of the worst are looked at by themselves.
    """
    suspects = [issue.id for issue in diagnosis.label_issues()]  # the worst first
    worst = suspects[:num_worst]
    return FoundErrors(
        num_examples=len(is_wrong_N),
        num_wrong=int(is_wrong_N.sum()),
        num_worst=len(worst),
        wrong_of_worst=int(is_wrong_N[worst].sum()),
        num_suspects=len(suspects),
        wrong_of_suspects=int(is_wrong_N[suspects].sum()),
    )
