"""Tokens of a coordinator in a test's folder, by a clock that only the test moves."""

from __future__ import annotations

import pytest

from lipt.common.access.tokens import Token
from lipt.coordinator.access.tokens import Tokens
from lipt.coordinator.state.database import Database
from tests.clock import Clock


@pytest.fixture
def own() -> Token:
    """The coordinator's own token."""
    return Token.draw("admin")


@pytest.fixture
def tokens(database: Database, own: Token, clock: Clock) -> Tokens:
    return Tokens(database, own, wall_clock=clock)
