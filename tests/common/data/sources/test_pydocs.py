from __future__ import annotations

import inspect
import logging
import sysconfig
from pathlib import Path

import pytest

from lipt.common.data.sources.bundled import pydocs_rows
from lipt.common.data.sources.texts import hashing_tokenizer
from lipt.common.errors import DataError

pytestmark = pytest.mark.slow


def test_paragraphs_of_the_standard_library_are_labelled_with_their_package() -> None:
    rows = pydocs_rows("pydocs")
    assert len(rows) > 2000
    assert rows.labels_N.bincount().min() > 200
    text = inspect.getdoc(logging.Logger)
    assert text is not None
    paragraph = text.split("\n\n")[0]
    ((numbers, _),) = hashing_tokenizer(32, 2**13).encode([paragraph])
    (row,) = [
        row
        for row, tokens in enumerate(rows.tensors[""].tolist())
        if tokens == numbers + [0] * (32 - len(numbers))
    ]
    assert rows.class_names[rows.labels_N[row]] == "logging"


def test_the_parts_are_disjoint_and_the_same_each_time() -> None:
    train, test = pydocs_rows("pydocs-train"), pydocs_rows("pydocs-test")
    assert len(train) > 4 * len(test)
    assert train.raw(0) == pydocs_rows("pydocs-train").raw(0)
    assert set(test.labels_N.tolist()) == set(range(8))


def test_a_python_without_its_sources_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(DataError, match="there are no sources of asyncio"):
        pydocs_rows("pydocs")
