from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pretraining_price.measurements import (
    Cell,
    Price,
    Row,
    add_row,
    measure,
    read_rows,
)
from benchmarks.pretraining_price.tables import Ratio, ratios

pytestmark = pytest.mark.slow

LIPT_STAGES = {"initialization": 1.0, "sharding": 0.5, "training": 4.0, "merging": 2.0}
# Of the tiny scale: 8 s to theta_p and 10 s to a subset, against 40 and 41 s.
OURS = Price(20.0, {**LIPT_STAGES, "signals and selection": 2.0}, 8.0, 10.0, 12.0, 3_000_000)
WARM_UP = Price(9.0, {"training": 40.0, "signals and selection": 1.0}, 40.0, 41.0, 60.0)


def row(price: Price) -> Row:
    return Row(price, "2 cores of a made-up machine", {"torch": "2.15"}, (0.1, 1.9), "2026-11-23")


def rows() -> dict[Cell, Row]:
    return {
        Cell("tiny", "lipt", 1): row(OURS),
        Cell("tiny", "epochs:2", 0): row(WARM_UP),
        # Of another scale, and so of no meaning beside these.
        Cell("full", "epochs:15", 0): row(replace(WARM_UP, pretrained_seconds=4000.0)),
    }


def test_written_rows_are_read_back_and_the_last_row_of_a_cell_counts(tmp_path: Path) -> None:
    path = tmp_path / "results" / "price.jsonl"
    assert read_rows(path) == {}
    cell, later = Cell("tiny", "lipt", 1), row(replace(OURS, cpu_seconds=13.0))
    for found in (row(OURS), row(WARM_UP), later):
        add_row(path, cell, found)
    add_row(path, Cell("tiny", "epochs:2", 0), row(WARM_UP))
    assert read_rows(path) == {cell: later, Cell("tiny", "epochs:2", 0): row(WARM_UP)}
    # A line that a kill has cut is none.
    path.write_text(path.read_text()[:-30])
    assert read_rows(path) == {cell: later}


def test_ratios_compare_measurements_of_one_round() -> None:
    assert ratios(rows(), "tiny") == [Ratio("epochs:2", 1, 5.0, 4.1, 5.0)]
    second = replace(OURS, pretrained_seconds=4.0, subset_seconds=4.1, cpu_seconds=6.0)
    # Without its warm-up, a round counts for nothing; with it, the median of 5 and 10 is 7.5.
    more = {**rows(), Cell("tiny", "lipt", 1, round=1): row(second)}
    assert ratios(more, "tiny") == [Ratio("epochs:2", 1, 5.0, 4.1, 5.0)]
    more[Cell("tiny", "epochs:2", 0, round=1)] = row(WARM_UP)
    found = ratios(more, "tiny")
    figures = [found[0].to_weights, found[0].to_subset, found[0].cpu]
    assert figures == pytest.approx([7.5, 7.05, 7.5])


def test_lipt_is_measured_with_real_processes(tmp_path: Path) -> None:
    price = measure(Cell("tiny", "lipt", 1), tmp_path)
    stages = {"initialization", "sharding", "training", "merging", "waiting"}
    assert price.stages.keys() == {*stages, "signals and selection"}
    assert sum(price.stages.values()) == pytest.approx(price.subset_seconds)
    assert price.pretrained_seconds < price.subset_seconds
    # Two learners of 32 digits, and their results.
    assert price.bytes_moved > 2 * 32 * 64
    assert list(tmp_path.iterdir()) == []
