import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lipt.common.errors import ConfigError, DataError
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.registry import open_rows
from lipt.data.sources import storage
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.tables.texts import (
    Tokenizer,
    file_tokenizer,
    hashing_tokenizer,
    text_columns,
)
from tests.causal_folders import write_words

Write = Callable[..., Path]


def opened(path: Path, query: str) -> ColumnRows:
    rows = open_rows(f"csv:{path}?{query}", (), None)
    assert isinstance(rows, ColumnRows)
    return rows


def test_texts_are_tokens_padded_with_zeros(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write('title,body,label\nA cat,"sat, still",x\nA cat,,y\n')
    rows = opened(path, "text=title,body&max_length=6&vocabulary=1000")
    assert rows.columns == (Column("", ColumnType.INT64, (6,), num_values=1000),)
    first, second = rows.tensors[""].tolist()
    assert 0 not in first[:5]
    assert second == [*first[:2], 0, 0, 0, 0]
    assert first[5] == 0
    assert rows.raw(1) == torch.tensor(second).numpy().tobytes()
    # What is cut is told.
    with caplog.at_level(logging.WARNING):
        opened(write('text,label\na b c,x\n"",y\na,y\na,y\n'), "text=text&max_length=2")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1 of 4 texts (25.0%) are longer than 2 tokens and cut there; max_length=4 would cut fewer"
    ]


def test_text_features_are_the_means_of_their_token_vectors(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("text,label\nred blue,a\nblue blue,b\n,a\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install --no-deps wordllama"):
        opened(path, "text=text&embedding=wordllama")
    folder = tmp_path / "wordllama"
    for part in ("weights", "tokenizers"):
        (folder / part).mkdir(parents=True)
    vectors_VD = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]]).half()
    save_file({"vectors": vectors_VD}, folder / "weights/l2_supercat_256.safetensors")
    file = folder / "tokenizers/l2_supercat_tokenizer_config.json"
    write_words(file, "?", "red", "blue")
    found = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: found)
    rows = opened(path, "text=text&embedding=wordllama")
    assert rows.tensors[""].tolist() == [[1, 2], [0, 4], [0, 0]]
    assert rows.columns[0].standardized


BATCHES = [["one two", "three"], ["", "two two two two"], ["three one two"]]


def tokens(*, huggingface: bool = False) -> dict[str, Tensor]:
    _, tensors = text_columns(
        "", BATCHES, hashing_tokenizer(3, 1000), num_texts=5, length=3, huggingface=huggingface
    )
    return tensors


@pytest.mark.parametrize("memory_bytes", [2**28, 0])
def test_texts_are_tokenized_in_batches(monkeypatch: pytest.MonkeyPatch, memory_bytes: int) -> None:
    monkeypatch.setattr(storage, "MEMORY_BYTES", memory_bytes)
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


ENDING = partial(write_words, unknown="<unk>", end="</s>")


def test_words_and_punctuation_have_the_same_token_ids_in_every_text() -> None:
    texts = ("The cat, the DOG!", "dog the", "The cat, the DOG!")
    (numbers, cut), second, third = encode(hashing_tokenizer(9), *texts)
    the, cat, comma, again, dog, _ = numbers
    assert (the, not cut) == (again, True)
    assert (second, third) == (([dog, the], False), (numbers, cut))
    assert len({the, cat, comma, dog}) == 4


def test_a_tokenizer_file_s_ids_are_kept_or_increased_by_one(tmp_path: Path) -> None:
    path = ENDING(tmp_path / "t.json", "<s>", "<pad>", "cat", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 3, keep_numbers=False)
    # Two words that it does not know, and the end.
    expected = [([3, 5], False), ([4, 4, 5], False), ([3, 3, 5], True)]
    assert encode(tokenizer, "cat", "a b", "cat cat cat") == expected
    assert (tokenizer.padding, tokenizer.num_values) == (0, 6)
    # Where numbers are kept, the file's own padding is.
    path = ENDING(tmp_path / "t.json", "cat", "<pad>", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 4, keep_numbers=True)
    assert encode(tokenizer, "cat") == [([0, 3], False)]
    assert (tokenizer.padding, tokenizer.num_values) == (1, 4)


def test_other_files_are_not_tokenizers(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DataError, match=r"t\.json cannot be read: .*Name a tokenizer\.json"):
        file_tokenizer(tmp_path / "t.json", 4, keep_numbers=False)
