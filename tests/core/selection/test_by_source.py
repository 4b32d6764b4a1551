"""Choices within each source's share; sources are given by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.errors import InvalidRequestError
from lipt.core.selection import by_source
from lipt.core.selection.by_source import Division, SourceShares, select_by_source
from lipt.core.selection.select import find_strategy
from lipt.core.selection.selection import Selection
from tests.core.selection.builders import signals_of

WEIGHTS = {"a": 0.25, "b": 0.75}
FILE: dict[str, Any] = {
    "fingerprint": "f",
    "weights": WEIGHTS,
    "rows": {"a": [[0, 2], [4, 6]], "b": [[2, 4], [6, 10]]},
    "verdict": "left alone",
}
# Rows 0, 1, 4 and 5 are of the first source.
SOURCE_N = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 1, 1])


def read(**changes: Any) -> SourceShares:
    return SourceShares.read(json.dumps(FILE | changes).encode())


def chosen(
    strategy: str, budget: int, shares: dict[str, float], **how: Any
) -> tuple[Selection, dict[str, int]]:
    """The selection, and the examples of each source in it."""
    # The largest errors are at the end.
    errors_NC = torch.arange(10.0)[:, None].repeat(1, 2)
    signals = signals_of(errors_NC=errors_NC, labels=[0, 1] * 5)
    settings: dict[str, Any] = {"balanced": False, "seed": 3, "options": {}} | how
    division = Division(shares, SOURCE_N)
    found = select_by_source(find_strategy(strategy), signals, budget, division, **settings)
    return found, division.counts(found.indices_K)


def test_each_source_gives_its_share_by_the_strategy() -> None:
    found, counts = chosen("el2n", 4, WEIGHTS)
    assert counts == {"a": 1, "b": 3}
    # The worst of the first source is 5; of the second 7, 8 and 9.
    assert found.indices_K.tolist() == [5, 7, 8, 9]
    assert found.weights_K.tolist() == [1.0] * 4
    assert not found.stopped_early
    assert not found.is_random


def test_a_small_source_is_taken_whole_with_larger_weights() -> None:
    found, counts = chosen("el2n", 8, {"a": 0.75, "b": 0.25})
    assert counts == {"a": 4, "b": 2}
    assert found.weights_K.tolist() == [1.5, 1.5, 1.5, 1.5, 1.0, 1.0]
    assert found.stopped_early == "source a has 4 of its 6 examples."


def test_classes_are_balanced_within_each_source() -> None:
    found, _ = chosen("uniform_per_class", 8, {"a": 0.5, "b": 0.5}, balanced=True)
    labels = found.indices_K % 2
    assert labels[SOURCE_N[found.indices_K] == 1].tolist().count(1) == 2
    assert found.is_random


def test_a_source_without_share_or_rows_gives_nothing() -> None:
    _, counts = chosen("el2n", 2, {"a": 0.0, "b": 1.0})
    assert counts == {"a": 0, "b": 2}
    none, counts = chosen("el2n", 4, {"a": 0.5, "b": 0.0, "c": 0.5})
    assert counts == {"a": 2, "b": 0, "c": 0}
    assert none.stopped_early == "source c has no example."


def test_rows_are_those_of_the_file(tmp_path: Path) -> None:
    assert read().source_of(10).tolist() == SOURCE_N.tolist()
    # Ids beyond are of no source.
    assert read().source_of(12).tolist()[10:] == [-1, -1]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(FILE))
    assert SourceShares.read(path) == read()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": {"a": 0.5, "b": 0.4}}, r"add up to 0\.9"),
        ({"weights": {"a": 1.0}}, "other sources than its rows"),
        ({"weights": {"a": 1.5, "b": -0.5}}, r"weights\.a: .*less than or equal to 1"),
        ({"weights": {"a": float("nan"), "b": 1.0}}, r"weights\.a"),
        ({"weights": {str(place): 1 / 65 for place in range(65)}}, "weights: .*at most 64"),
        ({"rows": {"a": [[0]], "b": [[2, 4]]}}, r"rows\.a\.0"),
        ({"rows": {"a": [[-1, 2]], "b": [[2, 4]]}}, r"rows\.a\.0\.0"),
        ({"fingerprint": 5}, "fingerprint"),
    ],
)
def test_another_file_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{words}.*Give a file of lipt mix"):
        read(**changes)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_hostile_content_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="the mixture's file cannot be used"):
        SourceShares.read(content)


def test_a_large_file_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_source, "MAX_MIXTURE_BYTES", 10)
    with pytest.raises(InvalidRequestError, match="and at most 10 are read"):
        read()


@pytest.mark.parametrize("ranges", [[[5, 5]], [[6, 5]], [[1, 3]]])
def test_rows_of_no_or_two_sources_are_refused(ranges: list[list[int]]) -> None:
    with pytest.raises(InvalidRequestError, match=r"its rows .* are none, or are of two sources"):
        read(rows={"a": [[0, 2]], "b": ranges})


def test_rows_beyond_the_data_are_refused() -> None:
    shares = read(rows={"a": [[0, 2]], "b": [[8, 11]]})
    with pytest.raises(InvalidRequestError, match="b has the rows 8 to 11 of 10"):
        shares.source_of(10)
