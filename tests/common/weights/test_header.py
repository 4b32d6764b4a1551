from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.header import require_safetensors

# A header of 640 bytes makes the first two bytes those of a pickle.
AMBIGUOUS = struct.pack("<Q", 640) + b"{}".ljust(640)


def torch_save() -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(2)}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("content", [struct.pack("<Q", 2) + b"{}", AMBIGUOUS])
def test_safetensors_pass(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    require_safetensors(content)
    require_safetensors(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (pickle.dumps({"w": 1}), "pickle"),
        (torch_save(), "torch.save"),
        (b"", "not a safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (b"hello, these are weights", "not a safetensors file"),
        (struct.pack("<Q", 100) + b"{}", "100 bytes does not fit 10 bytes"),
    ],
)
def test_other_files_are_refused_with_how_to_convert_them(
    content: bytes, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=complaint) as caught:
        require_safetensors(path)
    assert str(path) in str(caught.value)
    assert "save_file" in str(caught.value)


def test_a_look_at_the_header_does_without_torch() -> None:
    # It takes seconds to import, and a command line looks at a file before it is sent.
    script = "import sys, lipt.common.weights.header; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
