import io
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

from lipt.cli.output import (
    SignsOfLife,
    TrainingProgress,
    in_background,
    process_exit,
    run_with_progress,
    warnings_as_lines,
)
from lipt.common.terminal import print_error, print_line
from lipt.trainer.client.connection import Silence
from lipt.trainer.main_training.records import EpochRecord
from tests.clock import Clock
from tests.trainer.made_up import made_up_record

# The main thread gives up while torch computes behind it.
SCRIPT = """
import sys
import torch
from lipt.cli.output import process_exit
from lipt.cli.output import in_background
def endless():
    values = torch.randn(400, 400)
    while True:
        yield
        for _ in range(10**9):
            values = (values @ values).tanh()

torch.set_num_threads(1)
with process_exit():
    for _ in in_background(endless(), tick_seconds=0.01):
        print("leaving", flush=False)
        {leave}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "status", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit('it is over')", 1, "it is over\n"),
        ("raise ValueError('mine')", 1, "ValueError: mine\n"),
    ],
)
def test_a_background_thread_changes_no_exit_status(leave: str, status: int, said: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(leave=leave)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout == "leaving\n"
    assert done.stderr.endswith(said)
    assert "terminate" not in done.stderr


def test_an_exception_without_a_background_thread_is_unchanged() -> None:
    with pytest.raises(SystemExit, match="3"), process_exit():
        raise SystemExit(3)


def test_idle_ticks_are_yielded() -> None:
    hold = threading.Event()

    def items() -> Any:
        yield 1
        hold.wait()
        yield 2

    seen: list[Any] = []
    for item in in_background(items(), tick_seconds=0.001):
        seen.append(item)
        if item is None:
            hold.set()
    assert [item for item in seen if item is not None] == [1, 2]
    assert None in seen


def test_slow_work_prints_its_progress() -> None:
    heard = threading.Event()
    said: list[str] = []

    def print_line(line: str) -> None:
        said.append(line)
        heard.set()

    def work(report: Any) -> int:
        report("scoring 3/9")
        assert heard.wait(30)
        return 7

    assert run_with_progress(work, print_line, silence_seconds=0.001) == 7
    assert any(line.startswith("scoring 3/9 (") for line in said)


SILENCE = Silence("head:1", datetime(2026, 1, 2, 0, 7, 17, tzinfo=UTC))
GONE = "coordinator head:1 does not answer since 00:07:17; waiting"


def test_a_silent_coordinator_is_the_only_news_until_it_answers() -> None:
    said: list[str] = []
    signs = SignsOfLife(said.append, now=0.0)

    def at(now: float, silence: Silence | None) -> list[str]:
        said.clear()
        signs.notice(now, silence)
        signs.tick(now, lambda: "about 44 min left")
        return said

    assert at(8.0, None) == []
    assert at(9.0, None) == ["about 44 min left"]
    assert at(10.0, SILENCE) == [GONE]
    assert at(18.0, SILENCE) == []
    assert at(19.0, SILENCE) == [GONE]
    assert at(20.0, None) == ["coordinator head:1 answers again"]
    assert at(29.0, None) == ["about 44 min left"]


def record(epoch: int, **changes: Any) -> EpochRecord:
    figures: dict[str, Any] = {
        "step": 10 * epoch,
        "num_steps": 40,
        "loss": 1.2345,
        "images_per_second": 1234.5,
        "seconds_left": 70.0,
    }
    return made_up_record(epoch, **(figures | changes))


def test_training_progress_is_lines_without_a_terminal() -> None:
    clock, lines = Clock(), list[str]()
    progress = TrainingProgress(lines.append, clock)
    progress.on_step(1, 40)
    clock.now = 10.0
    progress.on_step(2, 40)
    progress.on_step(3, 40)
    progress.on_epoch(record(1))
    clock.now = 20.0
    progress.on_step(11, 40)
    progress.on_epoch(record(2, subset_accuracy=0.75))
    progress.on_epoch(record(4, test_accuracy=0.25, seconds_left=0.0))
    assert lines == [
        "step 2/40",
        "step 11/40, epoch 1, loss 1.234, accuracy 50.0%, 1,234 examples/s, 70 s left",
        "step 20/40, epoch 2, loss 1.234, accuracy 50.0%, 1,234 examples/s, 70 s left",
        "step 40/40, epoch 4, loss 1.234, accuracy 50.0%, test 25.0%, 1,234 examples/s",
    ]


def test_all_warnings_of_a_kind_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings_as_lines(UserWarning):
        for message in ("no subset", "no subset"):
            warnings.warn(message, UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: no subset\n" * 2


@pytest.mark.parametrize("show", [partial(print_line, err=True), partial(print_error, "lipt")])
def test_lines_are_printed_above_a_moving_line(
    show: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Rich puts in the place of standard error while a line moves.
    shown = io.StringIO()
    moving = FileProxy(Console(file=shown), io.TextIOWrapper(io.BytesIO(), "utf-8"))
    monkeypatch.setattr(sys, "stderr", moving)
    show("stopped")
    assert shown.getvalue().endswith("stopped\n")
