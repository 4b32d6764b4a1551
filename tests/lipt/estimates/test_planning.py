from __future__ import annotations

import json
from typing import Any

import pytest

from lipt.common.errors import BudgetError, ConfigError, LiptError
from lipt.estimates import clock, measuring, trials
from lipt.estimates.planning import Question, plan
from lipt.estimates.table import format_seconds, lines_of
from lipt.estimates.work import Task
from lipt.trainer.writing.jsonable import to_jsonable

QUICK: dict[str, Any] = {
    "learners": {"num_learners": 2, "num_steps": 1, "batch_size": 16},
    "soup": {"num_alphas": 2, "batch_norm_examples": 32},
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured for as long as figures would need that are to be believed."""
    for module in (clock, measuring):
        monkeypatch.setattr(module, "SECONDS", 0.01)
    monkeypatch.setattr(trials, "_MOST_SECONDS", 0.01)


STAGES = ["index", "theta*", "shards", "learners", "soup", "signals", "selection", "subset"]


def test_counted_alone_everything_but_seconds_is_told() -> None:
    found = plan(Question("digits", overrides=QUICK, strategy="el2n"), measure=False)
    assert [row.stage for row in found.rows] == STAGES
    assert {row.seconds_high for row in found.rows} == {None}
    assert found.seconds_high is None
    assert found.measured == {}
    # 180 of 1,797.
    assert "180 by el2n" in found.subject
    assert "nothing was measured" in " ".join(lines_of(found))


@pytest.mark.parametrize(
    ("source", "strategy"),
    [("digits", "craig"), ("digits", "glister"), ("digits", "auto"), ("features", "grand")],
)
def test_measured_every_stage_has_seconds(source: str, strategy: str, tmp_path: Any) -> None:
    if source == "features":
        path = tmp_path / "table.csv"
        rows = "\n".join(f"{row % 7},{row % 3}.5,{row % 2}" for row in range(200))
        path.write_text(f"a,b,c\n{rows}\n")
        source = f"csv:{path}?label=c"
    found = plan(Question(source, overrides=QUICK, strategy=strategy))
    for row in found.rows:
        assert row.seconds_low is not None
        assert row.seconds_high is not None
        assert 0 <= row.seconds_low <= row.seconds_high
    assert found.seconds_low == pytest.approx(sum(row.seconds_low or 0 for row in found.rows))
    assert Task.TRAINING.value in found.measured
    # As scripts have it: no NaN, and nothing that JSON has not.
    json.dumps(to_jsonable(found), allow_nan=False)


def test_more_workers_share_the_learners() -> None:
    found = plan(Question("digits", overrides=QUICK, strategy="uniform"))
    assert found.learners_seconds[2] == pytest.approx(found.learners_seconds[1] / 2)


def test_what_cannot_be_tried_has_no_seconds_and_says_so() -> None:
    found = plan(Question("digits", overrides=QUICK, strategy="disagreement"))
    seconds = {row.stage: row.seconds_high for row in found.rows}
    assert seconds["selection"] is None
    assert seconds["soup"] is not None
    assert "no piece can be measured before there are learners" in " ".join(lines_of(found))


def test_defaults_are_fitted_to_the_data_as_a_coordinator_fits_them() -> None:
    found = plan(Question("digits", model="resnet8", strategy="uniform"), measure=False)
    assert "learners.batch_size 159 in place of 256" in found.fitted
    assert found.fitted in "\n".join(lines_of(found))


@pytest.mark.parametrize(
    ("question", "error", "words"),
    [
        (Question("digits", strategy="best"), LiptError, "there is no strategy 'best'"),
        (Question("digits", fraction=2.0), BudgetError, "fraction 2.0 is outside"),
        (
            Question("digits", overrides={"learners": {"num_learners": 5000}}),
            ConfigError,
            "5000 learners x 1 minibatches",
        ),
        (
            Question("digits", overrides={"learners": {"learners": 3}}),
            ConfigError,
            "learners",
        ),
        (Question("nothing"), LiptError, "nothing"),
    ],
)
def test_what_the_service_refuses_is_refused_in_its_words(
    question: Question, error: type[LiptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        plan(question, measure=False)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (None, None, "-"),
        (0.001, 0.002, "<0.1"),
        (1.0, 1.04, "1"),
        (12.3, 12.4, "12"),
        (12.0, 48.7, "12 to 49"),
        (0.04, 0.25, "<0.1 to 0.25"),
        (812.0, 1290.0, "810 to 1300"),
    ],
)
def test_seconds_are_told_in_two_digits(low: float | None, high: float | None, text: str) -> None:
    assert format_seconds(low, high) == text
