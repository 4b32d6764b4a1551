from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.value.cells import PROXIES, STRATEGIES, UNLABELLED, Cell, all_cells
from benchmarks.value.tables import page
from benchmarks.value.training import Result, Results

pytestmark = pytest.mark.slow

CELL = Cell("digits", "clean", 0.1, "uniform_per_class", "", "short", "resnet8", 0)


def cells(**given: object) -> list[Cell]:
    chosen = {
        "data": ["digits"],
        "settings": ["clean"],
        "fractions": [0.1, 0.3],
        "strategies": STRATEGIES,
        "proxies": PROXIES,
        "recipes": ["short"],
        "models": ["resnet8"],
        "seeds": range(2),
    }
    return list(all_cells(**(chosen | given)))  # type: ignore[arg-type]


def result(accuracy: float) -> Result:
    return Result(accuracy, 1.0, 100, 0.25, 0.0, "digest", 12.0)


def test_every_cell_stands_once_and_seeds_come_last() -> None:
    found = cells()
    assert len(set(found)) == len(found)
    assert [cell.seed for cell in found] == sorted(cell.seed for cell in found)
    assert sum(cell.strategy == "everything" for cell in cells(seeds=[0])) == 1
    unlabelled = cells(settings=["clean", "noise40"], strategies=UNLABELLED)
    assert {cell.setting for cell in unlabelled} == {"clean"}


def test_a_proxy_is_varied_only_where_it_matters() -> None:
    by_strategy: dict[str, set[str]] = {}
    for cell in cells():
        by_strategy.setdefault(cell.strategy, set()).add(cell.proxy)
    assert by_strategy["uniform_per_class"] == by_strategy["oracle"] == {""}
    assert by_strategy["auto"] == {"auto", "ridge:learners", "ridge:patches"}
    assert by_strategy["craig"] == {"soup", "ridge:learners", "ridge:patches"}
    assert by_strategy["dual"] == {"soup"}


def test_a_line_that_was_cut_in_two_is_done_again_and_spoils_no_other(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(CELL, result(0.5))
    path = tmp_path / "digits.jsonl"
    path.write_bytes(path.read_bytes() + b'{"data": "digits", "sett')
    results.add(replace(CELL, seed=1), result(0.6))
    assert sorted(cell.seed for cell in results.read()) == [0, 1]


def test_a_row_is_compared_with_random_of_the_same_seeds() -> None:
    better = replace(CELL, strategy="auto", proxy="auto")
    found = {
        **{replace(CELL, seed=seed): value for seed, value in enumerate((0.50, 0.60))},
        **{replace(better, seed=seed): value for seed, value in enumerate((0.54, 0.66))},
    }
    rows = {cell: vars(result(accuracy)) for cell, accuracy in found.items()}
    text = page(rows, [*rows, replace(CELL, seed=2)])
    # Differences 4 and 6 points: mean 5, deviation sqrt 2, t of one degree 12.706.
    line = next(line for line in text.splitlines() if "| auto | auto |" in line)
    assert "60.0% +- 8.5 | +5.0 (-7.7 to +17.7) | 25.0% |" in line
    assert "- digits, short main training of resnet8: 1 of 5 trainings" in text
