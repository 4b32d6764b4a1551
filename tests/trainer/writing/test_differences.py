from __future__ import annotations

from typing import Any

import pytest

from lipt.trainer.writing.differences import differences


@pytest.mark.parametrize(
    ("found", "wanted", "words"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}, ""),
        ({"a": 1}, {"a": 2}, "its a is 1, now it is 2"),
        ({"a": {"b": "x", "c": 1}}, {"a": {"b": "y", "c": 1}}, "its a.b is 'x', now it is 'y'"),
        ({"a": False}, {"a": {"b": 1}}, "its a is False, now it is {'b': 1}"),
        # What an older version did not write, and what a newer one no longer does.
        ({"b": 1}, {"a": 2}, "its a is None, now it is 2; its b is 1, now it is None"),
    ],
)
def test_every_setting_that_differs_is_named_with_both_values(
    found: dict[str, Any], wanted: dict[str, Any], words: str
) -> None:
    assert differences(found, wanted) == words
