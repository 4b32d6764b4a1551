"""Texts without labels: tokens and next tokens by hand, and files that hold something else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lipt
from lipt.common.errors import ConfigError, DataError, LiptError
from lipt.data.dataset import Dataset
from lipt.data.sources.tables import csv_and_json, texts
from lipt.data.targets.kinds import TargetKind
from tests.causal_folders import write_tokenizer, write_words


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def opened(folder: Path, options: str, *lines: Any) -> Dataset:
    return lipt.open_dataset(f"jsonl:{written(folder, *lines)}?{options}")


def tokens_of(data: Dataset) -> list[list[int]]:
    stored = data.examples(torch.arange(len(data)))
    assert isinstance(stored, dict)
    (tokens_NL,) = stored.values()
    return tokens_NL.tolist()


def test_all_tokens_of_a_text_and_its_end_count(tmp_path: Path) -> None:
    # "A" is the byte 65, so the token 68; 1 begins and 2 ends.
    data = opened(tmp_path, "text=t&max_length=4", {"t": "AB"}, {"t": "B"})
    assert data.target.kind is TargetKind.TOKENS
    assert tokens_of(data) == [[1, 68, 69, 0], [1, 69, 0, 0]]
    assert data.targets_N.tolist() == [[68, 69, 2, -1], [69, 2, -1, -1]]
    assert "the next of 259 tokens, int64[4]" in repr(data)


def test_only_the_completion_counts(tmp_path: Path) -> None:
    options = "prompt=p&completion=c&max_length=5"
    data = opened(tmp_path, options, {"p": "AB", "c": "C"}, {"p": None, "c": "C"})
    assert tokens_of(data) == [[1, 68, 69, 70, 0], [1, 70, 0, 0, 0]]
    assert data.targets_N.tolist() == [[-1, -1, 70, 2, -1], [70, 2, -1, -1, -1]]


def test_a_long_example_loses_the_left_of_its_prompt(tmp_path: Path) -> None:
    options = "prompt=p&completion=c&max_length=3"
    data = opened(tmp_path, options, {"p": "ABCD", "c": "E"}, {"p": "A", "c": "BCDEF"})
    # Four tokens are kept, of which the last is only a next token.
    assert tokens_of(data) == [[70, 71, 72], [68, 69, 70]]
    assert data.targets_N.tolist() == [[-1, 72, 2], [69, 70, 71]]
    assert data.note == "2 of 2 texts are cut to 3 tokens: max_length=6 cuts fewer"


def test_an_example_that_just_fits_is_not_cut(tmp_path: Path) -> None:
    assert opened(tmp_path, "text=t&max_length=3", {"t": "AB"}).note == ""
    assert opened(tmp_path, "text=t&max_length=3", {"t": "ABC"}).note.startswith("1 of 1 texts")


def test_a_tokenizers_numbers_come_after_those_of_begin_and_end(tmp_path: Path) -> None:
    file = write_words(tmp_path / "tokenizer.json", "a", "b", "?")
    data = opened(tmp_path, f"text=t&max_length=4&tokenizer={file}", {"t": "a b"})
    assert tokens_of(data) == [[1, 3, 4, 0]]
    assert data.target.num_outputs == 6


def test_whole_numbers_have_no_decimals_beside_fractions(tmp_path: Path) -> None:
    # The bytes of "1", and of "0.5".
    rows: list[dict[str, Any]] = [{"p": 2, "c": 1}, {"p": None, "c": 0.5}, {"p": "", "c": True}]
    expected = [[1, 53, 52, 0, 0, 0], [1, 51, 49, 56, 0, 0], [1, 119, 117, 120, 104, 0]]
    assert tokens_of(opened(tmp_path, "prompt=p&completion=c&max_length=6", *rows)) == expected
    of_rows = lipt.open_dataset(rows, target="prompt=p&completion=c&max_length=6")
    assert tokens_of(of_rows) == expected
    in_columns = {name: [row[name] for row in rows] for name in ("p", "c")}
    of_columns = lipt.open_dataset(in_columns, target="prompt=p&completion=c&max_length=6")
    assert tokens_of(of_columns) == expected


def test_texts_that_are_cut_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, "text=t&max_length=4", {"t": "abcde"}, {"t": "a"})
    lipt.open_dataset([{"t": "abcde"}], target="text=t&max_length=4")
    cut = [message.partition(": ")[2] for message in caplog.messages]
    assert cut == [f"1 of {n} texts are cut to 4 tokens: max_length=8 cuts fewer" for n in (2, 1)]


@pytest.mark.parametrize("data", [["a", "b"], "ab", 5, iter([{"t": "a"}])])
def test_other_data_than_tables_is_refused(data: Any) -> None:
    with pytest.raises(LiptError, match=r"has no named columns in memory|no table's file alone"):
        lipt.open_dataset(data, target="text=t")


def test_a_label_makes_classes_of_texts(tmp_path: Path) -> None:
    lines = {"t": "a b", "label": "x"}, {"t": "c", "label": "y"}
    assert opened(tmp_path, "text=t", *lines).target.kind is TargetKind.CLASS


def test_one_changed_completion_changes_the_fingerprint(tmp_path: Path) -> None:
    options = "prompt=p&completion=c"
    first = opened(tmp_path, options, {"p": "A", "c": "B"})
    second = opened(tmp_path, options, {"p": "A", "c": "C"})
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize(
    ("options", "lines", "message"),
    [
        ("text=t", [], r"texts\.jsonl has no rows\. Give at least one"),
        (
            "text=t",
            [{"t": "a"}, {"t": ""}, {"t": None}],
            r"2 of 3 rows have no text in t.*rows 1, 2",
        ),
        (
            "prompt=p&completion=c",
            [{"p": "a", "c": " "}],
            r"1 of 1 rows have no text in c, .*masked",
        ),
        ("text=t", [{"t": ["a"]}], r"object 1"),
        ("text=u", [{"t": "a"}], r"has no column 'u'.*Write text=COLUMN"),
        ("prompt=p&completion=u", [{"p": "a"}], r"has no column 'u'.*Write completion=COLUMN"),
        ("text=t,s", [{"t": "a", "s": "b"}], None),
        ("prompt=p", [{"p": "a"}], None),
        ("completion=p", [{"p": "a"}], None),
        ("prompt=p&completion=c&label=c", [{"p": "a", "c": "b"}], None),
        ("text=t&vocabulary=9", [{"t": "a"}], None),
        ("text=t&max_length=1", [{"t": "a"}], None),
        ("text=t&max_length=99999", [{"t": "a"}], None),
        (f"text=t&max_length={10**9}", [{"t": "a"}], None),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, options: str, lines: list[Any], message: str | None
) -> None:
    with pytest.raises(DataError if message else ConfigError, match=message):
        opened(tmp_path, options, *lines)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"t": "' + b"a" * 200 + b'"}', r"line 2 has more than 100 characters"),
        (b"[" * 90, r"line 2 is no JSON object"),
        (b'{"t": "\0"}', r"line 2 is no JSON object"),
        (b'{"t": "\xff"}', r"is not UTF-8"),
        (b'{"t": "\\ud800"}', r"half of a character"),
        (b'{"t": [[[["a"]]]]}', r"object 2"),
        (b"\x1f\x8b", r"is not UTF-8"),
    ],
)
def test_hostile_lines_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, words: str
) -> None:
    monkeypatch.setattr(csv_and_json, "_LONGEST_LINE", 100)
    file = tmp_path / "texts.jsonl"
    file.write_bytes(b'{"t": "a"}\n' + line + b"\n")
    with pytest.raises(DataError, match=words):
        lipt.open_dataset(f"jsonl:{file}?text=t&max_length=4")


def test_deep_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"t": ' + "[" * 10**5)
    with pytest.raises(DataError, match=r"line 1 is no JSON object"):
        lipt.open_dataset(f"jsonl:{file}?text=t")


def test_an_escaped_nul_is_a_byte_of_the_text(tmp_path: Path) -> None:
    data = opened(tmp_path, "text=t&max_length=4", {"t": "a\0"})
    assert tokens_of(data) == [[1, 100, 3, 0]]


@pytest.mark.parametrize(("limit", "of"), [("_MOST_BYTES", "bytes"), ("MOST_NUMBERS", "numbers")])
def test_a_tokenizer_of_too_many_numbers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, of: str
) -> None:
    file = write_tokenizer(tmp_path)
    monkeypatch.setattr(texts, limit, 50)
    with pytest.raises(DataError, match=rf"tokenizer .* has \d+ {of}; at most 50 are"):
        opened(tmp_path, f"text=t&tokenizer={file}", {"t": "a"})
