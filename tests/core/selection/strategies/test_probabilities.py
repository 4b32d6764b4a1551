from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.strategies import probabilities
from lipt.core.selection.strategies.probabilities import score_probabilities
from tests.core.selection.builders import random_predictions, signals_of


def test_rounding_cannot_leave_zero_to_one() -> None:
    # One step of half precision beyond what an error can be; the score sees it in float32.
    errors_NC = torch.tensor([[-1.001, 1.001], [1.001, -1.001]]).half()
    seen: list[Tensor] = []

    def score(probabilities_BC: Tensor) -> Tensor:
        seen.append(probabilities_BC)
        return probabilities_BC[:, 0]

    scores_N = score_probabilities(signals_of(errors_NC=errors_NC, labels=[0, 1]), score)
    assert torch.cat(seen).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert scores_N.tolist() == [0.0, 1.0]
    assert scores_N.dtype == seen[0].dtype == torch.float32


def test_no_more_than_a_block_is_widened_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probabilities, "row_blocks", partial(row_blocks, block_bytes=10 * 4 * 24))
    seen: list[int] = []

    def score(probabilities_BC: Tensor) -> Tensor:
        seen.append(len(probabilities_BC))
        return probabilities_BC[:, 0]

    score_probabilities(random_predictions(64, 4), score)
    assert seen == [10] * 6 + [4]
