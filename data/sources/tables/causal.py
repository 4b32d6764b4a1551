"""Texts of a table for a causal model: tokens, and the next token at each position that counts.

0 is padding, 1 begins an example, 2 ends it, and 3 + n is the tokenizer's number n, by default the
byte n of UTF-8. With prompt=COLUMN&completion=COLUMN only the completion and its end count, and
with messages=COLUMN the assistant's last message; with text=COLUMN everything does. Examples have
max_length positions. A longer one loses the left of its prompt, then the right of its completion,
and is not packed with others.

Shapes: N rows, L positions of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.errors import ConfigError, DataError
from lipt.common.text import listed
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.sources.address import Address, at_home
from lipt.data.sources.cells import ColumnReading
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.tables.chat import ChatTemplate
from lipt.data.sources.tables.table import Table, batches_of, read_sources, require_columns
from lipt.data.sources.tables.texts import opened_tokenizer
from lipt.data.targets.values import MASKED, token_values

PADDING, BEGIN, END, FIRST = 0, 1, 2, 3
NUM_BYTES, _DEFAULT_LENGTH = 256, 128
_OTHER_OPTIONS = ("label", "target", "labels", "classes", "vocabulary", "names", "embedding")

# From texts to numbers from 0.
Encode = Callable[[Sequence[str]], list[list[int]]]


def causal_rows(options: Address, table: Table) -> ColumnRows:
    """A table's texts as tokens; DataError where a row has no text to learn."""
    chats, prompts = options.names("messages"), options.names("prompt")
    texts = chats or options.names("completion") or options.names("text")
    for name in _OTHER_OPTIONS:
        if name in options:
            raise ConfigError(
                f"{table.name}: the option {name} cannot be used for texts whose next tokens are "
                "predicted. Leave it out, or give text=COLUMN&label=COLUMN for classes of texts."
            )
    named = [name for name in ("text", "completion", "messages") if name in options]
    paired = ("prompt" in options) == ("completion" in options)
    if len(texts) != 1 or len(named) != 1 or len(prompts) > 1 or not paired:
        raise ConfigError(
            f"{table.name}: prompt={','.join(prompts)}, {' and '.join(named)}={','.join(texts)} do "
            "not say what to learn. Give text=COLUMN, prompt=COLUMN&completion=COLUMN, or "
            "messages=COLUMN."
        )
    require_columns(table, prompts, "prompt")
    require_columns(table, texts, named[0])
    length = options.number("max_length", _DEFAULT_LENGTH, minimum=2, maximum=2**16)
    encode, num_numbers = _tokenizer(options)
    parts, missing, num_cut, begin = list[NDArray[np.int64]](), list[str](), 0, 0
    for before, learned in (
        _conversations(options, table) if chats else _texts(table, prompts, texts)
    ):
        missing += [str(begin + row) for row, text in enumerate(learned) if not text.strip()]
        prompt_numbers = encode(before) if before else [[]] * len(learned)
        for prompt, answer in zip(prompt_numbers, encode(learned), strict=True):
            tokens_L, wanted_L, cut = encoded_example(prompt, answer, length)
            parts.append(np.stack([tokens_L, wanted_L]))
            num_cut += cut
        begin += len(learned)
    if missing or not parts:
        raise DataError(
            f"{table.name}: {len(missing)} of {begin} rows have no text in {texts[0]}, so all "
            f"their tokens are masked: rows {listed(missing, 20)}. Complete or remove them."
            if parts
            else f"{table.name} has no rows. Give the training data."
        )
    tokens_NL, wanted_NL = torch.from_numpy(np.stack(parts, axis=1))
    targets = token_values(wanted_NL.contiguous(), FIRST + num_numbers)
    source = options.text("source")
    read_as = dict.fromkeys([*prompts, *texts], "messages" if chats else "text")
    if source:
        read_as[source] = "source"
    column = Column("", ColumnType.INT64, (length,), num_values=FIRST + num_numbers)
    return ColumnRows(
        *(options.source, targets.strata_names, targets.strata_N),
        *((column,), {"": tokens_NL.contiguous()}),
        stamp=table.stamp,
        targets=targets,
        sources=read_sources(table, source),
        note=_note(table, num_cut, begin, length),
        reading=tuple(ColumnReading(name, read_as.get(name, "not used")) for name in table.columns),
    )


def _texts(
    table: Table, prompts: Sequence[str], texts: Sequence[str]
) -> Iterator[tuple[list[str], list[str]]]:
    """Batches of prompts, if there are any, and of what is learned."""
    for *before, learned in table.texts([*prompts, *texts]):
        yield before[0] if before else [], learned


def _conversations(options: Address, table: Table) -> Iterator[tuple[list[str], list[str]]]:
    if "tokenizer" not in options:
        raise ConfigError(
            f"{table.name}: messages are written by the chat template beside a tokenizer, and none "
            "is named. Give tokenizer=FOLDER/tokenizer.json."
        )
    template = ChatTemplate.beside(Path(at_home(options.text("tokenizer"))))
    cells = table.cells(options.names("messages")[0])
    for batch in batches_of(template.parts(cell, where) for where, cell in cells):
        prompts, answers = zip(*batch, strict=True)
        yield list(prompts), list(answers)


def _note(table: Table, num_cut: int, num_rows: int, length: int) -> str:
    cut = f"{num_cut} of {num_rows} texts are cut to {length} tokens: max_length={2 * length} cuts "
    return "; ".join(filter(None, (table.note, f"{cut}fewer" if num_cut else "")))


def _tokenizer(options: Address) -> tuple[Encode, int]:
    """A user's tokenizer without its special tokens, or bytes; and how many numbers there are."""
    if "tokenizer" not in options:
        return lambda texts: [list(text.encode()) for text in texts], NUM_BYTES
    tokenizer, size = opened_tokenizer(Path(at_home(options.text("tokenizer"))))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [
            encoding.ids
            for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    return encode, size


def encoded_example(
    prompt: Sequence[int], answer: Sequence[int], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """Tokens, next tokens, and whether the example was cut.

    The last token is only a next token, so length + 1 are kept.
    """
    learned = [*(FIRST + number for number in answer), END][:length]
    before = [BEGIN, *(FIRST + number for number in prompt)][-(length + 1 - len(learned)) :]
    whole = np.array(before + learned)
    tokens_L, wanted_L = np.full(length, PADDING), np.full(length, MASKED)
    tokens_L[: len(whole) - 1] = whole[:-1]
    wanted_L[len(before) - 1 : len(whole) - 1] = learned
    return tokens_L, wanted_L, len(prompt) + len(answer) + 2 > length + 1
