import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture
def write_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], None]]:
    """Write NAME.py into a current directory that is not importable yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    modules = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield write
    for name in set(sys.modules) - modules:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


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
