from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[3] / "deploy" / "systemd").iterdir())
# The exposure that `systemd-analyze security` may find, times ten.
THRESHOLD = 30

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def test_there_is_a_unit_for_each_service() -> None:
    assert [unit.name for unit in UNITS] == ["lipt-coordinator.service", "lipt-worker@.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name
    # As after an installation into /opt/lipt, which need not be here.
    here.write_text(unit.read_text().replace("/opt/lipt/bin", str(Path(sys.executable).parent)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", here], capture_output=True, text=True, check=False
    )
    # Of other units that the machine has it says more.
    said = [line for line in done.stderr.splitlines() if "lipt" in line]
    assert (done.returncode, said) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_rates_the_exposure_low(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={THRESHOLD}", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
