"""`lipt mix` on tables of a few hundred rows."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

import lipt
from lipt.cli.commands.mix import app
from lipt.cli.commands.select import app as select_app

QUICK = [
    *("--set", "initialization.steps=20", "--set", "initialization.batch_size=16"),
    *("--set", "learners.num_minibatches=8", "--set", "learners.batch_size=16"),
    *("--model", "linear", "--device", "cpu"),
]


def write(path: Path, signs: dict[str, float], number: int, seed: int) -> None:
    """A table whose class is the sign of its first number, turned around at some sites."""
    drawn_N3 = np.random.default_rng(seed).normal(size=(number, 3))
    sites = [list(signs)[row % len(signs)] for row in range(number)]
    lines = ["a,b,c,site,grade"]
    for (a, b, c), site in zip(drawn_N3.tolist(), sites, strict=True):
        grade = "high" if signs[site] * a > 0 else "low"
        lines.append(f"{a:.4f},{b:.4f},{c:.4f},{site},{grade}")
    path.write_text("\n".join(lines))


def run(command: Typer, *arguments: Any) -> tuple[int, str]:
    done = CliRunner().invoke(command, [*map(str, arguments), *QUICK])
    return done.exit_code, done.output


mix = functools.partial(run, app)


def test_one_table_may_name_its_sources_itself(tables: tuple[Path, Path], tmp_path: Path) -> None:
    pool, target = tables
    out, named = tmp_path / "m.json", f"csv:{pool}?label=grade&source=site"
    code, shown = mix(named, "--target-data", f"csv:{target}?label=grade", "--out", out)
    assert code == 0, shown
    assert lipt.Mixture.load(out).weights["north"] > 0.9


@pytest.mark.parametrize("flag", ["pool", "target"])
def test_no_data_is_written_over(tmp_path: Path, flag: str) -> None:
    file = tmp_path / f"{flag}.jsonl"
    file.write_text('{"t": "a"}\n')
    data = f"jsonl:{file}?text=t"
    pool, target = (data, "x.csv") if flag == "pool" else ("x.csv", data)
    rows = ("--out", tmp_path / "m.json", "--subset", file, "--budget", 1)
    for code, shown in (
        mix(f"a={pool}", "--target-data", target, *rows),
        run(select_app, pool, "--target-data", target, "--budget", 1, "--out", file),
    ):
        assert code == 2
        assert "is the data itself, and would be lost." in " ".join(shown.split())
    assert file.read_text() == '{"t": "a"}\n'


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    pool, target = tmp_path / "pool.csv", tmp_path / "target.csv"
    write(pool, {"north": 1.0, "south": -1.0}, 400, seed=1)
    write(target, {"elsewhere": 1.0}, 60, seed=2)
    return pool, target


def test_a_table_is_mixed_by_a_column_and_examples_are_drawn(
    tables: tuple[Path, Path], tmp_path: Path
) -> None:
    pool, target = tables
    out, rows = tmp_path / "m.json", tmp_path / "rows.npy"
    asked = ("--by", "site", "--target", "grade", "--target-data", target)
    code, shown = mix(pool, *asked, "--out", out, "--subset", rows, "--budget", 50, "--json")
    assert code == 0, shown
    found, subset = lipt.Mixture.load(out), lipt.Subset.load(rows)
    assert json.loads(shown)["weights"] == found.weights
    assert found.weights["north"] > 0.9
    assert len(subset) == 50
    # Even rows are those of the north.
    assert (subset.indices % 2 == 0).sum() == round(50 * found.weights["north"])
    assert subset.fingerprint == lipt.open_dataset(f"csv:{pool}?label=grade").fingerprint
    chosen = subset.to_jsonl(pool, tmp_path / "chosen.jsonl").read_text().splitlines()
    assert [json.loads(line)["site"] for line in chosen].count("north") == round(
        50 * found.weights["north"]
    )


def test_sources_are_named_files(tables: tuple[Path, Path], tmp_path: Path) -> None:
    _, target = tables
    for name, sign in (("right", 1.0), ("turned", -1.0)):
        write(tmp_path / f"{name}.csv", {name: sign}, 200, seed=3)
    given = [f"{name}={tmp_path / name}.csv" for name in ("right", "turned")]
    out, rows = tmp_path / "m.json", tmp_path / "rows.jsonl"
    asked = (*given, "--target", "grade", "--target-data", target)
    code, shown = mix(*asked, "--out", out, "--subset", rows, "--budget", 50)
    assert code == 0, shown
    assert f"{out}: shares of 2 sources" in shown
    mixture = lipt.Mixture.load(out)
    assert mixture.weights["right"] > 0.9
    sites = [json.loads(line)["site"] for line in rows.read_text().splitlines()]
    assert sites.count("right") == round(50 * mixture.weights["right"])
    assert len(sites) == 50


@pytest.mark.parametrize(
    ("sources", "more", "words"),
    [
        (["pool.csv"], [], "write each source once as NAME=DATA"),
        (["a=1.csv", "a=2.csv"], [], "write each source once as NAME=DATA"),
        (["a=1.csv", "b=2.csv"], ["--by", "site"], "2 sources were given with --by"),
        (["a=1.csv"], ["--budget", "5"], "--subset and --budget belong together"),
        (["a=1.csv"], ["--budget", "5", "--subset", "rows.txt"], "rows.txt"),
        (["a=1.csv"], ["--budget", "5", "--subset", "m.json"], "m.json"),
        (["a=1.csv"], ["--out", "m.csv"], "'m.csv' has the suffix '.csv'; a mixture is written"),
    ],
)
def test_mistakes_on_the_command_line_are_usage_errors(
    sources: list[str], more: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown = mix(*sources, "--target-data", "t.csv", "--out", "m.json", *more)
    assert code == 2
    assert words in " ".join(shown.replace("│", " ").split())
