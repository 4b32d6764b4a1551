from __future__ import annotations

import numpy as np

from lipt.trainer.cli.demo.known_errors import FoundErrors, count_found
from tests.trainer.made_up_diagnosis import made_up_diagnosis


def test_wrong_labels_are_counted_among_the_suspects_and_the_worst_of_them() -> None:
    # 6 and 1 are the suspects; 1 and 3 are wrong.
    is_wrong_N = np.isin(np.arange(8), [1, 3])
    assert count_found(made_up_diagnosis(), is_wrong_N) == FoundErrors(
        num_examples=8,
        num_wrong=2,
        num_worst=2,
        wrong_of_worst=1,
        num_suspects=2,
        wrong_of_suspects=1,
    )


def test_only_the_worst_suspects_are_looked_at_by_themselves() -> None:
    is_wrong_N = np.arange(8) == 1
    found = count_found(made_up_diagnosis(), is_wrong_N, num_worst=1)  # that is 6
    assert (found.num_worst, found.wrong_of_worst) == (1, 0)
    assert (found.num_suspects, found.wrong_of_suspects) == (2, 1)
