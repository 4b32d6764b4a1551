from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def indexes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of each test's own, and where indexes lie in it."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "lipt" / "indexes"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_text(text: str, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_text
