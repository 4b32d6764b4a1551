"""Texts as tokens: the same in memory and in a mapped file, and across chunks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipt.common.data.sources import index
from lipt.common.data.sources.texts import (
    Tokenizer,
    file_tokenizer,
    hashing_tokenizer,
    text_columns,
)
from lipt.common.errors import DataError

CHUNKS = [[["one two", "three"]], [["", "two two two two"]], [["three one two"]]]


def tokens(*, huggingface: bool = False) -> dict[str, Tensor]:
    _, tensors = text_columns(
        "", CHUNKS, hashing_tokenizer(3, 1000), num_texts=5, length=3, huggingface=huggingface
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


def encode(tokenizer: Tokenizer, *texts: str) -> list[tuple[list[int], bool]]:
    return list(tokenizer.encode(texts))


def write_tokenizer(path: Path, *words: str) -> Path:
    """Words in the order of their numbers; texts end with the last one."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(words)}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {words[-1]}", special_tokens=[(words[-1], len(words) - 1)]
    )
    tokenizer.save(str(path))
    return path


def test_words_and_marks_have_the_same_numbers_in_every_text() -> None:
    texts = ("The cat, the DOG!", "dog the", "The cat, the DOG!")
    (numbers, cut), second, third = encode(hashing_tokenizer(9), *texts)
    the, cat, comma, again, dog, _ = numbers
    assert (the, not cut) == (again, True)
    assert (second, third) == (([dog, the], False), (numbers, cut))
    assert len({the, cat, comma, dog}) == 4


def test_a_file_s_numbers_have_0_for_padding_or_are_kept(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json", "<s>", "<pad>", "cat", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 3, keep_numbers=False)
    # Two words that it does not know, of whose numbers none was exchanged, and the end.
    assert encode(tokenizer, "cat", "a b", "cat cat cat") == [
        ([2, 4], False),
        ([3, 3, 4], False),
        ([2, 2, 4], True),
    ]
    assert (tokenizer.padding, tokenizer.num_values) == (0, 5)
    # Without a padding token, numbers are one more.
    path = write_tokenizer(tmp_path / "t.json", "cat", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 3, keep_numbers=False)
    assert encode(tokenizer, "cat dog") == [([1, 2, 3], False)]
    assert (tokenizer.padding, tokenizer.num_values) == (0, 4)
    # Where numbers are kept, the file's own padding is.
    path = write_tokenizer(tmp_path / "t.json", "cat", "<pad>", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 4, keep_numbers=True)
    assert encode(tokenizer, "cat") == [([0, 3], False)]
    assert (tokenizer.padding, tokenizer.num_values) == (1, 4)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DataError, match=r"t\.json cannot be read: .*Name a tokenizer\.json"):
        file_tokenizer(tmp_path / "t.json", 4, keep_numbers=False)
