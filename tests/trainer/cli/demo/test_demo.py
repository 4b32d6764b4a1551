from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lipt.trainer.comparison.outcomes import outcomes
from lipt.trainer.comparison.trial import read_trials
from lipt.trainer.comparison.verdict import verdict
from lipt.trainer.subsets.subset import Subset


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]], str]:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("demo")
    # An earlier demo of another version, say: this one must neither go on with it nor refuse.
    (folder / "comparison.jsonl").write_text('{"model": "another"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "lipt.trainer.cli", "demo", "--dir", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        # Settings of the user's own processes must not reach those of the demo.
        env=os.environ | {"LIPT_DATA": "/nowhere", "LIPT_RUN__LEARNERS__NUM_LEARNERS": "99"},
    )
    assert done.returncode == 0, done.stderr
    return folder, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_demo_shows_every_run_to_its_end(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    _, objects, _ = demo
    *changes, result = objects
    runs = {str(change["name"]): change for change in changes}  # as each was last
    assert {name: run["state"] for name, run in runs.items()} == {
        f"demo-{seed}": "ready" for seed in range(3)
    }
    assert result["run"] == runs["demo-0"]
    for run in runs.values():
        learners = run["learners"]
        assert isinstance(learners, list)
        assert len(learners) == 8
        assert {learner["state"] for learner in learners} == {"done"}


def test_the_demo_leaves_subsets_weights_logs_and_a_record(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    folder, objects, _ = demo
    subset = Subset.load(folder / "subset-uniform_per_class.npy")
    assert len(subset) == 144  # 10% of 1,442, rounded
    assert np.load(folder / "subset-uniform_per_class.npy").tolist() == subset.indices.tolist()
    assert Subset.load(folder / "subset-uniform_per_class.csv") == subset
    assert (folder / "theta_p.safetensors").stat().st_size > 0
    assert json.loads((folder / "run.json").read_text()) == objects[-1]["run"]
    assert (folder / "logs" / "coordinator.log").stat().st_size > 0


def test_the_demo_ends_with_a_verdict_over_three_seeds_of_the_whole_pipeline(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    folder, objects, _ = demo
    identity, trials = read_trials(folder / "comparison.jsonl")
    assert identity["data_source"] == "digits-mislabelled"
    assert {(trial.seed, trial.strategy) for trial in trials} == {
        (seed, strategy)
        for seed in range(3)
        for strategy in (
            *("uniform", "uniform_per_class", "redrawn", "everything"),
            *("auto", "facility_location"),
        )
    }
    assert {trial.num_steps for trial in trials} == {150}
    # Another seed is another run: what its gradients choose differs.
    assert len({t.digest for t in trials if t.strategy == "auto"}) == 3
    assert objects[-1]["verdict"] == verdict(outcomes(trials))


def test_what_the_demo_shows_is_not_broken_on_digits(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    folder, objects, _ = demo
    rows = {row.strategy: row for row in outcomes(read_trials(folder / "comparison.jsonl")[1])}
    assert rows["auto"].beats_random
    assert rows["auto"].levelled_off
    subsets = objects[-1]["subsets"]
    assert isinstance(subsets, list)
    num_wrong = {subset["strategy"]: subset["num_wrong"] for subset in subsets}
    # Of 144 examples about 7 have a wrong label where nobody looks.
    assert num_wrong["auto"] < min(num_wrong["uniform"], num_wrong["uniform_per_class"])


def test_the_demo_diagnoses_labels_that_are_wrong_on_purpose(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    folder, objects, said = demo
    found = objects[-1]["found"]
    assert isinstance(found, dict)
    assert (found["num_examples"], found["num_wrong"], found["num_worst"]) == (1442, 72, 20)
    assert found["wrong_of_worst"] >= 18
    assert found["wrong_of_suspects"] >= 60
    assert "72 of the 1442 labels of digits-mislabelled are wrong on purpose" in said
    assert "data:image/png;base64," in (folder / "diagnosis.html").read_text(encoding="utf-8")


def test_the_demo_writes_the_report_with_that_verdict(
    demo: tuple[Path, list[dict[str, object]], str],
) -> None:
    folder, objects, _ = demo
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert objects[-1]["report"] == str(folder / "report.html")
    for line in str(objects[-1]["verdict"]).splitlines():
        assert line in html.unescape(page)
    # Of either strategy as many wanted, unwanted and random ones; and the worst suspects.
    assert page.count("data:image/png;base64,") == 2 * 3 * 48 + 24
    assert page.count('class="map"') == 2
    assert "auto and facility_location" in page


def test_the_demo_leaves_no_process(demo: tuple[Path, list[dict[str, object]], str]) -> None:
    _, _, said = demo
    pids = [int(pid) for pid in re.findall(r"started \(process (\d+)\)", said)]
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
