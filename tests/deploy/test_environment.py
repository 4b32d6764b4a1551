"""deploy/environment.sh with a played interpreter, registry and `nvidia-smi`."""

import os
import subprocess
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Machine:
    folder: Path

    def install(self, **settings: str) -> tuple[str, list[str]]:
        """What the script prints, and pip's commands."""
        log = self.folder / "log"
        search = os.pathsep.join((str(self.folder), "/usr/bin", "/bin"))
        shown = subprocess.run(
            [SCRIPT, self.folder / "venv", "demo", "5.9 GB"],
            env={"PATH": search, "LOG": str(log), "CONSTRAINTS": "constraints.txt", **settings},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return shown, [line.partition("install ")[2] for line in log.read_text().splitlines()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    pins = "safetensors==0.5.0\ntorch==2.15.0\ntorchmetrics==1.9.0\ntorchvision==0.29.2\n"
    (tmp_path / "constraints.txt").write_text(pins)
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    gpu = tmp_path / "nvidia-smi"
    gpu.write_text('#!/bin/sh\n[ -n "$GPU" ]\n')
    for program in (python, gpu):
        program.chmod(0o755)
    return Machine(tmp_path)


def test_names_the_size_where_the_registry_has_no_build_for_cpus(machine: Machine) -> None:
    shown, installed = machine.install()
    assert "5.9 GB on disk, 5.5 GB of it PyTorch with CUDA" in shown
    assert installed == ["--editable .[demo] --constraint constraints.txt"]


def test_takes_the_build_for_cpus_without_a_gpu(machine: Machine) -> None:
    shown, installed = machine.install(CPU_BUILDS="1")
    assert "PyTorch's build for CPUs" in shown
    assert installed == [CPU, "--editable .[demo] --constraint constraints.txt"]


def test_a_named_index_is_asked_as_well(machine: Machine) -> None:
    _, installed = machine.install(CPU_BUILDS="1", TORCH_INDEX="https://index.test/cpu")
    assert installed[0] == f"--extra-index-url https://index.test/cpu {CPU}"
    assert installed[1].endswith("--extra-index-url https://index.test/cpu")


def test_a_gpu_gets_the_build_with_cuda(machine: Machine) -> None:
    _, installed = machine.install(CPU_BUILDS="1", GPU="1")
    assert installed == ["--editable .[demo] --constraint constraints.txt"]


def test_an_environment_with_torch_is_extended(machine: Machine) -> None:
    shown, installed = machine.install(CPU_BUILDS="1", TORCH="1")
    assert shown.startswith("Adding lipt[demo]")
    assert installed == ["--editable .[demo] --constraint constraints.txt"]


@pytest.mark.lint
def test_shellcheck_finds_nothing() -> None:
    subprocess.run([BIN / "shellcheck", SCRIPT], check=True)
