from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.files import read_container
from lipt.common.weights.header import require_safetensors

# A header of 640 bytes makes the first two bytes those of a pickle.
AMBIGUOUS = struct.pack("<Q", 640) + b"{}".ljust(640)


def torch_file(*, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def numpy_file(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("content", [struct.pack("<Q", 2) + b"{}", AMBIGUOUS])
def test_safetensors_pass(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    require_safetensors(content)
    require_safetensors(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch_file(zipped=True), "zip archive.*Convert it where you trust it: safetensors"),
        (torch_file(zipped=False), "pickle.*Convert it where you trust it: safetensors"),
        (pickle.dumps({"w": [1.0]}, protocol=2), "pickle.*Convert it"),
        (pickle.dumps({"w": [1.0]}, protocol=4), "pickle.*Convert it"),
        (pickle.dumps({"w": [1.0]}, protocol=5), "pickle.*Convert it"),
        (numpy_file(np.ones(3)), "numpy file.*safetensors.numpy.save_file"),
        (b"\x1f\x8b" + bytes(20), "gzip. Uncompress it first"),
        (b"hello, these are weights", "not a safetensors file.*Write it with .*save_file"),
        (b"", "not a safetensors file.*Write it with"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 100) + b"{}", "100 bytes does not fit 10 bytes"),
    ],
)
def test_other_files_are_refused_with_how_to_convert_them(
    content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=rf"weights\.pt is .*{words}"):
        require_safetensors(path)
    for read in (
        lambda: require_safetensors(content),
        lambda: read_container(content, max_bytes=10_000, max_tensors=1),
    ):
        with pytest.raises(WeightsError, match=words if content else "too few|not a safetensors"):
            read()


def test_a_look_at_the_header_does_without_torch() -> None:
    # It takes seconds to import, and a command line looks at a file before it is sent.
    script = "import sys, lipt.common.weights.header; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
