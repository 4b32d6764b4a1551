"""Pydocs: the documentation inside Python's own standard library, by the package it is about.

Real English that needs no network: every paragraph of the docstrings of eight packages, of 8
words and more, each once. It is read from their sources, which are not imported. The rows are
those of one version of Python: another one's are other data, with another fingerprint.

Shapes: N paragraphs.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from lipt.common.data.sources.bundled import rows_of_part
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.stamp import Stamp
from lipt.common.data.sources.tables.cells import Cell
from lipt.common.data.sources.tables.texts import text_columns
from lipt.common.data.sources.tables.tokens import hashing_tokenizer
from lipt.common.errors import DataError

# Packages with 250 paragraphs and more, which no distribution leaves out.
_TOPICS = ("asyncio", "decimal", "email", "http", "importlib", "logging", "unittest", "xml")
_FILE_OF = {"decimal": "_pydecimal.py"}
_FEWEST_WORDS = 8
# Three in four paragraphs are shorter.
_LENGTH = 32
_VOCABULARY = 2**13

PYDOCS = ("pydocs", "pydocs-train", "pydocs-test")


def pydocs_rows(source: str) -> ColumnRows:
    """The paragraphs as tokens of the built-in tokenizer.

    Args:
        source: "pydocs" for all, "pydocs-test" for every fifth of each package, and
            "pydocs-train" for the others.

    Raises:
        DataError: this Python has come without the sources of its standard library.
    """
    files = [file for topic in _TOPICS for file in _files(topic)]
    stamp = Stamp.of(files)
    labelled = [(text, label) for label, topic in enumerate(_TOPICS) for text in _texts(topic)]
    # What two packages say word for word is the later one's.
    texts = list(dict(labelled))
    labels_N = np.array(list(dict(labelled).values()), dtype=np.int64)
    rows = rows_of_part(source, labels_N)
    chunk: list[list[Cell]] = [[texts[row] for row in rows]]
    columns, tensors = text_columns(
        "",
        [chunk],
        hashing_tokenizer(_LENGTH, _VOCABULARY),
        num_texts=len(rows),
        length=_LENGTH,
    )
    return ColumnRows(
        source, _TOPICS, torch.from_numpy(labels_N[rows]), columns, tensors, stamp=stamp
    )


def _files(topic: str) -> list[Path]:
    place = Path(sysconfig.get_path("stdlib")) / _FILE_OF.get(topic, topic)
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not files:
        raise DataError(
            f"pydocs: there are no sources of {topic} in {place.parent}. Use a Python that comes "
            "with the sources of its standard library, or other data."
        )
    # Some distributions leave a package's tests out.
    return [file for file in files if not {"test", "tests"} & set(file.relative_to(place).parts)]


def _texts(topic: str) -> Iterator[str]:
    for file in _files(topic):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    if len(re.findall(r"\w+", paragraph)) >= _FEWEST_WORDS:
                        yield " ".join(paragraph.split())
