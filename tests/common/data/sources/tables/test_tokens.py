from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.data.sources.tables.texts import (
    Tokenizer,
    file_tokenizer,
    hashing_tokenizer,
)
from lipt.common.errors import DataError


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
    first, second = encode(hashing_tokenizer(9), "The cat, the DOG!", "dog the")
    numbers, cut = first
    the, cat, comma, again, dog, _ = numbers
    assert (the, not cut) == (again, True)
    assert second == ([dog, the], False)
    assert len({the, cat, comma, dog}) == 4
    assert encode(hashing_tokenizer(9), "The cat, the DOG!")[0] == first


def test_numbers_are_above_padding_and_below_the_vocabulary() -> None:
    tokenizer = hashing_tokenizer(500, 3)
    ((numbers, _),) = encode(tokenizer, " ".join(map(str, range(500))))
    assert set(numbers) == {1, 2}
    assert (tokenizer.padding, tokenizer.num_values) == (0, 3)


def test_long_texts_are_cut_and_say_so() -> None:
    assert [
        (len(numbers), cut) for numbers, cut in encode(hashing_tokenizer(2), "a b", "a b c")
    ] == [
        (2, False),
        (2, True),
    ]


def test_the_padding_token_of_a_file_changes_places_with_0(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json", "<s>", "<pad>", "cat", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 3, keep_numbers=False)
    # Two words that it does not know, of whose numbers none was exchanged, and the end.
    assert encode(tokenizer, "cat", "a b", "cat cat cat") == [
        ([2, 4], False),
        ([3, 3, 4], False),
        ([2, 2, 4], True),
    ]
    assert (tokenizer.padding, tokenizer.num_values) == (0, 5)


def test_numbers_of_a_file_without_padding_are_one_more(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json", "cat", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 3, keep_numbers=False)
    assert encode(tokenizer, "cat dog") == [([1, 2, 3], False)]
    assert (tokenizer.padding, tokenizer.num_values) == (0, 4)


def test_numbers_that_are_kept_are_padded_with_the_file_s_own(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json", "cat", "<pad>", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 4, keep_numbers=True)
    assert encode(tokenizer, "cat") == [([0, 3], False)]
    assert (tokenizer.padding, tokenizer.num_values) == (1, 4)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DataError, match=r"t\.json cannot be read: .*Name a tokenizer\.json"):
        file_tokenizer(tmp_path / "t.json", 4, keep_numbers=False)
