"""`lipt check`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two whole images of each of two classes."""
    for row in range(4):
        pixels = np.random.default_rng(row).integers(0, 256, (12, 12, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        path = tmp_path / "images" / "ab"[row // 2] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
    return tmp_path / "images"


def test_images_that_cannot_be_used_are_listed_and_the_status_is_1(lipt: Any, images: Path) -> None:
    broken = images / "b" / "2.png"
    broken.write_bytes(b"no image")
    result = lipt("check", "--data", f"imagefolder:{images}")
    assert result.exit_code == 1
    first, last = result.stdout.splitlines()
    assert first.startswith(f"image 2 ({broken}): it is not a whole image")
    assert last == f"1 of 4 images of imagefolder:{images} cannot be used"


def test_a_script_gets_every_id(lipt: Any, images: Path) -> None:
    (images / "a" / "0.png").write_bytes(b"")
    (images / "b" / "3.png").write_bytes(b"no image")
    result = lipt("check", "--data", f"imagefolder:{images}", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["num_images"] == 4
    assert [image["id"] for image in told["unusable"]] == [0, 3]


def test_of_a_whole_set_the_status_is_0(lipt: Any, images: Path) -> None:
    result = lipt("check", "--data", f"imagefolder:{images}")
    assert result.exit_code == 0
    assert result.stdout == f"0 of 4 images of imagefolder:{images} cannot be used\n"


def test_data_that_is_not_there_is_refused_in_a_sentence(lipt: Any, tmp_path: Path) -> None:
    result = lipt("check", "--data", f"imagefolder:{tmp_path / 'nowhere'}")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr
