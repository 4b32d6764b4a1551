from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.data.sources.storage import Storage


@pytest.fixture(autouse=True)
def indexes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of each test's own, and where indexes lie in it."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "lipt" / "indexes"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Names of files that are read, with the start and the end of each part."""
    parts: list[tuple[str, int, int]] = []
    fetch = Storage.fetch

    def counted(storage: Storage, name: str, start: int, end: int) -> bytes:
        content = fetch(storage, name, start, end)
        parts.append((name, start, start + len(content)))
        return content

    monkeypatch.setattr(Storage, "fetch", counted)
    return parts


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_text(text: str, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_text
