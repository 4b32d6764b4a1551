"""Bundled data: sets from installed packages, for tests and first steps.

scikit-learn's files are read without its slow import. A name that ends in "-test" takes every fifth
row of each class, "-train" the rest.

Shapes: N rows, D columns.
"""

from __future__ import annotations

import ast
import csv
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from lipt.common.data.sources.index import Stamp
from lipt.common.data.sources.rows import ArrayRows, ColumnRows
from lipt.common.data.sources.texts import hashing_tokenizer, text_columns
from lipt.common.determinism import derive_generator
from lipt.common.errors import DataError
from lipt.common.imports import missing_extra
from lipt.common.inputs.specs import Column, ColumnType

_TABLES = {"breast_cancer": "breast_cancer.csv", "wine": "wine_data.csv"}
_TEST_EVERY = 5
# The digits' brightnesses are 0..16.
_MAX_BRIGHTNESS = 16
_NUM_DIGITS = 10
# ImageNet's validation set has 6% (Northcutt et al. 2021, arXiv:2103.14749).
_MISLABELLED_SHARE = 0.05

# Packages with at least 250 paragraphs, present in all distributions.
_TOPICS = ("asyncio", "decimal", "email", "http", "importlib", "logging", "unittest", "xml")
_FILE_OF = {"decimal": "_pydecimal.py"}
_FEWEST_WORDS = 8
# Longer than three in four paragraphs.
_LENGTH = 32
_VOCABULARY = 2**13


def _bundled_file(source: str, name: str) -> Path:
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise missing_extra("scikit-learn", extra="demo", needed_for=f"the data set {source}")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / name


def bundled_rows(source: str) -> ArrayRows | ColumnRows:
    """The examples of a bundled set or a part of it; "-mislabelled" has 5% random wrong labels."""
    name, _, part = source.partition("-")
    whole = _READERS[name](source)
    if not part:
        return whole
    labels_N = whole.labels_N.numpy()
    places_N = np.empty_like(labels_N)  # position of each row in its class
    for label in np.unique(labels_N):
        of_class = labels_N == label
        places_N[of_class] = np.arange(of_class.sum())
    is_test_N = places_N % _TEST_EVERY == _TEST_EVERY - 1
    rows_M = np.flatnonzero(is_test_N if part == "test" else ~is_test_N)
    labels_M = whole.labels_N[rows_M]
    if part == "mislabelled":
        generator = derive_generator(0, "digits-mislabelled")
        num_wrong = round(_MISLABELLED_SHARE * len(labels_M))
        rows_W = torch.randperm(len(labels_M), generator=generator)[:num_wrong]
        further_W = torch.randint(1, _NUM_DIGITS, (num_wrong,), generator=generator)
        labels_M[rows_W] = (labels_M[rows_W] + further_W) % _NUM_DIGITS
    if isinstance(whole, ArrayRows):
        return replace(whole, labels_N=labels_M, images_NCHW=whole.images_NCHW[rows_M])
    tensors = {name: values_N[rows_M] for name, values_N in whole.tensors.items()}
    return replace(whole, labels_N=labels_M, tensors=tensors)


def _digits(source: str) -> ArrayRows:
    """1,797 handwritten digits as 1 x 8 x 8 images with brightness scaled to 0..255.

    Source: Alpaydin & Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.
    """
    file = _bundled_file("digits", "digits.csv.gz")
    stamp = Stamp.of([file])
    # A line has 64 brightness values and the label.
    lines_NL = np.loadtxt(file, delimiter=",")
    brightness_NCHW = lines_NL[:, :-1].reshape(-1, 1, 8, 8)
    images_NCHW = np.rint(brightness_NCHW * (255 / _MAX_BRIGHTNESS)).astype(np.uint8)
    # The file is ordered by writer, so both parts have all writers.
    labels_N = torch.from_numpy(lines_NL[:, -1].astype(np.int64))
    return ArrayRows(source, tuple("0123456789"), labels_N, images_NCHW, stamp=stamp)


def _table(source: str) -> ColumnRows:
    """569 tumours by 30 measurements in two classes, or 178 wines by 13 in three.

    Source: Wolberg, Mangasarian, Street & Street 1995 and Forina et al. 1991, UCI.
    """
    name = source.partition("-")[0]
    file = _bundled_file(name, _TABLES[name])
    stamp = Stamp.of([file])
    with file.open(encoding="utf-8", newline="") as opened:
        # The first line has the row and column counts, and the class names.
        (_, num_columns, *names), *lines = csv.reader(opened)
    values_NL = np.array(lines, dtype=np.float64)
    labels_N = torch.from_numpy(values_NL[:, -1].astype(np.int64))
    numbers_ND = torch.from_numpy(values_NL[:, : int(num_columns)].astype(np.float32))
    column = Column("", ColumnType.FLOAT32, (int(num_columns),), standardized=True)
    return ColumnRows(source, tuple(names), labels_N, (column,), {"": numbers_ND}, stamp=stamp)


def _pydocs(source: str) -> ColumnRows:
    """Distinct paragraphs, of at least 8 words, of the docstrings of eight standard packages.

    Another version of Python has others, and so another fingerprint.
    """
    files = {topic: _files(topic) for topic in _TOPICS}
    stamp = Stamp.of([file for of_topic in files.values() for file in of_topic])
    # For a paragraph in two packages, the later one counts.
    labelled = {
        text: label
        for label, of_topic in enumerate(files.values())
        for file in of_topic
        for text in _paragraphs(file)
    }
    tokenizer = hashing_tokenizer(_LENGTH, _VOCABULARY)
    columns, tensors = text_columns(
        "", [[list(labelled)]], tokenizer, num_texts=len(labelled), length=_LENGTH
    )
    labels_N = torch.tensor(list(labelled.values()), dtype=torch.int64)
    return ColumnRows(source, _TOPICS, labels_N, columns, tensors, stamp=stamp)


def _files(topic: str) -> list[Path]:
    place = Path(sysconfig.get_path("stdlib")) / _FILE_OF.get(topic, topic)
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not files:
        raise DataError(
            f"pydocs: there are no sources of {topic} in {place.parent}. Use a Python that comes "
            "with the sources of its standard library, or other data."
        )
    # Some distributions omit packages' tests.
    return [file for file in files if not {"test", "tests"} & set(file.relative_to(place).parts)]


def _paragraphs(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                if len(re.findall(r"\w+", paragraph)) >= _FEWEST_WORDS:
                    yield " ".join(paragraph.split())


_READERS: Mapping[str, Callable[[str], ArrayRows | ColumnRows]] = MappingProxyType(
    {"digits": _digits, **dict.fromkeys(_TABLES, _table), "pydocs": _pydocs}
)
BUNDLED = (
    *("digits", "digits-train", "digits-test", "digits-mislabelled"),
    *(f"{name}{part}" for name in (*_TABLES, "pydocs") for part in ("", "-train", "-test")),
)
