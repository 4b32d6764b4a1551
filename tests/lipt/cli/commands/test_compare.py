import html
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lipt.cli import main
from lipt.trainer.comparison.outcomes import outcomes
from lipt.trainer.comparison.trial import read_trials
from lipt.trainer.comparison.verdict import answers, verdict
from tests.cluster import Cluster

STRATEGIES = ("uniform", "uniform_per_class", "resampled", "craig", "grand")
CELLS = {
    *(
        (seed, fraction, strategy)
        for seed in (0, 1)
        for fraction in (0.05, 0.1)
        for strategy in STRATEGIES
    ),
    *((seed, 1.0, "everything") for seed in (0, 1)),
}
ARGUMENTS = (
    *("--data", "digits-train", "--test", "digits-test", "--model", "resnet8"),
    *("--strategies", "craig,grand", "--fractions", "0.1,0.05", "--seeds", "2"),
    *("--set", "batch_size=64", "--set", "augmentation=none", "--device", "cpu"),
    *("--run-set", "learners.num_learners=2", "--run-set", "learners.num_steps=2"),
    *("--run-set", "learners.batch_size=32", "--run-set", "soup.num_alphas=3"),
    *("--run-set", "soup.batch_norm_examples=64"),
)


@dataclass
class Comparison:
    """A comparison that was killed, leaving `left` in its file, and then run again."""

    cluster: Cluster
    file: Path
    left: list[Any]
    again: Any

    def run(self, *arguments: str) -> Any:
        given = ("compare", *ARGUMENTS, "--coordinator", self.cluster.address, *arguments)
        return CliRunner().invoke(main, list(given))

    def num_runs(self) -> int:
        with self.cluster.client() as client:
            return len(client.runs())


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    pytest.importorskip("sklearn")
    pytest.importorskip("scipy")
    folder = tmp_path_factory.mktemp("compare")
    with Cluster(folder) as cluster:
        cluster.start_coordinator("--data", "digits-train")
        cluster.start_worker("one")
        file = folder / "comparison.jsonl"
        first = cluster.start(
            "compare",
            [
                *("-m", "lipt.cli", "compare", *ARGUMENTS, "--steps", "3"),
                *("--coordinator", cluster.address, "--out", str(file)),
            ],
            {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
        first.wait_for("seed 0, 5%, craig:")
        first.stop(9)
        found = Comparison(cluster, file, read_trials(file)[1], None)
        found.again = found.run("--steps", "3", "--out", str(file))
        yield found


@pytest.mark.slow
def test_a_killed_comparison_resumes(comparison: Comparison) -> None:
    assert comparison.again.exit_code == 0, comparison.again.output
    identity, trials = read_trials(comparison.file)
    assert identity["recipe"]["steps"] == 3
    first = ("everything", "uniform", "uniform_per_class", "resampled", "craig")
    assert [(t.seed, t.strategy) for t in comparison.left][:5] == [(0, name) for name in first]
    assert trials[: len(comparison.left)] == comparison.left
    done_now = comparison.again.stderr.count(" on the test set, ")
    assert done_now == len(CELLS) - len(comparison.left)
    assert len(trials) == len(CELLS)
    assert {(t.seed, t.fraction, t.strategy) for t in trials} == CELLS
    # The test set on the very steps that the shares of 3 are: 1 (0.4 and 0.6), 2 (0.7 to 0.9)
    # and the last one.
    assert {tuple(one.step for one in trial.evaluations) for trial in trials} == {(1, 2, 3)}
    *_, sentences = comparison.again.stdout.rstrip().split("\n\n")
    # Three steps teach little, so no subset can be worth more than another.
    assert len(re.findall("not beat random|no strategy beats random", sentences)) == 2
    assert "main training: 3 steps of 64; augmentation: none" in comparison.again.stderr
    assert {trial.chance for trial in trials} == {36 / 355}
    assert sentences == verdict(outcomes(trials))
    # The first seed's run was taken up where it was.
    assert comparison.num_runs() == 2


@pytest.mark.slow
def test_a_recipe_that_does_not_learn_has_its_own_exit_status(
    comparison: Comparison, tmp_path: Path
) -> None:
    still = ("--steps", "1", "--set", "learning_rate=1e-30", "--json", "--soft-labels")
    few = ("--seeds", "1", "--fractions", ".1", "--strategies", "auto", "--baselines", "everything")
    result = comparison.run(*still, *few, "--out", str(tmp_path / "still.jsonl"))
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)
    names = ["everything", "everything+soft", "auto", "auto+soft"]
    assert [trial["strategy"] for trial in found["trials"]] == names
    assert [answer["learned"] for answer in found["answers"]] == [False]
    assert found["verdict"].startswith(
        "At 10% this recipe does not learn here: everything reaches 1"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--strategies", "craig,best"), "there is no strategy 'best'. Choose from: "),
        (("--strategies", "clipcov"), "clipcov needs features of pairs, which a comparison "),
        (("--data", "digits"), "the data of the coordinator has the fingerprint"),
        (("--fractions", "0.1,0.0003"), "fraction 0.0003 of 1442 examples keeps none. Choose at"),
        (("--run-set", "model=resnet18"), "model is set by the comparison for every run and "),
        (("--set", "seed=5"), "seed is set by the comparison for every run and training"),
        (("--baselines", "rs2"), "there is no baseline 'rs2'. Choose from: uniform, "),
        (("--device", "gpu"), "this machine has no device 'gpu'"),
    ],
)
def test_invalid_comparisons_are_refused_before_training(
    comparison: Comparison, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    out = tmp_path / "none.jsonl"
    result = comparison.run("--steps", "3", "--out", str(out), *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"lipt: {complaint}")
    assert result.stderr.count("\n") == 1
    assert not out.exists()
    assert comparison.num_runs() == 2


@pytest.mark.slow
def test_the_report_has_the_comparison(comparison: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    out = tmp_path / "report.html"
    arguments = [
        *("report", "--data", "digits-train", "--strategies", "craig, grand"),
        *("--comparison", str(comparison.file), "--out", str(out)),
        *("--coordinator", comparison.cluster.address),
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    found = answers(outcomes(read_trials(comparison.file)[1]))
    assert result.stdout.splitlines()[0].startswith(f"{out}: run compare-")
    shown = verdict(outcomes(read_trials(comparison.file)[1]))
    assert result.stdout.splitlines()[1:] == shown.splitlines()
    page = html.unescape(out.read_text(encoding="utf-8"))
    assert len(found) == 2
    for answer in found:
        cells = (cell for row in answer.contrasts for cell in row.cells().values())
        assert all(text in page for text in (answer.sentence, *answer.notes, *cells))
    assert "Beside resampled random and everything" in page
