from __future__ import annotations

from lipt.common.states import LearnerState
from lipt.trainer.report.soup_plot import HEIGHT, WIDTH, in_soup_order, soup_by_learner
from lipt.trainer.views import IngredientView, LearnerView
from tests.trainer.made_up import made_up_learner


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


def test_learners_stand_as_the_soup_tried_them_and_the_others_last() -> None:
    learners = [learner(0, None), learner(1, 1), learner(2, None), learner(3, 0)]
    assert [item.index for item in in_soup_order(learners)] == [3, 1, 0, 2]


def test_a_bar_is_as_high_as_the_accuracy_and_the_soup_is_a_line_of_steps() -> None:
    plot = soup_by_learner([learner(0, 1, 0.25, 0.75), learner(1, 0, 0.5, 0.5), learner(2, None)])
    assert plot is not None
    first, second = plot.bars
    assert (first.kept, second.kept) == (True, False)
    assert first.title == "learner 1: 50.0%, kept, alpha 1; soup 50.0%"
    assert second.title == "learner 0: 25.0%, discarded; soup 75.0%"
    assert first.height == 2 * second.height
    assert first.y + first.height == second.y + second.height == plot.bottom
    assert [tick.label for tick in plot.x_ticks] == ["1", "0"]
    points = [tuple(map(float, point.split(","))) for point in plot.path.split()]
    (left, low), (middle, same), (again, high), (right, end) = points
    assert (left, right) == (plot.left, plot.right)
    assert middle == again
    assert low == same > high == end  # up is less
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)


def test_of_many_learners_only_some_are_labelled() -> None:
    plot = soup_by_learner([learner(index, index) for index in range(100)])
    assert plot is not None
    assert len(plot.bars) == 100
    assert [tick.label for tick in plot.x_ticks][:3] == ["0", "5", "10"]


def test_without_a_soup_there_is_no_plot() -> None:
    assert soup_by_learner([]) is None
    assert soup_by_learner([learner(0, None)]) is None
