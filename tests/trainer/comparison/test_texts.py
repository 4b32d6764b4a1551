"""Scores of texts, by a model that copies its input."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipt.core.pretraining.training import ForwardPass
from lipt.data.dataset import Dataset, input_format
from lipt.data.loading import open_data
from lipt.trainer.comparison.texts import text_scores


class Next(nn.Module):
    """Says with certainty that the token after `n` is n + 1."""

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return 100.0 * nn.functional.one_hot((tokens_BL + 1) % 259, 259).float()


def opened(folder: Path, options: str, *rows: tuple[str, str]) -> Dataset:
    path = folder / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"q": q, "a": a}) for q, a in rows))
    return open_data(f"jsonl:{path}?{options}&max_length=8")


def scores(data: Dataset) -> tuple[float, float, float, float | None]:
    forward = ForwardPass(
        input_format(data, torch.arange(len(data)), 0),
        data.target,
        torch.device("cpu"),
        torch.contiguous_format,
        bfloat16=False,
    )
    found = text_scores(Next(), data, forward)
    return found.loss, found.loss_error, found.token_accuracy, found.exact_match


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # "b" after "a" is right, the end after "b" is not: half of the tokens, no completion.
        ([("a", "b"), ("b", "c")], (50.0, 0.0, 0.5, 0.0)),
        # Losses of 50 and 100: their deviation is 35.355, over the root of 2.
        ([("a", "b"), ("b", "a")], (75.0, 25.0, 0.25, 0.0)),
        # One text has no interval.
        ([("a", "b")], (50.0, math.inf, 0.5, 0.0)),
    ],
)
def test_losses_are_means_over_examples_and_a_completion_is_right_only_to_its_end(
    tmp_path: Path, rows: list[tuple[str, str]], expected: tuple[float, ...]
) -> None:
    assert scores(opened(tmp_path, "prompt=q&completion=a", *rows)) == pytest.approx(expected)


def test_texts_without_prompts_have_no_completions(tmp_path: Path) -> None:
    data = opened(tmp_path, "text=a", ("", "ab"), ("", "b"))
    assert scores(data)[3] is None
