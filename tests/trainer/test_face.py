"""What `lipt.trainer` offers by name, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lipt.trainer
from lipt.common.states import RunState


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
