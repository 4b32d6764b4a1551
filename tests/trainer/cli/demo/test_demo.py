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

from lipt.common.states import RunState
from lipt.trainer.cli.demo.experiment import (
    DemoResult,
    FoundErrors,
    SubsetResult,
    count_found,
    report_lines,
)
from lipt.trainer.comparison.outcomes import Difference, outcomes
from lipt.trainer.comparison.table import verdict
from lipt.trainer.comparison.trial import read_trials
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import DatasetView, SoupView
from tests.trainer.made_up import made_up_outcome, made_up_run
from tests.trainer.made_up_diagnosis import made_up_diagnosis

# The folder, the objects that were printed, and standard error.
Demo = tuple[Path, list[dict[str, object]], str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
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
    demo: Demo,
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
    demo: Demo,
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
    demo: Demo,
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
    demo: Demo,
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
    demo: Demo,
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
    demo: Demo,
) -> None:
    folder, objects, _ = demo
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert objects[-1]["report"] == str(folder / "report.html")
    for line in str(objects[-1]["verdict"]).splitlines():
        assert line in html.unescape(page)
    # Of either strategy as many wanted and unwanted ones; and the worst suspects.
    assert page.count("data:image/png;base64,") == 2 * 2 * 24 + 24
    assert page.count('class="map"') == 2
    assert "auto and facility_location" in page


def test_the_demo_leaves_no_process(demo: Demo) -> None:
    _, _, said = demo
    pids = [int(pid) for pid in re.findall(r"started \(process (\d+)\)", said)]
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_wrong_labels_are_counted_among_the_suspects_and_the_worst_of_them() -> None:
    # 6 and 1 are the suspects; 1 and 3 are wrong.
    is_wrong_N = np.isin(np.arange(8), [1, 3])
    assert count_found(made_up_diagnosis(), is_wrong_N) == FoundErrors(
        num_examples=8,
        num_wrong=2,
        num_worst=2,
        wrong_of_worst=1,
        num_suspects=2,
        wrong_of_suspects=1,
    )


def test_the_report_sets_accuracies_and_subsets_side_by_side_and_ends_with_the_verdict() -> None:
    run = made_up_run(state=RunState.READY, soup=SoupView(0.1, 0.375, 0.5, 0.625, 1, 200))
    file = Path("lipt-demo/subset-grand.npy")
    outcome = made_up_outcome(
        strategy="grand", difference=Difference(-0.4, -0.42, -0.38), bytes_sent=3_500_000
    )
    result = DemoResult(
        dataset=DatasetView("digits", 1797, ("0", "1"), (900, 897), "abc", (1, 8, 8)),
        found=FoundErrors(1797, 90, 20, 19, 100, 70),
        run=run,
        subsets=(SubsetResult("grand", 180, (90, 90), 36, "ab" * 32, (file,)),),
        outcomes=(outcome,),
        verdict="At 10% grand does not beat random.\nChoosing cost 5 s.",
        files=(file,),
        report=Path("lipt-demo/report.html"),
        diagnosis=Path("lipt-demo/diagnosis.html"),
        seconds=12.34,
    )
    lines = report_lines(result)
    assert "digits: 1797 examples, 1x8x8 images, 2 classes" in lines
    assert (
        "90 of 1797 labels are wrong on purpose. The diagnosis, which is not told of them, "
        "suspects 100 labels: 70 of these are wrong, and 19 of the first 20."
    ) in lines
    assert "soup (theta_p)  62.5%" in lines
    assert "mean learner    37.5%" in lines
    assert [line.split() for line in lines if line.startswith("grand")] == [
        ["grand", "180", "90", "to", "90", "36", "abababababab", str(file)]
    ]
    (row,) = (line for line in lines if line.startswith("10% "))
    assert "50.0% +- 1.0" in row
    assert "-40.0 (-42.0 to -38.0)" in row
    assert "3.5 MB" in row
    assert lines[lines.index(row) + 1 :] == [
        "",
        "At 10% grand does not beat random.",
        "Choosing cost 5 s.",
        "",
        "diagnosis: lipt-demo/diagnosis.html",
        "report: lipt-demo/report.html",
        "done in 12.3 s",
    ]
    assert f"wrote {file}" in lines
