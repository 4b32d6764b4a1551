from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.states import RunState
from lipt.trainer.cli.demo.experiment import DemoResult, SubsetResult
from lipt.trainer.cli.demo.known_errors import FoundErrors
from lipt.trainer.cli.demo.report import report_lines, spread
from lipt.trainer.comparison.intervals import Difference
from lipt.trainer.views import DatasetView, SoupView
from tests.trainer.made_up import made_up_outcome, made_up_run


@pytest.mark.parametrize(
    ("counts", "text"),
    [([18, 18], "18 each"), ([0, 40, 7], "0 to 40"), ([], "-")],
)
def test_the_spread_of_classes(counts: list[int], text: str) -> None:
    assert spread(counts) == text


def test_the_report_sets_accuracies_and_subsets_side_by_side_and_ends_with_the_verdict() -> None:
    run = made_up_run(state=RunState.READY, soup=SoupView(0.1, 0.375, 0.5, 0.625, 1, 200))
    file = Path("lipt-demo/subset-grand.npy")
    outcome = made_up_outcome(
        strategy="grand", difference=Difference(-0.4, -0.42, -0.38), bytes_sent=3_500_000
    )
    result = DemoResult(
        dataset=DatasetView("digits", 1797, ("0", "1"), (900, 897), "abc", (1, 8, 8)),
        found=FoundErrors(1797, 90, 20, 19, 100, 70),
        run=run,
        subsets=(SubsetResult("grand", 180, (90, 90), 36, "ab" * 32, (file,)),),
        outcomes=(outcome,),
        verdict="At 10% grand does not beat random.\nChoosing cost 5 s.",
        files=(file,),
        report=Path("lipt-demo/report.html"),
        diagnosis=Path("lipt-demo/diagnosis.html"),
        seconds=12.34,
    )
    lines = report_lines(result)
    assert "digits: 1797 examples, 1x8x8 images, 2 classes" in lines
    assert (
        "90 of 1797 labels are wrong on purpose. The diagnosis, which is not told of them, "
        "suspects 100 labels: 70 of these are wrong, and 19 of the first 20."
    ) in lines
    assert "soup (theta_p)  62.5%" in lines
    assert "mean learner    37.5%" in lines
    assert [line.split() for line in lines if line.startswith("grand")] == [
        ["grand", "180", "90", "each", "36", "abababababab", str(file)]
    ]
    (row,) = (line for line in lines if line.startswith("10% "))
    assert "50.0% +- 1.0" in row
    assert "-40.0 (-42.0 to -38.0)" in row
    assert "3.5 MB" in row
    assert lines[lines.index(row) + 1 :] == [
        "",
        "Intervals are over the seeds of the whole pipeline.",
        "",
        "At 10% grand does not beat random.",
        "Choosing cost 5 s.",
        "",
        "diagnosis: lipt-demo/diagnosis.html",
        "report: lipt-demo/report.html",
        "done in 12.3 s",
    ]
    assert f"wrote {file}" in lines
