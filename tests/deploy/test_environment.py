"""deploy/environment.sh with a played interpreter, registry and `nvidia-smi`."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.deploy.test_files import BIN, ROOT

SCRIPT = ROOT / "deploy" / "environment.sh"
# Logs what it is called with. Its registry has builds for CPUs if CPU_BUILDS is set, and it has
# torch if TORCH is.
PYTHON = """#!/bin/sh
case "$*" in
    -c*) [ -n "$TORCH" ] ;;
    *--dry-run*) [ -n "$CPU_BUILDS" ] ;;
    *) echo "$*" >> "$LOG" ;;
esac
"""
CPU = "torch==2.15.0+cpu torchvision==0.29.2+cpu"


EXTRA = "--editable .[demo] --constraint constraints.txt"
INDEX = "--extra-index-url https://index.test/cpu"


@pytest.mark.parametrize(
    ("settings", "said", "installed"),
    [
        ({}, "5.9 GB on disk, 5.5 GB of it PyTorch with CUDA", [EXTRA]),
        ({"CPU_BUILDS": "1"}, "PyTorch's build for CPUs", [CPU, EXTRA]),
        (
            {"CPU_BUILDS": "1", "TORCH_INDEX": "https://index.test/cpu"},
            *("", [f"{INDEX} {CPU}", f"{EXTRA} {INDEX}"]),
        ),
        ({"CPU_BUILDS": "1", "GPU": "1"}, "", [EXTRA]),
        ({"CPU_BUILDS": "1", "TORCH": "1"}, "Adding lipt[demo]", [EXTRA]),
    ],
    ids=["no build for CPUs", "no GPU", "a named index", "a GPU", "torch is there"],
)
def test_the_build_of_torch_is_that_for_the_machine(
    tmp_path: Path, settings: dict[str, str], said: str, installed: list[str]
) -> None:
    pins = "safetensors==0.5.0\ntorch==2.15.0\ntorchmetrics==1.9.0\ntorchvision==0.29.2\n"
    (tmp_path / "constraints.txt").write_text(pins)
    python, gpu, log = (tmp_path / name for name in ("venv/bin/python", "nvidia-smi", "log"))
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    gpu.write_text('#!/bin/sh\n[ -n "$GPU" ]\n')
    for program in (python, gpu):
        program.chmod(0o755)
    search = os.pathsep.join((str(tmp_path), "/usr/bin", "/bin"))
    shown = subprocess.run(
        [SCRIPT, tmp_path / "venv", "demo", "5.9 GB"],
        env={"PATH": search, "LOG": str(log), "CONSTRAINTS": "constraints.txt", **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said in shown
    commands = log.read_text().splitlines()
    assert [command.partition("install ")[2] for command in commands] == installed


@pytest.mark.lint
def test_shellcheck_finds_nothing() -> None:
    subprocess.run([BIN / "shellcheck", SCRIPT], check=True)
