from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.config.run_config import RunConfig
from lipt.common.states import LearnerState
from lipt.trainer.comparison.outcomes import Difference, Outcome
from lipt.trainer.main_training.records import Look
from lipt.trainer.report.page import in_soup_order, render
from lipt.trainer.report.plot import (
    HEIGHT,
    WIDTH,
    ExampleMap,
    Point,
    draw,
    interval_scale,
    nice_ticks,
)
from lipt.trainer.report.report import Report
from lipt.trainer.views import InfoView, IngredientView, LearnerView
from tests.trainer.made_up import made_up_learner, made_up_outcome, made_up_run

INFO = InfoView((1, 0), {}, "cpu", None, RunConfig(model="resnet8"), ())
COST, SOUP = "Accuracy against total seconds", "Validation accuracy learner by learner"
STRIP = "interval around the difference"


def drawn(
    label: str, rows: Sequence[Outcome] = (), learners: Sequence[LearnerView] = ()
) -> list[ET.Element]:
    """The drawings of that label on the page."""
    run = made_up_run(learners=tuple(learners))
    page = render(Report(run, INFO, (), tuple(rows), (), "", None))
    found = re.findall(rf'<svg[^>]*aria-label="{label}">.*?</svg>', page, re.DOTALL)
    return [ET.fromstring(drawing) for drawing in found]


def number(element: ET.Element, name: str) -> float:
    return float(element.attrib[name])


def box(drawing: ET.Element) -> tuple[float, float]:
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    return width, height


def learner(
    index: int, position: int | None, accuracy: float = 0.5, soup: float = 0.6
) -> LearnerView:
    ingredient = None
    if position is not None:
        ingredient = IngredientView(
            position=position,
            accuracy=accuracy,
            soup_accuracy=soup,
            alpha=1.0 if position == 0 else 0.0,
            kept=position == 0,
        )
    state = LearnerState.DONE if ingredient else LearnerState.DROPPED
    return made_up_learner(index, state=state, ingredient=ingredient)


def outcome(strategy: str, accuracy: float, seconds: float, fraction: float = 0.1) -> Outcome:
    random = strategy == "uniform"
    return made_up_outcome(
        strategy=strategy,
        fraction=fraction,
        mean_accuracy=accuracy,
        difference=None if random else Difference(0.0, -0.1, 0.1),
        total_seconds=seconds,
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.71, 0.93, [0.7, 0.75, 0.8, 0.85, 0.9, 0.95]),
        (3, 3, [3, 4]),
        (0, 0, [0, 0.2]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_ticks_span_the_values_and_are_few(one: float, other: float) -> None:
    low, high = sorted((one, other))
    ticks = nice_ticks(low, high)
    slack = 1e-6 * max(1.0, high)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8


def test_points_lie_inside_with_higher_accuracy_further_up() -> None:
    rows = [outcome("uniform", 0.7, 10), outcome("craig", 0.8, 20), outcome("craig", 0.9, 40, 0.3)]
    (plot,) = drawn(COST, rows)
    width, height = box(plot)
    assert width == WIDTH
    assert [group.attrib["class"] for group in plot.iter("g")] == ["mark s0 random", "mark s1"]
    points = list(plot.iter("circle"))
    assert [point.findtext("title") for point in points] == [
        "random (uniform), 10%: 70.0% in 10 s",
        "craig, 10%: 80.0% in 20 s",
        "craig, 30%: 90.0% in 40 s",
    ]
    xs = [number(point, "cx") for point in points]
    ys = [number(point, "cy") for point in points]
    assert ys == sorted(ys, reverse=True)
    assert xs == sorted(xs)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in zip(xs, ys, strict=True))
    bars = [bar for group in plot.iter("g") for bar in group.iter("line")]
    assert all(number(bar, "y2") < y < number(bar, "y1") for bar, y in zip(bars, ys, strict=True))


COURSE = "Accuracy over the course of training"


def test_the_course_of_training_rises_to_the_right_with_everything_beside_each_fraction() -> None:
    looks = (Look(10, 5.0, 0.5), Look(20, 6.0, 0.75))
    craig = replace(outcome("craig", 0.8, 6), course=looks)
    all_of_it = replace(outcome("everything", 0.8, 2, 1.0), course=(Look(20, 1.0, 0.7),))
    rows = [craig, replace(craig, fraction=0.3), all_of_it]
    first, second = drawn(COURSE, rows)
    titles = [point.findtext("title") for point in first.iter("circle")]
    assert titles == [
        "craig, step 10: 50.0% in 5.0 s",
        "craig, step 20: 75.0% in 6.0 s",
        "everything, step 20: 70.0% in 1.0 s",
    ]
    xs = [number(point, "cx") for point in first.iter("circle")]
    assert xs[2] < xs[0] < xs[1]
    ys = [number(point, "cy") for point in first.iter("circle")]
    assert ys[1] < ys[2] < ys[0]  # up is less
    assert [group.attrib["class"] for group in second.iter("g")] == ["mark s0", "mark s1 random"]


