"""`lipt.compare` for a target of texts: a pool in which two of three sources are wrong."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lipt
from lipt.common.errors import ConfigError, InvalidRequestError

QUICK: dict[str, Any] = {
    "run": {"initialization": {"steps": 20, "batch_size": 32}},
    "recipe": {"steps": 10},
    "fractions": [0.2],
    "device": "cpu",
    "progress": False,
}


def written(folder: Path, name: str, number: int, *, num_wrong: int = 0) -> str:
    draws = random.Random(name)
    lines = []
    for row in range(number):
        word = "".join(draws.choices("abcdef", k=3))
        answer = word.upper() if row % 3 >= num_wrong else "".join(draws.choices("ABCDEF", k=3))
        lines.append(json.dumps({"q": f"{word}=", "a": answer, "from": f"part {row % 3}"}))
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return f"jsonl:{folder}/{name}.jsonl?prompt=q&completion=a&max_length=10"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    folder = tmp_path_factory.mktemp("texts")
    pool = written(folder, "pool", 240, num_wrong=2)
    return pool, written(folder, "test", 60), written(folder, "target", 40)


def compared(names: tuple[str, str, str], **keywords: Any) -> lipt.Comparison:
    data, test, target = names
    return lipt.compare(
        data, test, "text:causal", target_data=target, strategies=["loss_drop"], **QUICK | keywords
    )


def test_every_row_has_the_loss_on_the_target_and_right_completions(
    names: tuple[str, str, str], tmp_path: Path
) -> None:
    out = tmp_path / "comparison.jsonl"
    found = compared(names, seeds=1, out=out)
    rows = {row.strategy: row for row in found.outcomes}
    assert list(rows) == ["untrained", "uniform", "loss_drop", "everything"]
    for row in found.outcomes:
        assert row.loss is not None
        assert row.loss.low < row.loss.mean < row.loss.high
        assert row.score_name == "token accuracy"
        assert row.exact_match is not None
        assert 0 <= row.exact_match <= row.mean_accuracy
    assert [rows[name].num_steps for name in rows] == [0, 10, 10, 10]
    assert "loss (95% interval)" in str(found)
    assert "exact match" in str(found)
    assert "no training" in str(found)
    assert "At 20% the best rival without a choice is " in found.verdict
    lines = out.read_text().splitlines()
    # The same call continues after what is in the file.
    assert compared(names, seeds=1, out=out).trials == found.trials
    assert out.read_text().splitlines() == lines
    other = names[0], names[1], names[1]
    with pytest.raises(ConfigError, match=r"is another comparison: .*target"):
        compared(other, seeds=1, out=out)


@pytest.mark.slow
def test_sources_add_a_mixture(names: tuple[str, str, str]) -> None:
    pool, test, target = names
    with_sources = f"{pool}&source=from"
    found = compared((with_sources, test, target), seeds=1, baselines=["uniform"])
    rows = {row.strategy: row for row in found.outcomes}
    assert set(rows) == {"uniform", "loss_drop", "mixture"}
    assert rows["mixture"].is_chosen
    assert rows["mixture"].difference is not None


def test_other_data_strategies_and_baselines_are_refused(names: tuple[str, str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="'el2n' works with single-label"):
        lipt.compare(*names[:2], target_data=names[2], strategies=["el2n"], **QUICK)
    with pytest.raises(ConfigError, match="there is no baseline 'resampled'"):
        compared(names, baselines=["resampled"])
    numbers = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(InvalidRequestError, match="was given with single-label data"):
        lipt.compare(numbers, numbers, target_data=numbers, **QUICK)
