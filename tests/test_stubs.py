from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "proto"


def test_regenerating_the_stubs_changes_nothing(tmp_path: Path) -> None:
    protos = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("lipt/v1/*.proto"))
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
            *(f"--grpc_python_out={tmp_path}", f"--mypy_grpc_out=quiet:{tmp_path}"),
            f"--plugin=protoc-gen-mypy_grpc={plugin}",
            *protos,
        ],
        check=True,
    )
    made = {path.name: path.read_text() for path in (tmp_path / "lipt" / "v1").iterdir()}
    kept = {path.name: path.read_text() for path in (PROTO / "lipt" / "v1").glob("*_pb2*")}
    assert len(made) == 4 * len(protos)
    assert kept == made
