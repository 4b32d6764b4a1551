"""The command line, run against the service, or on digits."""

import json
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipt.trainer.cli import main
from tests.relay import Relay

SMALL = ("--set", "batch_size=16", "--set", "augmentation=none", "--device", "cpu")


def declared_entry_points(*, group: str) -> EntryPoints:
    """This checkout's own, whether or not it is installed."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["entry-points"][group]
    return EntryPoints(EntryPoint(name, value, group) for name, value in declared.items())


@pytest.fixture
def lipt(relay: Relay) -> Callable[..., Any]:
    """Runs `lipt ARGUMENTS` against the service; the result has exit_code, stdout, stderr."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> Any:
        environment = {"LIPT_COORDINATOR": relay.address} | (env or {})
        return CliRunner().invoke(main, list(arguments), env=environment)

    return run


@pytest.fixture
def train(lipt: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs `lipt train` on digits, with a log in the test's folder."""

    def run(*arguments: str, **options: Any) -> Any:
        fixed = ("--data", "digits-train", "--model", "resnet8", "--log", str(tmp_path / "log"))
        return lipt("train", *fixed, *SMALL, *arguments, **options)

    return run


def log_of(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
