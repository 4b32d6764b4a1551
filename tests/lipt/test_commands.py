from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import lipt
from lipt import Subset
from lipt.commands import select_app

QUICK = ("--set", "learners.num_learners=2", "--set", "learners.num_steps=1")


@pytest.fixture
def wine(tmp_path: Path) -> str:
    data: Any = load_wine(as_frame=True)
    data.frame.to_csv(tmp_path / "wine.csv", index=False)
    return f"csv:{tmp_path / 'wine.csv'}?label=target"


def test_the_command_equals_the_library_call(wine: str, tmp_path: Path) -> None:
    out = tmp_path / "s.npy"
    asked = (wine, "--fraction", "0.1", "--strategy", "el2n", "--seed", "3", *QUICK)
    told = CliRunner().invoke(select_app, [*asked, "--out", str(out)])
    assert told.exit_code == 0, told.stderr
    run = {"learners": {"num_learners": 2, "num_steps": 1}}
    expected = lipt.select(wine, fraction=0.1, strategy="el2n", seed=3, run=run, progress=False)
    first, second = told.stdout.splitlines()
    assert first == f"{out}: 18 examples by el2n, digest {expected.digest}"
    assert second == "; ".join(expected.findings[:3])
    assert Subset.load(out).digest == expected.digest
    assert np.load(out).tolist() == expected.indices.tolist()
    as_json = CliRunner().invoke(select_app, [*asked, "--out", str(out), "--json"])
    assert json.loads(as_json.stdout)["digest"] == expected.digest


def test_a_tables_file_is_opened_by_its_target(wine: str, tmp_path: Path) -> None:
    asked = ("--fraction", "0.1", "--strategy", "uniform", "--out", str(tmp_path / "s.npy"))
    for data in (tmp_path / "wine.csv", f"csv:{tmp_path / 'wine.csv'}"):
        told = CliRunner().invoke(select_app, [str(data), "--target", "target", *asked])
        assert told.exit_code == 0, told.stderr
    assert Subset.load(tmp_path / "s.npy").manifest["data"]["source"] == wine
    told = CliRunner().invoke(select_app, [str(tmp_path / "wine.csv"), "--target", "targt", *asked])
    assert "Did you mean target?" in str(told.exception)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--out", "s.npy"), "give one of --fraction and --budget"),
        (("--fraction", "0.1", "--out", "s.txt"), ".txt"),
        (("--fraction", "0.1", "--out", "/nowhere/s.npy"), "/nowhere is not a directory"),
        (("--fraction", "0.1"), "--out"),
    ],
)
def test_mistyped_commands_are_usage_errors(
    wine: str, arguments: tuple[str, ...], complaint: str
) -> None:
    told = CliRunner().invoke(select_app, [wine, *arguments])
    assert told.exit_code == 2
    assert complaint in " ".join(told.stderr.split())
