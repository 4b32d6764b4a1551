"""The command line, run against the service, or on digits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipt.cli import main
from tests.relay import Relay
from tests.trainer.conftest import client, dead_address, digits, relay, service, stranger, subset_of

# Fixtures that a client's tests share.
__all__ = ["client", "dead_address", "digits", "relay", "service", "stranger", "subset_of"]

SMALL = ("--set", "batch_size=16", "--set", "augmentation=none", "--device", "cpu")


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
