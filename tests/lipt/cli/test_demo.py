"""The whole demo once, and what it leaves."""

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
from lipt.trainer.comparison.verdict import answers, verdict
from lipt.trainer.subsets.subset import Subset

# The folder, and what was printed.
Demo = tuple[Path, str]

STRATEGIES = ("uniform", "uniform_per_class", "auto", "facility_location")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("demo")
    # An earlier demo of another version, say: this one must neither go on with it nor refuse.
    (folder / "comparison.jsonl").write_text('{"model": "another"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "lipt.cli", "demo", "--dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        # Settings of the user's own processes must not reach those of the demo.
        env=os.environ | {"LIPT_DATA": "/nowhere", "LIPT_RUN__LEARNERS__NUM_LEARNERS": "99"},
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_demo_leaves_subsets_weights_logs_and_the_record_of_its_run(demo: Demo) -> None:
    folder, said = demo
    subset = Subset.load(folder / "subset-uniform_per_class.npy")
    assert len(subset) == 144  # 10% of 1,442, rounded
    assert np.load(folder / "subset-uniform_per_class.npy").tolist() == subset.indices.tolist()
    assert Subset.load(folder / "subset-uniform_per_class.npy") == subset
    assert (folder / "theta_p.safetensors").stat().st_size > 0
    assert "coordinator | " in (folder / "lipt-up.log").read_text()
    run = json.loads((folder / "run.json").read_text())
    assert (run["name"], run["state"]) == ("demo-0", "ready")
    assert [learner["state"] for learner in run["learners"]] == ["done"] * 8
    for seed in range(3):
        assert f"run demo-{seed}: ready; soup " in said


def test_the_demo_ends_with_a_verdict_over_three_seeds_of_the_whole_pipeline(demo: Demo) -> None:
    folder, said = demo
    identity, trials = read_trials(folder / "comparison.jsonl")
    assert identity["data_source"] == "digits-mislabelled"
    assert {(trial.seed, trial.strategy) for trial in trials} == {
        (seed, strategy)
        for seed in range(3)
        for strategy in (*STRATEGIES, "resampled", "everything")
    }
    assert {trial.num_steps for trial in trials} == {150}
    # Another seed is another run: what its gradients choose differs.
    assert len({t.digest for t in trials if t.strategy == "auto"}) == 3
    *_, answers, pages = said.split("\n\n")
    assert answers == verdict(outcomes(trials))
    assert pages.startswith(f"diagnosis: {folder}/diagnosis.html\nreport: {folder}/report.html\n")


def test_the_demo_s_claims_hold_on_digits(demo: Demo) -> None:
    folder, said = demo
    rows = {row.strategy: row for row in outcomes(read_trials(folder / "comparison.jsonl")[1])}
    assert rows["auto"].beats_random
    assert rows["auto"].converged
    # The strategy, 144 examples, the fewest and the most of a class, and how many are wrong.
    lines = re.findall(r"^(\w+) +144 +\d+ to \d+ +(\d+)$", said, re.MULTILINE)
    num_wrong = {strategy: int(wrong) for strategy, wrong in lines}
    assert tuple(num_wrong) == STRATEGIES
    # Of 144 random examples about 7 have a wrong label.
    assert num_wrong["auto"] < min(num_wrong["uniform"], num_wrong["uniform_per_class"])
    told = r"72 of 1442 labels are .* labels: (\d+) of these are wrong, and (\d+) of the first 20\."
    found, worst = re.findall(told, said)[-1]
    assert int(found) >= 60
    assert int(worst) >= 18


def test_the_demo_writes_two_pages_and_leaves_no_process(demo: Demo) -> None:
    folder, said = demo
    assert "data:image/png;base64," in (folder / "diagnosis.html").read_text(encoding="utf-8")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for answer in answers(outcomes(read_trials(folder / "comparison.jsonl")[1])):
        assert answer.sentence in html.unescape(page)
    # Of either strategy as many wanted and unwanted ones, and the worst suspects.
    assert page.count("data:image/png;base64,") == 2 * 2 * 24 + 24
    (pid,) = re.findall(r"lipt up started \(process (\d+)\)", said)
    with pytest.raises(ProcessLookupError):
        os.killpg(int(pid), 0)  # its session
