"""Suggestions for settings that there are not."""

from __future__ import annotations

import pytest

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import (
    closest,
    did_you_mean,
    setting_names,
    validate,
)
from lipt.common.errors import ConfigError
from lipt.trainer.main_training.recipe import Recipe


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("lr", ("learners.learning_rate", "initialization.learning_rate")),
        ("learners.lr", ("learners.learning_rate", "initialization.learning_rate")),
        ("wd", ("learners.weight_decay",)),
        ("bs", ("learners.batch_size", "initialization.batch_size")),
        ("epochs", ("initialization.epochs",)),
        ("density_mn", ("pruning.density_min",)),
        ("learners.num_learnrs", ("learners.num_learners",)),
        ("pruning.num_learners", ("learners.num_learners",)),
        ("xyzzy", ()),
    ],
)
def test_names_that_were_meant(name: str, suggested: tuple[str, ...]) -> None:
    assert closest(name, setting_names(RunConfig))[: len(suggested) or 1] == suggested


def test_a_name_that_is_like_no_other_gets_no_question() -> None:
    assert did_you_mean("xyzzy", RunConfig) == ""
    assert did_you_mean("lr", Recipe) == "did you mean learning_rate?"


def test_a_recipe_s_setting_that_there_is_not_is_refused_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"did you mean learning_rate\?"):
        validate(Recipe, {"lr": 1})
