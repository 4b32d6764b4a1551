import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reproduction.cells import SCALES, Cell, Claim, Row, Table, with_defaults
from benchmarks.reproduction.page import compared
from benchmarks.reproduction.tables import tables
from benchmarks.reproduction.training import Result
from lipt.common.config.run_config import RunConfig

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def bench(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "paper.py"), *arguments]
    where = ["--folder", str(folder / "paper"), "--work", str(folder / "work")]
    given = ["--scale", "tiny", "--seeds", "1", *where]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_is_measured_by_the_service_and_resumes(tmp_path: Path) -> None:
    first = bench(tmp_path, "C", "--minutes", "0")
    assert first.count("26 of 26 trainings are missing") == 1
    # A training may fail on a busy machine: the next call goes on where this one was.
    for _ in range(2):
        bench(tmp_path, "3", "--jobs", "2")
    rows = (tmp_path / "paper" / "tiny.jsonl").read_text().splitlines()
    # Four rows and three baselines at two fractions, and everything.
    assert len(rows) == 4 * 2 + 3 * 2 + 1
    again = bench(tmp_path, "3", "--page")
    assert "0 of 15 trainings are missing" in again
    page = (tmp_path / "paper.md").read_text()
    assert "**merging, pruning** against **merging**" in page
    assert "One seed decides nothing." in page


CPU = SCALES["cpu"]
CELL = Cell("cpu", "grand", 0.1, "lipt")
RESULT = Result(0.5, 100, 10, 30.0, looks=((5, 10.0, 0.4), (10, 20.0, 0.5)), digest="d")
OTHER = Cell("cpu", "uniform_per_class", 0.1)
TABLE = Table(
    "T",
    "A table",
    "Is it so?",
    (0.1, 0.2),
    (Row("better", CELL, {0.1: 60.0, 0.2: 80.0}), Row("worse", OTHER, {0.1: 50.0, 0.2: 60.0})),
    claims=(Claim("better", "worse"),),
)
FACTS = {"commit": "abc", "machine": "a machine", "torch": "2", "load": 1.0}


def measured(accuracies: dict[Cell, float]) -> dict[Cell, dict[str, Any]]:
    return {
        cell: {**vars(replace(RESULT, accuracy=accuracy)), **FACTS}
        for cell, accuracy in accuracies.items()
    }


@pytest.mark.parametrize("name", list(SCALES))
def test_every_run_of_every_table_has_a_valid_config(name: str) -> None:
    scale = SCALES[name]
    for table in tables(scale).values():
        for cell in table.cells([0]):
            RunConfig.model_validate(with_defaults(cell, scale.run, cell.seed, scale.model))


def test_a_claim_is_the_mean_of_paired_differences() -> None:
    accuracies = {
        replace(row.cell, fraction=fraction, seed=seed): base + 0.1 * seed + fraction
        for (row, base), fraction, seed in product(
            ((TABLE.rows[0], 0.31), (TABLE.rows[1], 0.3)), (0.1, 0.2), (0, 1)
        )
    }
    accuracies[replace(CELL, fraction=0.2, seed=1)] += 0.04
    found = compared(TABLE, TABLE.claims[0], measured(accuracies))
    assert found is not None
    # By 1 point with the first seed, and by the mean of 1 and 5 with the second.
    assert found.points.mean == pytest.approx(2.0)
    assert (found.num_above, found.num_fractions) == (2, 2)
    assert found.in_paper == pytest.approx(15.0)
    assert "neither shown nor refuted" in found.sentence
    one = compared(TABLE, TABLE.claims[0], measured({CELL: 0.5, OTHER: 0.4}))
    assert one is not None
    assert "One seed decides nothing" in one.sentence
    assert compared(TABLE, TABLE.claims[0], measured({CELL: 0.5})) is None
