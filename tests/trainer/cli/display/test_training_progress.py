from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

from lipt.trainer.cli.display.training_progress import (
    TrainingProgress,
    measures_text,
    resumed_text,
)
from lipt.trainer.main_training.records import EpochRecord, Progress
from tests.clock import Clock
from tests.trainer.made_up import made_up_record


def record(epoch: int, **changes: Any) -> EpochRecord:
    figures: dict[str, Any] = {
        "step": 10 * epoch,
        "num_steps": 40,
        "loss": 1.2345,
        "images_per_second": 1234.5,
        "seconds_left": 70.0,
    }
    return made_up_record(epoch, **(figures | changes))


def test_measures_in_words() -> None:
    assert measures_text(record(1)) == (
        "epoch 1, loss 1.234, accuracy 50.0%, 1,234 examples/s, 70 s left"
    )
    assert measures_text(record(4, test_accuracy=0.25, seconds_left=0.0)) == (
        "epoch 4, loss 1.234, accuracy 50.0%, test 25.0%, 1,234 examples/s"
    )


def test_without_a_terminal_silence_is_broken_and_evaluations_are_lines() -> None:
    clock, lines = Clock(), list[str]()
    with TrainingProgress(live=False, say=lines.append, clock=clock) as progress:
        progress.on_step(1, 40)
        clock.now = 10.0
        progress.on_step(2, 40)
        progress.on_step(3, 40)
        progress.on_epoch(record(1))
        clock.now = 20.0
        progress.on_step(11, 40)
        progress.on_epoch(record(2, subset_accuracy=0.75))
        progress.on_epoch(record(4))
    told = measures_text(record(1))
    assert lines == [
        "step 2/40",
        f"step 11/40, {told}",
        f"step 20/40, {measures_text(record(2))}",
        f"step 40/40, {measures_text(record(4))}",
    ]


def test_no_terminal_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress() as progress:
        progress.on_epoch(record(4))
    assert capsys.readouterr().err == f"step 40/40, {measures_text(record(4))}\n"


def test_a_terminal_has_a_bar_with_the_measures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with TrainingProgress(live=True) as progress:
        progress.on_step(10, 40)
        progress.on_epoch(record(1))
        progress.say("a line [with brackets]")
    shown = capsys.readouterr().err
    assert "a line [with brackets]\n" in shown
    assert "10/40" in shown
    assert "1,234 examples/s, 70 s left" in shown


class OwnWarning(UserWarning):
    pass


def test_warnings_of_a_kind_are_lines_and_others_stay_warnings() -> None:
    lines: list[str] = []
    progress = TrainingProgress(live=False, say=lines.append)

    def warn() -> None:
        with progress.saying(OwnWarning):
            for message in ("no subset", "no subset"):
                warnings.warn(message, OwnWarning, stacklevel=1)
            warnings.warn("other", DeprecationWarning, stacklevel=1)

    with pytest.warns(DeprecationWarning, match="other"):
        warn()
    assert lines == ["warning: no subset"] * 2


def test_a_checkpoint_that_is_gone_on_from_is_told_in_words() -> None:
    found = Progress(epoch=3, step=30, num_steps=40, seconds=12.4)
    assert resumed_text(found) == (
        "training goes on after step 30 of 40, epoch 3, 12 s of training in"
    )
    assert resumed_text(replace(found, epoch=4, step=40)) == (
        "training was finished, at step 40 of 40, epoch 4"
    )
