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


def test_weights_may_be_called_theta_p(fake: Any, lipt: Any, tmp_path: Path) -> None:
    fake.weights = {run_pb2.WEIGHTS_KIND_PRETRAINED: b"theta_p"}
    out = tmp_path / "w.safetensors"
    result = lipt("weights", "get", "--kind", "theta_p", "--out", str(out), "--json")
    assert json.loads(result.stdout)["kind"] == "pretrained"
    assert out.read_bytes() == b"theta_p"
    result = lipt("weights", "get", "--kind", "final", "--out", str(out))
    assert result.exit_code == 2
    assert "'final' is none of initial (or theta*, theta_star)" in " ".join(result.stderr.split())
