"""`lipt weights get`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from lipt.v1 import run_pb2


def test_weights_are_written(fake: Any, lipt: Any, tmp_path: Path) -> None:
    fake.weights = {run_pb2.WEIGHTS_KIND_INITIAL: b"theta*"}
    out = tmp_path / "w.safetensors"
    digest = hashlib.sha256(b"theta*").hexdigest()
    result = lipt("weights", "get", "--kind", "initial", "--out", str(out))
    assert result.stdout == f"{out}: 6 B, sha256 {digest}\n"
    assert out.read_bytes() == b"theta*"
    result = lipt("weights", "get", "--kind", "initial", "--out", str(out), "--json")
    assert json.loads(result.stdout) == {
        "path": str(out),
        "kind": "initial",
        "sha256": digest,
        "size_bytes": 6,
    }
