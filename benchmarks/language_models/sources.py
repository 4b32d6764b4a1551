"""Sources of examples for a causal model: tasks with exact answers, and texts of a Debian machine.

Shapes: N examples, L positions.
"""

from __future__ import annotations

import gzip
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipt.data.sources.tables.causal import BEGIN, FIRST, encoded_example

LENGTH, NUM_TOKENS = 64, FIRST + 256
_MOST_BYTES = 4_000_000

# A prompt and its completion.
Example = tuple[str, str]
Family = Callable[[np.random.Generator], Example]


@dataclass(frozen=True)
class Encoded:
    """Tokens, and each position's next token, or MASKED where no loss counts; int64 N x L."""

    tokens_NL: Tensor
    wanted_NL: Tensor

    def __len__(self) -> int:
        return len(self.tokens_NL)

    def __getitem__(self, ids: Tensor | slice) -> Encoded:
        return Encoded(self.tokens_NL[ids], self.wanted_NL[ids])


def joined(parts: Sequence[Encoded]) -> Encoded:
    return Encoded(
        torch.cat([part.tokens_NL for part in parts]), torch.cat([part.wanted_NL for part in parts])
    )


def encoded(examples: Sequence[Example]) -> Encoded:
    """The loss counts completions and their end."""
    rows = [(list(prompt.encode()), list(completion.encode())) for prompt, completion in examples]
    return encoded_rows(rows, LENGTH)


def encoded_rows(rows: Sequence[tuple[list[int], list[int]]], length: int) -> Encoded:
    """Prompts and completions as numbers from 0."""
    found = [encoded_example(prompt, completion, length)[:2] for prompt, completion in rows]
    return Encoded(*torch.from_numpy(np.array(found)).unbind(dim=1))


def _letters(draws: np.random.Generator, number: int) -> str:
    return "".join(draws.choice(list(string.ascii_lowercase), number))


def _digits(draws: np.random.Generator, number: int) -> str:
    return "".join(map(str, draws.integers(0, 10, number)))


def reverse(draws: np.random.Generator) -> Example:
    word = _letters(draws, 5)
    return f"reverse: {word} =", word[::-1]


def sort(draws: np.random.Generator) -> Example:
    digits = _digits(draws, 5)
    return f"sort: {digits} =", "".join(sorted(digits))


def add(draws: np.random.Generator) -> Example:
    first, second = draws.integers(0, 50, 2)
    return f"add: {first} {second} =", str(first + second)


def shift(draws: np.random.Generator) -> Example:
    word = _letters(draws, 5)
    return f"shift: {word} =", "".join(chr((ord(one) - 96) % 26 + 97) for one in word)


def largest(draws: np.random.Generator) -> Example:
    numbers = draws.integers(10, 100, 3)
    return f"largest: {' '.join(map(str, numbers))} =", str(numbers.max())


def upper(draws: np.random.Generator) -> Example:
    word = _letters(draws, 5)
    return f"upper: {word} =", word.upper()


def count(draws: np.random.Generator) -> Example:
    letters = "".join(draws.choice(list("abc"), 7))
    return f"count a: {letters} =", str(letters.count("a"))


def double(draws: np.random.Generator) -> Example:
    word = _letters(draws, 3)
    return f"double: {word} =", "".join(2 * one for one in word)


FAMILIES: Mapping[str, Family] = {
    one.__name__: one for one in (reverse, sort, add, shift, largest, upper, count, double)
}


def drawn(family: Family, number: int, seed: int) -> list[Example]:
    draws = np.random.default_rng(seed)
    return [family(draws) for _ in range(number)]


def wrong(examples: Sequence[Example], seed: int) -> list[Example]:
    """The same prompts with each other's completions."""
    order = np.random.default_rng(seed).permutation(len(examples))
    after = np.roll(order, 1)
    answers = dict(zip(order.tolist(), after.tolist(), strict=True))
    return [(prompt, examples[answers[row]][1]) for row, (prompt, _) in enumerate(examples)]


_TEXTS: Mapping[str, tuple[str, str]] = {
    "python": ("/usr/lib/python3.11", "**/*.py"),
    "c": ("/usr/include/linux", "**/*.h"),
    "french": ("/usr/share/man/fr", "**/*.gz"),
    "german": ("/usr/share/man/de", "**/*.gz"),
    "spanish": ("/usr/share/man/es", "**/*.gz"),
    "c++": ("/usr/include/c++", "**/*"),
}


@cache
def bytes_of(name: str) -> bytes:
    folder, pattern = _TEXTS[name]
    files = sorted(at for at in Path(folder).glob(pattern) if at.is_file())
    # Files of all folders, in an order of their own.
    order = np.random.default_rng(0).permutation(len(files))
    parts = (
        gzip.decompress(files[at].read_bytes())
        if files[at].suffix == ".gz"
        else files[at].read_bytes()
        for at in order
    )
    return b"\n".join(islice(parts, 400))[:_MOST_BYTES]


def text_blocks(name: str, number: int, seed: int) -> Encoded:
    numbers = np.frombuffer(bytes_of(name), dtype=np.uint8).astype(np.int64) + FIRST
    return token_blocks(numbers, number, LENGTH, seed)


def token_blocks(tokens: np.ndarray, number: int, length: int, seed: int) -> Encoded:
    """Disjoint blocks of a source's tokens, in random order; all of them count."""
    whole = torch.from_numpy(tokens.astype(np.int64))
    blocks_NL = whole[: len(whole) // length * length].reshape(-1, length)
    order = torch.randperm(len(blocks_NL), generator=torch.Generator().manual_seed(seed))
    wanted_NL = blocks_NL[order[:number]]
    begin_N1 = torch.full((len(wanted_NL), 1), BEGIN)
    return Encoded(torch.cat([begin_N1, wanted_NL[:, :-1]], dim=1), wanted_NL)
