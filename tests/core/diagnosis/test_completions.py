"""Completions beside those of similar prompts: losses by hand, and prompts of few tokens."""

import pytest
import torch

from lipt.common.errors import DataError
from lipt.core.diagnosis.completions import completion_quality, prompt_features
from lipt.data.targets.values import MASKED

BEGIN, END = 1, 2


def texts(*pairs: tuple[list[int], list[int]], length: int = 8) -> tuple[torch.Tensor, ...]:
    """Tokens and next tokens of prompts with completions, as the rows of a table have them."""
    tokens_NL = torch.zeros(len(pairs), length, dtype=torch.int64)
    wanted_NL = torch.full((len(pairs), length), MASKED)
    for row, (prompt, completion) in enumerate(pairs):
        whole, start = [BEGIN, *prompt, *completion, END], len(prompt)
        tokens_NL[row, : len(whole) - 1] = torch.tensor(whole[:-1])
        wanted_NL[row, start : len(whole) - 1] = torch.tensor(whole[start + 1 :])
    return tokens_NL, wanted_NL


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_only_the_prompt_decides_what_is_similar() -> None:
    features_ND = prompt_features(
        *texts(([3, 4, 5], [9]), ([3, 4, 5], [8, 7]), ([5, 4, 3], [9]), ([6], [9]))
    )
    cosines_NN = features_ND @ features_ND.T
    assert cosines_NN[0, 1] == pytest.approx(1.0)
    # The same tokens in another order are alike, other tokens are not.
    assert cosines_NN[0, 3] < cosines_NN[0, 2] < 0.99
    assert features_ND.norm(dim=1).tolist() == pytest.approx([1.0] * 4)


def test_texts_without_prompts_are_refused() -> None:
    with pytest.raises(DataError, match=r"have no prompts, .*\. Name both: prompt=COLUMN"):
        prompt_features(*texts(([], [3, 4]), ([], [5])))


def test_a_hard_task_is_no_error_and_a_large_loss_in_an_easy_one_is() -> None:
    # 60 prompts each of an easy task (loss 1) and of a hard one (loss 5); one easy loss is 3.
    features_ND = torch.eye(2).repeat_interleave(60, dim=0)
    losses_N = torch.tensor([1.0] * 60 + [5.0] * 60)
    losses_N[7] = 3.0
    quality_N = completion_quality(losses_N, features_ND, generator=generator())
    assert quality_N.argmin() == 7
    # 1 / (1 + e^2), and 1 / (1 + e^0) where nothing differs.
    assert quality_N[7] == pytest.approx(0.11920, abs=1e-5)
    assert quality_N[[0, 119]].tolist() == [0.5, 0.5]


def test_one_example_has_nothing_to_differ_from() -> None:
    quality_N = completion_quality(torch.tensor([9.0]), torch.ones(1, 2), generator=generator())
    assert quality_N.tolist() == pytest.approx([1 / (1 + torch.tensor(9.0).exp().item())])


def test_many_examples_are_compared_with_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipt.core.diagnosis.completions._MOST_REFERENCES", 70)
    features_ND = torch.eye(2).repeat_interleave(100, dim=0)
    losses_N = torch.tensor([1.0] * 100 + [5.0] * 100)
    losses_N[150] = 9.0
    quality_N = completion_quality(losses_N, features_ND, generator=generator())
    assert quality_N.argmin() == 150
