"""Texts as tokens: the same in memory and in a mapped file, and across chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.data.sources import index
from lipt.common.data.sources.tables.texts import hashing_tokenizer, text_columns

CHUNKS = [[["one two", "three"]], [["", "two two two two"]], [["three one two"]]]


def tokens(*, huggingface: bool = False) -> dict[str, Tensor]:
    _, tensors = text_columns(
        "",
        CHUNKS,
        hashing_tokenizer(3, 1000),
        num_texts=5,
        length=3,
        huggingface=huggingface,
    )
    return tensors


@pytest.mark.parametrize("memory_bytes", [2**28, 0])
def test_chunks_follow_each_other_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    monkeypatch.setattr(index, "MEMORY_BYTES", memory_bytes)
    one, two, three = (
        next(hashing_tokenizer(1, 1000).encode([word]))[0][0] for word in ("one", "two", "three")
    )
    expected = [[one, two, 0], [three, 0, 0], [0, 0, 0], [two, two, two], [three, one, two]]
    assert tokens()[""].tolist() == expected
    named = tokens(huggingface=True)
    assert named["input_ids"].tolist() == expected
    assert named["attention_mask"].dtype == torch.int64
    assert named["attention_mask"].sum(dim=1).tolist() == [2, 1, 0, 3, 3]
