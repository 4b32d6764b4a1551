from __future__ import annotations

from pathlib import Path

import pytest

from lipt.trainer.conversion import run_view
from lipt.trainer.demo.pipeline import DemoResult, SubsetResult
from lipt.trainer.demo.report import report_lines, spread
from lipt.trainer.views import DatasetView
from lipt.v1 import run_pb2


@pytest.mark.parametrize(
    ("counts", "text"),
    [([18, 18], "18 each"), ([0, 40, 7], "0 to 40"), ([], "-")],
)
def test_the_spread_of_classes(counts: list[int], text: str) -> None:
    assert spread(counts) == text


def test_the_report_sets_accuracies_and_subsets_side_by_side() -> None:
    soup = run_pb2.SoupReport(
        initial_accuracy=0.1,
        mean_learner_accuracy=0.375,
        best_learner_accuracy=0.5,
        soup_accuracy=0.625,
    )
    run = run_view(run_pb2.Run(run_id="r", name="demo", state=run_pb2.RUN_STATE_READY, soup=soup))
    file = Path("lipt-demo/subset-grand.npy")
    result = DemoResult(
        dataset=DatasetView("digits", 1797, ("0", "1"), (900, 897), "abc", (1, 8, 8)),
        run=run,
        subsets=(SubsetResult("grand", 180, (90, 90), "ab" * 32, (file,)),),
        files=(file,),
        seconds=12.34,
    )
    lines = report_lines(result)
    assert "digits: 1797 images 1x8x8, 2 classes" in lines
    assert "soup (theta_p)  62.5%" in lines
    assert "mean learner    37.5%" in lines
    assert [line.split() for line in lines if line.startswith("grand")] == [
        ["grand", "180", "90", "each", "abababababab", str(file)]
    ]
    assert lines[-2:] == [f"wrote {file}", "done in 12.3 s"]
