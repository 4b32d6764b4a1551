from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def indexes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of each test's own, and where indexes lie in it."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "lipt" / "indexes"
