from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import ConfigError
from lipt.trainer.cli.overrides import (
    collect_overrides,
    parse_assignment,
    parse_names,
    parse_options,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("learners.num_steps=5", 5),
        ("learners.learning_rate=0.05", 0.05),
        ("learners.learning_rate=5e-2", 0.05),
        ("soup.reestimate_batch_norm=false", False),
        ("model=resnet8", "resnet8"),
        ('model="resnet8"', "resnet8"),
        ("model=torchvision:wide_resnet50_2", "torchvision:wide_resnet50_2"),
        ("model=a=b", "a=b"),
        ("model= resnet8 ", "resnet8"),
        ("model=", ""),
        ("model=a\nb=2", "a\nb=2"),
    ],
)
def test_values_are_read_as_toml_or_as_text(text: str, value: Any) -> None:
    assert parse_assignment(text) == (text.partition("=")[0], value)


@pytest.mark.parametrize("text", ["learners.num_steps", "=5", "learners.=5", ".num_steps=5", ""])
def test_a_text_without_a_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not NAME=VALUE"):
        parse_assignment(text)


def test_options_stay_text() -> None:
    assert parse_options(["norm = full", "size=1"]) == {"norm": "full", "size": "1"}
    with pytest.raises(ConfigError, match="'lipt strategies' lists them"):
        parse_options(["norm"])


def test_names_have_commas_between_them() -> None:
    assert parse_names(" craig,grand ,") == ("craig", "grand")
    with pytest.raises(ConfigError, match=r"' , ' names nothing: give at least one name"):
        parse_names(" , ")


def test_flags_and_assignments_lie_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        'listen = "x:1"\n[run]\nmodel = "resnet18"\nseed = 1\n'
        "[run.learners]\nnum_steps = 3\nbatch_size = 64\n"
    )
    flags = {"model": "resnet8", "seed": None, "learners.num_steps": 7}
    assert collect_overrides(flags, ["learners.momentum=0.5"], config) == {
        "model": "resnet8",
        "seed": 1,
        "learners": {"num_steps": 7, "batch_size": 64, "momentum": 0.5},
    }


@pytest.mark.parametrize(
    ("flags", "assignments", "complaint"),
    [
        ({"seed": 1}, ["seed=2"], "seed was given twice: 1 and 2"),
        ({}, ["seed=1", "seed=1"], "seed was given twice"),
        ({}, ["learners=1", "learners.num_steps=2"], "a value, so it is no group. Drop one"),
        ({}, ["learners.num_steps=2", "learners=1"], "learners is a group, .* too. Drop one"),
    ],
)
def test_contradictions_are_refused(
    flags: dict[str, Any], assignments: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        collect_overrides(flags, assignments, None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [('model = "resnet8"', r"has no \[run\] table"), ("[run", "is not TOML")],
)
def test_a_file_that_says_nothing_of_a_run_is_refused(
    text: str, complaint: str, tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        collect_overrides({}, [], config)
