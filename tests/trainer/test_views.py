import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lipt.common.config.run_config import RunConfig
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.core.catalogue import StrategyOptionView
from lipt.trainer.formatting import differences, table_lines, to_jsonable
from lipt.trainer.views import BlobView, IngredientView, LearnerView, ProgressView, RunView, view_of
from lipt.v1 import blob_pb2, config_pb2, run_pb2, worker_pb2


def test_a_learner_is_read_field_by_field() -> None:
    same: dict[str, Any] = {"index": 3, "density": 0.875, "attempts": 2, "device": "cpu", "step": 5}
    same |= {"loss": math.inf, "train_seconds": 1.5, "message": "once more", "num_steps": 6}
    part = {"position": 1, "accuracy": 0.5, "soup_accuracy": 0.75, "alpha": 0.25, "kept": True}
    message = run_pb2.Learner(
        **same,
        state=run_pb2.LEARNER_STATE_DONE,
        worker_name="w",
        result=blob_pb2.BlobRef(sha256="ab", size_bytes=7),
        ingredient=run_pb2.IngredientReport(**part),  # type: ignore[arg-type]
        phase=worker_pb2.LEARNER_PHASE_SUBMITTING,
        leased_at=Timestamp(seconds=86_400),
    )
    assert view_of(LearnerView, message) == LearnerView(
        **same,
        state=LearnerState.DONE,
        worker="w",
        result=BlobView("ab", 7),
        ingredient=IngredientView(**part),  # type: ignore[arg-type]
        phase=LearnerPhase.SUBMITTING,
        leased_at=datetime(1970, 1, 2, tzinfo=UTC),
        committed_at=None,
    )


def test_missing_parts_of_a_run_are_none() -> None:
    run = view_of(RunView, run_pb2.Run(run_id="r", state=run_pb2.RUN_STATE_PENDING))
    absent = (run.progress, run.created_at, run.ended_at, run.soup, run.costs)
    assert (*absent, run.initial_weights, run.pretrained_weights) == (None,) * 7
    assert (run.state, run.learners, run.config) == (RunState.PENDING, (), RunConfig())
    message = run_pb2.Run(
        config=config_pb2.RunConfig(
            model="resnet8", pruning=config_pb2.PruningConfig(method="PRUNING_METHOD_SNIP")
        ),
        created_at=Timestamp(seconds=86_400, nanos=500_000_000),
        ended_at=Timestamp(seconds=10**15),  # in the year 31,690,708, which datetime has not
        progress=run_pb2.Progress(activity="merging", done=2, total=8),
    )
    run = view_of(RunView, message)
    assert (run.config.model, run.config.pruning.method) == ("resnet8", "snip")
    assert run.created_at == datetime(1970, 1, 2, 0, 0, 0, 500_000, tzinfo=UTC)
    assert run.ended_at is None
    assert run.progress == ProgressView("merging", 2, 8)


@pytest.mark.parametrize("number", [0, 99, -1])
def test_a_state_of_a_later_version_is_unknown(number: int) -> None:
    run = run_pb2.Run(
        state=number,  # type: ignore[arg-type]
        learners=[run_pb2.Learner(state=number)],  # type: ignore[arg-type]
    )
    view = view_of(RunView, run)
    assert (view.state, view.learners[0].state) == (RunState.UNKNOWN, LearnerState.UNKNOWN)


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
