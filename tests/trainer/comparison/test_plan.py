from __future__ import annotations

from typing import Any

import pytest

from lipt.common.errors import ConfigError
from lipt.trainer.comparison.baselines import label, require_baselines
from lipt.trainer.comparison.plan import Plan, training_seed
from lipt.trainer.comparison.trial import Cell
from lipt.trainer.main_training import Recipe


def plan(**changes: Any) -> Plan:
    given: dict[str, Any] = {
        "strategies": ("craig",),
        "fractions": (0.1, 0.3),
        "seeds": (0, 1),
        "model": "resnet8",
        "recipe": Recipe(steps=3),
    }
    return Plan(**given | changes)


def rows(found: Plan) -> list[tuple[str, float, int]]:
    return [(cell.strategy, cell.fraction, cell.every) for cell in found.cells(0)]


def test_everything_is_trained_on_once_and_the_rest_for_each_fraction() -> None:
    assert rows(plan()) == [
        ("everything", 1.0, 0),
        ("uniform", 0.1, 0),
        ("uniform_per_class", 0.1, 0),
        ("redrawn", 0.1, 1),
        ("craig", 0.1, 0),
        ("uniform", 0.3, 0),
        ("uniform_per_class", 0.3, 0),
        ("redrawn", 0.3, 1),
        ("craig", 0.3, 0),
    ]


def test_what_is_chosen_again_has_random_re_drawn_as_often_beside_it() -> None:
    assert rows(plan(fractions=(0.1,), every=5, baselines=("uniform", "redrawn"))) == [
        ("uniform", 0.1, 0),  # stays
        ("redrawn", 0.1, 1),
        ("redrawn", 0.1, 5),
        ("craig", 0.1, 5),
    ]
    again = rows(plan(fractions=(0.1,), every=1, baselines=("redrawn",)))
    assert again == [("redrawn", 0.1, 1), ("craig", 0.1, 1)]


def test_baselines_may_be_left_out_and_a_random_one_asked_for_is_trained_on_once() -> None:
    found = plan(
        fractions=(0.1,), strategies=("uniform", "craig"), baselines=("uniform_per_class",)
    )
    names = [("uniform_per_class", 0.1, 0), ("uniform", 0.1, 0), ("craig", 0.1, 0)]
    assert rows(found) == names
    assert found.all_strategies() == ("uniform_per_class", "uniform", "craig")


def test_every_training_seed_has_all_of_them() -> None:
    cells = list(plan(fractions=(0.1,), training_seeds=2, baselines=("uniform",)).cells(7))
    assert cells == [
        Cell(7, "uniform", 0.1, 0, 0),
        Cell(7, "craig", 0.1, 0, 0),
        Cell(7, "uniform", 0.1, 0, 1),
        Cell(7, "craig", 0.1, 0, 1),
    ]


def test_the_first_training_has_the_pipelines_seed_and_the_others_one_of_their_own() -> None:
    assert training_seed(3, 0) == 3
    found = {training_seed(seed, repeat) for seed in range(3) for repeat in range(3)}
    assert len(found) == 9


def test_a_baseline_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        require_baselines(("uniform", "rs2"))
    assert str(refused.value) == (
        "there is no baseline 'rs2'. Choose from: uniform, uniform_per_class, redrawn, everything"
    )


@pytest.mark.parametrize(
    ("strategy", "every", "text"),
    [
        ("uniform", 0, "random (uniform)"),
        ("redrawn", 1, "random re-drawn every epoch"),
        ("redrawn", 5, "random re-drawn every 5 epochs"),
        ("everything", 0, "everything"),
        ("craig", 0, "craig"),
        ("craig", 5, "craig chosen again every 5 epochs"),
    ],
)
def test_rows_are_called_what_a_newcomer_understands(strategy: str, every: int, text: str) -> None:
    assert label(strategy, every) == text
