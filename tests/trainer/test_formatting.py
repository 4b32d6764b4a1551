import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lipt.common.states import RunState
from lipt.trainer.formatting import differences, table_lines, to_jsonable
from lipt.trainer.views import BlobView, RunView, StrategyOptionView, view_of
from lipt.v1 import run_pb2


def test_table_cells_cannot_break_the_layout() -> None:
    lines = table_lines(("name", "id"), [("a\n9  fake", "1"), ("b\x1b[2J", "2")])
    assert lines == ["name        id", r"a\n9  fake  1", r"b\x1b[2J    2"]


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


def test_views_become_json_with_their_field_names() -> None:
    view = StrategyOptionView("norm", "full", ("full", "last"), help="Which gradient.")
    assert to_jsonable(view) == {
        "name": "norm",
        "default_value": "full",
        "allowed_values": ["full", "last"],
        "help": "Which gradient.",
    }
    assert to_jsonable({"at": datetime(2026, 1, 2, tzinfo=UTC), "state": RunState.READY}) == {
        "at": "2026-01-02T00:00:00Z",
        "state": "ready",
    }
    assert to_jsonable((BlobView("ab", 2), Path("/x"))) == [{"sha256": "ab", "size_bytes": 2}, "/x"]
    learner = run_pb2.Learner(loss=float("nan"))
    run = view_of(RunView, run_pb2.Run(run_id="r", learners=[learner]))
    text = json.dumps(to_jsonable(run), allow_nan=False)
    assert json.loads(text)["learners"][0]["loss"] is None
