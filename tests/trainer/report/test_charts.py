"""Charts of a run in the report: their geometry, and their text for those who do not see them."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from lipt.trainer.report.charts import BOTTOM, LEFT, RIGHT, TOP, apart, loss_chart, soup_chart
from lipt.trainer.views import LearnerView
from tests.trainer.made_up import KEPT, made_up_learner


def learner(index: int, losses: Any = (), steps: Any = (), **ingredient: Any) -> LearnerView:
    part = replace(KEPT, **ingredient) if ingredient else None
    return made_up_learner(index, losses=losses, loss_steps=steps, ingredient=part)


def test_losses_are_lines_from_zero_to_a_round_number() -> None:
    chart = loss_chart([learner(3, (2.1, 0.6), (1, 10)), learner(0), learner(1, (1.2,), (5,))])
    assert chart is not None
    assert [tick.text for tick in chart.ticks] == ["0", "0.6", "1.2", "1.8", "2.4"]
    assert (chart.ticks[0].y, chart.ticks[-1].y) == (BOTTOM, TOP)
    assert [line.name for line in chart.lines] == ["1", "3"]
    assert chart.lines[0].points == f"{(LEFT + RIGHT) / 2},{(TOP + BOTTOM) / 2}"
    assert (
        chart.lines[1].points
        == f"{LEFT + (RIGHT - LEFT) / 10},{BOTTOM - 180 * 7 / 8} {RIGHT},149.0"
    )
    assert (chart.last_step, chart.num_left_out) == (10, 0)
    assert chart.summary == (
        "Losses in training: learner 1 from 1.200 to 1.200; learner 3 from 2.100 to 0.600."
    )


def test_of_many_learners_the_first_are_drawn_with_names_apart() -> None:
    chart = loss_chart([learner(index, (1.0, 0.5), (1, 2)) for index in range(20)])
    assert chart is not None
    assert (len(chart.lines), chart.num_left_out) == (12, 8)
    heights = sorted(line.name_y for line in chart.lines)
    gaps = [below - above for above, below in itertools.pairwise(heights)]
    assert gaps == pytest.approx([13.0] * 11)
    # The lowest stays; one that is far enough from it stays as well.
    assert apart([100.0, 98.0, 50.0]) == [100.0, 87.0, 50.0]


def test_the_soup_grows_in_the_order_in_which_learners_were_tried() -> None:
    chart = soup_chart(
        [
            learner(0, accuracy=0.5, soup_accuracy=0.7, position=1, kept=False),
            learner(1, accuracy=0.6, soup_accuracy=0.6, position=0),
            learner(2),
        ]
    )
    assert chart is not None
    assert [(dot.name, dot.kept) for dot in chart.dots] == [("1", True), ("0", False)]
    xs = [float(point.split(",")[0]) for point in chart.points.split()]
    assert xs == [LEFT, (LEFT + RIGHT) / 2, (LEFT + RIGHT) / 2, RIGHT]
    ys = [float(point.split(",")[1]) for point in chart.points.split()]
    assert ys[0] == ys[1] > ys[2] == ys[3]
    assert [tick.text for tick in chart.ticks] == ["48.0%", "54.0%", "60.0%", "66.0%", "72.0%"]
    assert "60.0% after the first of 2 learners, 70.0% after the last; 1 kept" in chart.summary


def test_without_figures_there_is_no_chart() -> None:
    assert loss_chart([learner(0)]) is None
    assert soup_chart([learner(0)]) is None
