from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lipt.trainer
from lipt.common.config.run_config import RunConfig
from lipt.trainer.conversion import run_view
from lipt.trainer.views import BlobView, RunState, StrategyOptionView, to_jsonable
from lipt.v1 import run_pb2


def test_views_become_json_with_their_field_names() -> None:
    view = StrategyOptionView("norm", "full", ("full", "last"))
    assert to_jsonable(view) == {
        "name": "norm",
        "default_value": "full",
        "allowed_values": ["full", "last"],
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
    run = run_view(run_pb2.Run(run_id="r", learners=[learner]))
    text = json.dumps(to_jsonable(run), allow_nan=False)
    assert json.loads(text)["learners"][0]["loss"] is None


def test_a_run_has_its_whole_configuration_in_json() -> None:
    run = to_jsonable(run_view(run_pb2.Run(run_id="r")))
    assert run["config"] == RunConfig().model_dump(mode="json")
    assert run["soup"] is None


def test_the_package_offers_its_names_lazily() -> None:
    assert lipt.trainer.Subset.__name__ == "Subset"
    assert lipt.trainer.RunState is RunState
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        lipt.trainer.Trainer  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import lipt.trainer", {"torch", "grpc", "numpy", "pydantic"}),
        ("from lipt.trainer import Client, Subset, RunView", {"torch"}),
        ("from lipt.trainer import RunView", {"torch", "grpc", "numpy", "pydantic"}),
    ],
)
def test_importing_the_package_is_cheap(statement: str, unwanted: set[str]) -> None:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not unwanted & set(done.stdout.split())