def test_without_looks_no_course_is_drawn() -> None:
    assert drawn(COURSE, [outcome("craig", 0.8, 1)]) == []


def test_intervals_lie_on_one_scale_that_holds_zero() -> None:
    craig, grand = outcome("craig", 0.8, 1), outcome("grand", 0.5, 1)
    rows = [
        outcome("uniform", 0.7, 1),
        replace(craig, difference=Difference(0.2, 0.1, 0.3)),
        replace(grand, difference=Difference(-0.05, -0.1, 0.0)),
    ]
    # Random has none. From -0.1 to 0.3: zero is at a quarter.
    above, below = map(strip, drawn(STRIP, rows))
    assert above == pytest.approx((25, 50, 75, 100))
    assert below == pytest.approx((25, 0, 12.5, 25))


def strip(drawing: ET.Element) -> tuple[float, float, float, float]:
    """Where zero, the lower end, the mean and the upper end are drawn."""
    zero, span = drawing.iter("line")
    (mean,) = drawing.iter("circle")
    return number(zero, "x1"), number(span, "x1"), number(mean, "cx"), number(span, "x2")


def test_one_seed_has_no_interval_to_draw() -> None:
    alone = replace(outcome("craig", 0.8, 1), difference=Difference(0.1, -inf, inf))
    assert drawn(STRIP, [alone]) == []


def test_intervals_of_no_width_are_drawn_at_zero() -> None:
    flat = replace(outcome("craig", 0.8, 1), difference=Difference(0.0, 0.0, 0.0))
    assert interval_scale([flat])(0.0) == 0.0
    assert list(map(strip, drawn(STRIP, [flat]))) == [(0.0, 0.0, 0.0, 0.0)]


def test_learners_stand_as_the_soup_tried_them_and_the_others_last() -> None:
    learners = [learner(0, None), learner(1, 1), learner(2, None), learner(3, 0)]
    assert [item.index for item in in_soup_order(learners)] == [3, 1, 0, 2]


def test_a_bar_is_as_high_as_the_accuracy_and_the_soup_is_a_line_of_steps() -> None:
    learners = [learner(0, 1, 0.25, 0.75), learner(1, 0, 0.5, 0.5), learner(2, None)]
    (plot,) = drawn(SOUP, learners=learners)
    first, second = plot.iter("rect")
    assert (first.attrib["class"], second.attrib["class"]) == ("learner kept", "learner")
    assert first.findtext("title") == "learner 1: 50.0%, kept, alpha 1; soup 50.0%"
    assert second.findtext("title") == "learner 0: 25.0%, discarded; soup 75.0%"
    assert number(first, "height") == 2 * number(second, "height")
    zero, *_ = plot.iter("line")
    for bar in (first, second):
        assert number(bar, "y") + number(bar, "height") == number(zero, "y1")
    assert x_labels(plot) == ["1", "0"]
    (line,) = plot.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    (left, low), (middle, same), (again, high), (right, end) = points
    assert (left, right) == (number(zero, "x1"), number(zero, "x2"))
    assert middle == again
    assert low == same > high == end  # up is less
    width, height = box(plot)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def x_labels(plot: ET.Element) -> list[str]:
    """The texts in the middle below their places, without the axis's own."""
    middle = [text for text in plot.iter("text") if text.attrib["text-anchor"] == "middle"]
    return [text.text or "" for text in middle if "class" not in text.attrib]


def test_of_many_learners_only_some_are_labelled() -> None:
    (plot,) = drawn(SOUP, learners=[learner(index, index) for index in range(100)])
    assert len(list(plot.iter("rect"))) == 100
    assert x_labels(plot)[:3] == ["0", "7", "14"]


def test_without_a_soup_there_is_no_plot() -> None:
    assert drawn(SOUP) == []
    assert drawn(SOUP, learners=[learner(0, None)]) == []


def test_points_fill_the_map_and_keep_their_proportions() -> None:
    ids = torch.tensor([4, 7, 9])
    corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    drawn = draw(ids, np.arange(10), corners, "a test")  # three are not moved
    assert drawn.seen_by == "a test"
    assert [(point.row, point.label) for point in drawn.points] == [(4, 4), (7, 7), (9, 9)]
    assert all(0 < point.x < WIDTH and 0 < point.y < HEIGHT for point in drawn.points)
    places = np.array([(point.x, point.y) for point in drawn.points])
    first, second, third = (
        np.linalg.norm(places[a] - places[b]) for a, b in ((0, 1), (1, 2), (0, 2))
    )
    assert first / second == pytest.approx(2.0, abs=1e-4)
    assert third / second == pytest.approx(5**0.5, abs=1e-4)


def test_what_is_chosen_is_drawn_over_the_others() -> None:
    points = tuple(Point(row, row % 2, 0.0, 0.0) for row in range(4))
    layers = ExampleMap(points, "a test").layers({1, 2})
    assert [(layer.chosen, layer.label) for layer in layers] == [
        (False, 0),
        (False, 1),
        (True, 0),
        (True, 1),
    ]
    assert [[point.row for point in layer.points] for layer in layers] == [[0], [3], [2], [1]]
