import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lipt.data.sources.storage import Storage

Encode = Callable[..., bytes]


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


@pytest.fixture(scope="session")
def encode() -> Encode:
    def encode_one(
        seed: int = 0, size: tuple[int, int] = (12, 10), mode: str = "RGB", kind: str = "PNG"
    ) -> bytes:
        height, width = size
        shape = (height, width, 3) if mode == "RGB" else (height, width)
        pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(file, kind)
        return file.getvalue()

    return encode_one


@pytest.fixture
def image_folder(tmp_path: Path, encode: Encode) -> Path:
    """Two classes: cat with 3 PNG files, dog with 2 JPEG files, all 12 x 10."""
    folder = tmp_path / "pets"
    for name, suffix, numbers in (("dog", "jpg", (0, 1)), ("cat", "png", (2, 0, 1))):
        (folder / name).mkdir(parents=True)
        for number in numbers:
            kind = "JPEG" if suffix == "jpg" else "PNG"
            path = folder / name / f"{number}.{suffix}"
            path.write_bytes(encode(len(name) * number + number, kind=kind))
    return folder
