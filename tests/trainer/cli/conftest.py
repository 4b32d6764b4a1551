"""Views to show, and the command line run against the scripted coordinator or on digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.data import Dataset, open_dataset
from lipt.common.states import LearnerState, RunState
from lipt.trainer.cli import main
from lipt.trainer.views import IngredientView, LearnerView, RunView, SoupView

# What makes `lipt train` quick.
SMALL = ("--set", "batch_size=16", "--set", "augmentation=none", "--device", "cpu")


@pytest.fixture
def make_learner() -> Callable[..., LearnerView]:
    def make(index: int = 0, **changes: Any) -> LearnerView:
        fields: dict[str, Any] = {
            "state": LearnerState.QUEUED,
            "density": 0.9,
            "attempts": 0,
            "worker": "",
            "device": "",
            "step": 0,
            "loss": 0.0,
            "train_seconds": 0.0,
            "message": "",
            "result": None,
            "ingredient": None,
        }
        return LearnerView(index=index, **(fields | changes))

    return make


@pytest.fixture
def make_run() -> Callable[..., RunView]:
    def make(**changes: Any) -> RunView:
        fields: dict[str, Any] = {
            "run_id": "r-1",
            "name": "demo",
            "state": RunState.TRAINING,
            "revision": 1,
            "message": "",
            "fingerprint": "f" * 8,
            "config": RunConfig(model="resnet8", learners=LearnersConfig(num_steps=5)),
            "learners": (),
            "progress": None,
            "created_at": None,
            "ended_at": None,
            "soup": None,
            "costs": None,
            "initial_weights": None,
            "pretrained_weights": None,
        }
        return RunView(**(fields | changes))

    return make


@pytest.fixture
def kept() -> IngredientView:
    return IngredientView(position=0, accuracy=0.5, soup_accuracy=0.5, alpha=0.3, kept=True)


@pytest.fixture
def discarded() -> IngredientView:
    return IngredientView(position=1, accuracy=0.25, soup_accuracy=0.5, alpha=0.0, kept=False)


@pytest.fixture
def soup() -> SoupView:
    return SoupView(
        initial_accuracy=0.1,
        mean_learner_accuracy=0.375,
        best_learner_accuracy=0.5,
        soup_accuracy=0.5,
        num_kept=1,
        num_validation_examples=200,
    )


@pytest.fixture
def lipt(fake: Any) -> Callable[..., Any]:
    """Runs `lipt ARGUMENTS` against the fake; the result has exit_code, stdout, stderr."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> Any:
        environment = {"LIPT_COORDINATOR": fake.address} | (env or {})
        return CliRunner().invoke(main, list(arguments), env=environment)

    return run


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return open_dataset("digits-train")


@pytest.fixture
def train(lipt: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs `lipt train` on digits, with a log in the test's folder."""

    def run(*arguments: str, **options: Any) -> Any:
        fixed = ("--data", "digits-train", "--model", "resnet8", "--log", str(tmp_path / "log"))
        return lipt("train", *fixed, *SMALL, *arguments, **options)

    return run


def log_of(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
