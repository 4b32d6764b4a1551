import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def bench(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "paper.py"), *arguments]
    where = ["--folder", str(folder / "paper"), "--work", str(folder / "work")]
    given = ["--scale", "tiny", "--seeds", "1", *where]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_is_measured_by_the_service_and_goes_on_where_it_was(tmp_path: Path) -> None:
    first = bench(tmp_path, "C", "--minutes", "0")
    assert first.count("26 of 26 trainings are missing") == 1
    bench(tmp_path, "3", "--jobs", "2")
    rows = (tmp_path / "paper" / "tiny.jsonl").read_text().splitlines()
    # Four rows and three baselines at two fractions, and everything.
    assert len(rows) == 4 * 2 + 3 * 2 + 1
    again = bench(tmp_path, "3", "--page")
    assert "0 of 15 trainings are missing" in again
    page = (tmp_path / "paper.md").read_text()
    assert "**merging, pruning** against **merging**" in page
    assert "One seed decides nothing." in page
    assert (tmp_path / "paper" / "tiny-3.svg").exists()
