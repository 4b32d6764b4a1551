"""`lipt weights get`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.service import READY, Service


@pytest.mark.parametrize(("name", "kind"), [("initial", "initial"), ("theta_p", "pretrained")])
def test_weights_are_written(
    service: Service, lipt: Any, tmp_path: Path, name: str, kind: str
) -> None:
    expected: Any = getattr(service.ready, f"{kind}_weights")
    out = tmp_path / "w.safetensors"
    command = ("weights", "get", "--run", READY, "--kind", name, "--out", str(out))
    result = lipt(*command)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{out}: ")
    assert result.stdout.endswith(f"B, sha256 {expected.sha256}\n")
    assert hashlib.sha256(out.read_bytes()).hexdigest() == expected.sha256
    assert json.loads(lipt(*command, "--json").stdout) == {
        "path": str(out),
        "kind": kind,
        "sha256": expected.sha256,
        "size_bytes": expected.size_bytes,
    }


def test_an_unknown_kind_is_a_usage_error_with_those_there_are(lipt: Any, tmp_path: Path) -> None:
    result = lipt("weights", "get", "--kind", "final", "--out", str(tmp_path / "w"))
    assert result.exit_code == 2
    assert "'final' is none of initial (or theta*, theta_star)" in " ".join(result.stderr.split())
