"""What a coordinator says until it serves."""

from __future__ import annotations

import logging

import pytest

from lipt.coordinator.app import logging_progress
from lipt.coordinator.compute.progress import Progressed
from tests.clock import Clock


def test_what_is_reported_is_said_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    report = logging_progress(clock=clock)
    for clock.now in (1.0, 5.0, 6.0, 10.0):
        report(Progressed("reading x", round(clock.now), 10))
    said = [record.message for record in caplog.records]
    assert said == ["reading x: 5 of 10", "reading x: 10 of 10"]
