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


def test_a_completion_is_right_only_to_its_end(tmp_path: Path) -> None:
    # "b" after "a" is right, the end after "b" is not: half of the tokens, no completion.
    data = opened(tmp_path, "prompt=q&completion=a", ("a", "b"), ("b", "c"))
    assert scores(data) == (pytest.approx(50.0), 0.0, 0.5, 0.0)


def test_the_standard_error_is_that_of_the_mean_over_examples(tmp_path: Path) -> None:
    # Losses of 50 and 100: their deviation is 35.355, over the root of 2.
    data = opened(tmp_path, "prompt=q&completion=a", ("a", "b"), ("b", "a"))
    loss, error, _, _ = scores(data)
    assert (loss, error) == (pytest.approx(75.0), pytest.approx(25.0))


def test_one_text_has_no_interval(tmp_path: Path) -> None:
    assert scores(opened(tmp_path, "prompt=q&completion=a", ("a", "b")))[:2] == (
        pytest.approx(50.0),
        math.inf,
    )


def test_texts_without_prompts_have_no_completions(tmp_path: Path) -> None:
    data = opened(tmp_path, "text=a", ("", "ab"), ("", "b"))
    assert scores(data)[3] is None
