from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from lipt.common.config.run_config import RunConfig
from lipt.common.states import RunState
from lipt.trainer.client.conversion import view_of
from lipt.trainer.views import BlobView, RunView, StrategyOptionView
from lipt.trainer.writing.jsonable import to_jsonable
from lipt.v1 import run_pb2


def test_views_become_json_with_their_field_names() -> None:
    view = StrategyOptionView("norm", "full", ("full", "last"), help="Which gradient.")
    assert to_jsonable(view) == {
        "name": "norm",
        "default_value": "full",
        "allowed_values": ["full", "last"],
        "help": "Which gradient.",
    }
    assert to_jsonable({"at": datetime(2026, 1, 2, tzinfo=UTC), "state": RunState.READY}) == {
        "at": "2026-01-02T00:00:00+00:00",
        "state": "ready",
    }
    assert to_jsonable((BlobView("ab", 2), Path("/x"))) == [
        {"sha256": "ab", "size_bytes": 2},
        "/x",
    ]


def test_a_diverged_loss_is_null() -> None:
    learner = run_pb2.Learner(loss=float("nan"))
    run = view_of(RunView, run_pb2.Run(run_id="r", learners=[learner]))
    text = json.dumps(to_jsonable(run), allow_nan=False)
    assert json.loads(text)["learners"][0]["loss"] is None


def test_a_run_has_its_whole_configuration_in_json() -> None:
    run = to_jsonable(view_of(RunView, run_pb2.Run(run_id="r")))
    assert run["config"] == RunConfig().model_dump(mode="json")
    assert run["soup"] is None
