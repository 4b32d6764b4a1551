"""What `lipt doctor` says of this machine, mostly without importing torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lipt.trainer.cli.doctor import device
from lipt.trainer.cli.doctor.device import device_check, fits, may_have_cuda
from tests.relay import Relay

VERSIONS = {"torch": "2.15.0+cpu", "torchvision": "0.30.0"}
# Examines, and then prints whether torch has been imported.
SCRIPT = """
import sys
from lipt.trainer.cli import main
try:
    main(["doctor", "--json"], prog_name="lipt")
except SystemExit as ended:
    print(ended.code, "torch" in sys.modules)
"""


def test_a_whole_examination_does_without_torch(relay: Relay) -> None:
    if may_have_cuda("", sys.platform):
        pytest.skip("only torch knows whether the CUDA device here can be used")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={"LIPT_COORDINATOR": relay.address},
        timeout=60,
    )
    report, ended = done.stdout.splitlines()
    assert ended == "0 False"
    assert "data" in {check["name"] for check in json.loads(report)["checks"]}


def test_torch_is_imported_where_that_is_asked_for(lipt: Any) -> None:
    assert "torch was not imported" not in lipt("doctor", "--thorough").stdout


@pytest.mark.parametrize(
    ("torch", "requirement", "fitting"),
    [
        ("2.15.0", "torch (>=2.14.0)", True),
        ("2.15.0+cu130", "torch==2.15.0", True),
        ("2.15.1", "torch==2.15.0", False),
        ("2.9.0", "torch>=2.14.0", False),  # as numbers, not as text
        ("2.15.0", "numpy", False),  # nobody says
        ("2.15.0", "torch~=2.15", False),
        ("", "torch>=2.14.0", False),
    ],
)
def test_torchvision_says_which_torch_fits(torch: str, requirement: str, *, fitting: bool) -> None:
    assert fits({"torch": torch}, ["pillow>=5.3", requirement]) is fitting


@pytest.mark.parametrize(
    ("torch", "platform", "driver", "expected"),
    [
        ("2.15.0", "linux", False, False),
        ("2.15.0", "linux", True, True),
        ("2.15.0+cpu", "linux", True, False),
        ("2.15.0", "darwin", False, False),
        ("2.15.0", "win32", False, True),  # nobody knows
    ],
)
def test_a_cuda_device_may_be_there_where_a_driver_is(
    tmp_path: Path, torch: str, platform: str, *, driver: bool, expected: bool
) -> None:
    trace = tmp_path / "driver"
    if driver:
        trace.touch()
    assert may_have_cuda(torch, platform, [str(trace)]) is expected


def test_where_versions_do_not_fit_torch_is_imported_to_find_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "_requirements", lambda _: ["torch==2.14.0"])
    assert "threads" in device_check(VERSIONS, thorough=False).detail
    monkeypatch.setattr(device, "_requirements", lambda _: ["torch==2.15.0"])
    assert "torch was not imported" in device_check(VERSIONS, thorough=False).detail
