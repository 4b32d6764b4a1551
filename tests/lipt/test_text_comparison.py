"""`lipt.compare` for a target of texts: a pool in which two of three sources are wrong."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import lipt
from lipt.cli import main
from lipt.common.errors import ConfigError, InvalidRequestError
from lipt.text_comparison import TextChoices

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


def compared(names: tuple[Any, Any, Any], **keywords: Any) -> lipt.Comparison:
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
    other = names[0], names[1], names[0]
    with pytest.raises(ConfigError, match=r"is another comparison: .*target"):
        compared(other, seeds=1, out=out)
    # So does the command, and the report has a page of it; neither asks a coordinator.
    data, test, target = names
    arguments = [
        *("compare", "--data", data, "--test", test, "--target-data", target, "--device", "cpu"),
        *("--model", "text:causal", "--strategies", "loss_drop", "--fractions", "0.2"),
        *("--seeds", "1", "--steps", "10", "--out", str(out), "--json"),
        *("--run-set", "initialization.steps=20", "--run-set", "initialization.batch_size=32"),
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"] == found.verdict
    assert out.read_text().splitlines() == lines
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(main, ["report", "--comparison", str(out), "--out", str(page)])
    assert shown.exit_code == 0, shown.output
    assert all(line in shown.stdout for line in found.verdict.splitlines())
    assert "no training" in page.read_text()


def test_epochs_that_are_given_count(names: tuple[str, str, str]) -> None:
    settings = {"run": {}, "device": "cpu", "allow_modules": ()}
    train = lipt.open_dataset(names[0])
    choices = TextChoices.of(train, names[2], "text:causal", target=None, settings=settings)
    assert choices.recipe(None).num_steps(48) == 100
    # 48 examples are two batches of 32.
    assert choices.recipe({"epochs": 3}).num_steps(48) == 6
    assert choices.recipe({"batch_size": 16}).num_steps(48) == 100


@pytest.mark.slow
def test_sources_add_a_mixture_also_of_frames_and_for_parts_of_a_target(
    names: tuple[str, str, str],
) -> None:
    files = (name.removeprefix("jsonl:").partition("?")[0] for name in names)
    pool, test, target = (pd.read_json(file, lines=True) for file in files)
    form, learners = "prompt=q&completion=a&max_length=10", {"num_minibatches": 8}
    run = {**QUICK["run"], "learners": learners}
    keywords: dict[str, Any] = {"seeds": 1, "baselines": ["uniform"], "run": run}
    parts = {"even": target[::2], "odd": target[1::2]}
    found = compared((pool, test, parts), target=f"{form}&source=from", **keywords)
    rows = {row.strategy: row for row in found.outcomes}
    assert set(rows) == {"uniform", "loss_drop", "mixture"}
    assert rows["mixture"].is_chosen
    assert rows["mixture"].difference is not None
    # The same examples as of a file, for the same parts.
    opened = {name: lipt.open_dataset(part, target=form) for name, part in parts.items()}
    of_file = {
        one.strategy: one.digest for one in compared((*names[:2], opened), **keywords).trials
    }
    assert of_file == {one.strategy: one.digest for one in found.trials if one.strategy in of_file}
    assert set(of_file) == {"uniform", "loss_drop"}


def test_other_data_strategies_and_baselines_are_refused(names: tuple[str, str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="'el2n' works with single-label"):
        lipt.compare(*names[:2], target_data=names[2], strategies=["el2n"], **QUICK)
    with pytest.raises(InvalidRequestError, match="a mixture is of several sources, and "):
        lipt.compare(*names[:2], target_data=names[2], strategies=["mixture"], **QUICK)
    for ignored in ({"soft_labels": True}, {"proxy": "ridge:columns"}):
        with pytest.raises(InvalidRequestError, match=r"soft labels are|would change nothing"):
            compared(names, **ignored)
    with pytest.raises(InvalidRequestError, match="is the target itself, for which"):
        compared((names[0], names[2], names[2]))
    with pytest.raises(ConfigError, match="there is no baseline 'resampled'"):
        compared(names, baselines=["resampled"])
    numbers = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(InvalidRequestError, match="was given with single-label data"):
        lipt.compare(numbers, numbers, target_data=numbers, **QUICK)
