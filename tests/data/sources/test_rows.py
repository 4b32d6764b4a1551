import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from lipt.common.errors import DataError
from lipt.data.loading import open_data, open_dataset
from lipt.data.sources import storage
from lipt.data.sources.rows import fingerprint, sampled_rows
from lipt.data.sources.texts import Tokenizer, file_tokenizer, hashing_tokenizer, text_columns

LABELS_N = torch.arange(300) % 3


def raw(row: int) -> bytes:
    return bytes([row % 256]) * 3


def test_fingerprint_is_a_digest_of_the_documented_bytes() -> None:
    labels_N, rows = torch.tensor([2, 0]), (b"first", b"2nd")
    head = struct.pack("<QQqq", 2, 3, 2, 0)
    content = b"lipt-dataset-1" + head
    content += struct.pack("<QQ", 0, 5) + b"first" + struct.pack("<QQ", 1, 3) + b"2nd"
    assert fingerprint(labels_N, 3, rows.__getitem__) == hashlib.sha256(content).hexdigest()


@given(row=st.integers(0, 299), label=st.integers(0, 2))
def test_fingerprint_depends_on_every_label_and_sampled_row(row: int, label: int) -> None:
    def other(asked: int) -> bytes:
        return b"changed" if asked == row else raw(asked)

    sampled = fingerprint(LABELS_N, 3, raw)
    assert (fingerprint(LABELS_N, 3, other) != sampled) == (row in sampled_rows(300))
    changed_N = LABELS_N.clone()
    changed_N[row] = label
    assert (fingerprint(changed_N, 3, raw) == sampled) == (label == row % 3)


def test_fingerprint_samples_64_rows_and_separates_them() -> None:
    assert sampled_rows(3) == [0, 1, 2]
    assert sampled_rows(64) == list(range(64))
    assert sampled_rows(127) == list(range(0, 127, 2))
    assert len(set(sampled_rows(65))) == 64
    assert sampled_rows(50_000)[:2] == [0, 793]
    assert sampled_rows(50_000)[-1] == 49_999

    def split(at: int) -> str:
        return fingerprint(torch.tensor([0, 1]), 2, lambda row: (b"abcd"[:at], b"abcd"[at:])[row])

    assert split(1) != split(2)


def test_image_fingerprints_depend_on_files_but_not_on_storage_or_size(image_folder: Path) -> None:
    source = f"imagefolder:{image_folder}"
    base = open_dataset(source)
    for other in (open_dataset(source, memory_budget_bytes=0), open_dataset(source, image_size=8)):
        assert other.fingerprint == base.fingerprint
    # One changed or removed file counts.
    path, found = image_folder / "cat" / "0.png", {base.fingerprint}
    path.write_bytes((image_folder / "cat" / "1.png").read_bytes())
    found.add(open_dataset(source).fingerprint)
    path.unlink()
    found.add(open_dataset(source).fingerprint)
    assert len(found) == 3


def test_a_loop_of_links_repeats_no_image_and_a_link_to_more_is_followed(
    image_folder: Path, tmp_path: Path
) -> None:
    source = f"imagefolder:{image_folder}"
    base = open_dataset(source)
    (image_folder / "cat" / "loop").symlink_to(image_folder)
    (image_folder / "dog" / "itself").symlink_to(image_folder / "dog")
    (image_folder / "dog" / "broken").symlink_to(tmp_path / "none")
    again = open_dataset(source)
    assert (again.fingerprint, len(again)) == (base.fingerprint, len(base))
    more = tmp_path / "more"
    more.mkdir()
    (more / "9.png").write_bytes((image_folder / "cat" / "1.png").read_bytes())
    for name in ("more", "more again"):
        (image_folder / "cat" / name).symlink_to(more)
    assert len(open_dataset(source)) == len(base) + 1


def test_a_pipe_among_the_images_is_refused_by_name(image_folder: Path) -> None:
    os.mkfifo(image_folder / "cat" / "pipe.png")
    with pytest.raises(DataError, match=r"1 of 6 images .*\n.*pipe\.png is no regular file"):
        open_dataset(f"imagefolder:{image_folder}")


CHUNKS = [[["one two", "three"]], [["", "two two two two"]], [["three one two"]]]


def tokens(*, huggingface: bool = False) -> dict[str, Tensor]:
    _, tensors = text_columns(
        "", CHUNKS, hashing_tokenizer(3, 1000), num_texts=5, length=3, huggingface=huggingface
    )
    return tensors


@pytest.mark.parametrize("memory_bytes", [2**28, 0])
def test_texts_are_tokenized_in_chunks(monkeypatch: pytest.MonkeyPatch, memory_bytes: int) -> None:
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


def test_words_and_punctuation_have_the_same_token_ids_in_every_text() -> None:
    texts = ("The cat, the DOG!", "dog the", "The cat, the DOG!")
    (numbers, cut), second, third = encode(hashing_tokenizer(9), *texts)
    the, cat, comma, again, dog, _ = numbers
    assert (the, not cut) == (again, True)
    assert (second, third) == (([dog, the], False), (numbers, cut))
    assert len({the, cat, comma, dog}) == 4


def test_a_tokenizer_file_s_ids_are_kept_or_increased_by_one(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json", "<s>", "<pad>", "cat", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 3, keep_numbers=False)
    # Two words that it does not know, and the end.
    assert encode(tokenizer, "cat", "a b", "cat cat cat") == [
        ([3, 5], False),
        ([4, 4, 5], False),
        ([3, 3, 5], True),
    ]
    assert (tokenizer.padding, tokenizer.num_values) == (0, 6)
    # Where numbers are kept, the file's own padding is.
    path = write_tokenizer(tmp_path / "t.json", "cat", "<pad>", "<unk>", "</s>")
    tokenizer = file_tokenizer(path, 4, keep_numbers=True)
    assert encode(tokenizer, "cat") == [([0, 3], False)]
    assert (tokenizer.padding, tokenizer.num_values) == (1, 4)


def test_other_files_are_not_tokenizers(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DataError, match=r"t\.json cannot be read: .*Name a tokenizer\.json"):
        file_tokenizer(tmp_path / "t.json", 4, keep_numbers=False)


SURROGATE, ESCAPED = "\ud800", "\\ud800"


@pytest.mark.parametrize(
    "data",
    [
        [(torch.ones(2) * row, ("a", SURROGATE)[row % 2]) for row in range(6)],
        [(torch.ones(2) * row, (["a"], ["a", SURROGATE])[row % 2]) for row in range(6)],
    ],
    ids=["classes", "labels"],
)
def test_names_that_are_not_utf8_are_escaped_in_rows(data: Any) -> None:
    opened = open_data(data)
    names = opened.class_names if opened.rows.targets is None else opened.rows.targets.names
    assert names == ("a", ESCAPED)


def test_a_class_has_a_name_and_no_text() -> None:
    data = [(torch.ones(2) * row, ("a", "b" * 1001)[row % 2]) for row in range(6)]
    with pytest.raises(DataError, match=r"the name 'b{59} has 1001 characters; at most 1000 are"):
        open_data(data)
