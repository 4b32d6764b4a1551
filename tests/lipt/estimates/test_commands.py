from __future__ import annotations

import json
import subprocess

import pytest

from lipt.common.config.run_config import RunConfig
from lipt.estimates.clock import Stopwatch
from lipt.estimates.resident import resident_bytes
from tests import processes


def lipt_plan(*words: str) -> subprocess.CompletedProcess[str]:
    return processes.run(["-m", "lipt.trainer.cli", "plan", *words])


def test_the_command_prints_a_table_with_a_stage_on_each_line() -> None:
    done = lipt_plan("--data", "digits", "--strategy", "uniform", "--no-measure")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "digits: 1,797 examples of 1x8x8 images, resnet8, 180 by uniform"
    firsts = [line.split()[0] for line in lines[2:12] if line]
    assert firsts == [
        *("stage", "index", "theta*", "shards", "learners", "soup"),
        *("signals", "selection", "subset", "all"),
    ]


def test_settings_of_the_run_reach_the_plan() -> None:
    done = lipt_plan(
        *("--data", "digits", "--no-measure", "--json", "--budget", "7", "--strategy", "gradmatch"),
        *("--num-learners", "3", "--set", "learners.batch_size=20", "--option", "ridge=0.5"),
    )
    assert done.returncode == 0, done.stderr
    rows = {row["stage"]: row for row in json.loads(done.stdout)["rows"]}
    steps = RunConfig().learners.num_steps
    assert rows["learners"]["work"] == f"3 of {20 * steps} images trained"
    assert rows["subset"]["work"] == "7 examples"


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (("--data", "digits", "--set", "learners"), 2, "is not NAME=VALUE"),
        (("--data", "digits", "--workers", "0"), 2, "--workers"),
        (("--data", "digit"), 1, "there is no data set 'digit'"),
        (("--data", "digits", "--strategy", "craig", "--option", "x=1"), 1, "'x'"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    words: tuple[str, ...], status: int, complaint: str
) -> None:
    done = lipt_plan(*words, "--no-measure")
    assert done.returncode == status
    assert complaint in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_what_this_process_holds_is_more_than_an_interpreter() -> None:
    assert resident_bytes() > 10_000_000


def test_a_stopwatch_never_tells_more_computing_than_time_has_passed() -> None:
    watch = Stopwatch()
    sum(range(100_000))
    seconds = watch.seconds()
    assert 0 <= seconds.low <= seconds.high
