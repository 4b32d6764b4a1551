"""Compute jobs on the digits, which need no network."""

from pathlib import Path

from lipt.common.config.settings import load_settings
from lipt.coordinator.compute.context import Context
from lipt.coordinator.settings import CoordinatorSettings


def digits_settings(
    state_dir: Path, source: str = "digits", **dataset: object
) -> CoordinatorSettings:
    given = {"state_dir": state_dir, "dataset": {"source": source, **dataset}, "device": "cpu"}
    return load_settings(CoordinatorSettings, config=None, flags=given)


def digits_context(state_dir: Path, source: str = "digits") -> Context:
    return Context(digits_settings(state_dir, source), send=lambda _: None)
