"""Progress of a call: one bar for all of it, and of every activity one total that it reaches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch

import lipt
from lipt import pretraining
from lipt.core.progress import CallPart, CallParts
from lipt.trainer import progress as module
from lipt.trainer.progress import CallProgress, progress_display
from lipt.trainer.views import ProgressView

SMALL = {"learners": {"num_learners": 2, "num_steps": 2, "num_minibatches": 2, "batch_size": 20}}


def pictures(count: int, wrong: float = 0.0) -> tuple[np.ndarray, torch.Tensor]:
    """Gray pictures, half of them bright below; a share of the labels is wrong."""
    random, labels = np.random.default_rng(0), np.arange(count) % 2
    images = random.integers(200, size=(count, 28, 28))
    images[labels == 1, 14:] += 55
    wrong_N = random.random(count) < wrong
    return images.astype(np.uint8), torch.from_numpy(np.where(wrong_N, 1 - labels, labels))


def numbers(count: int) -> tuple[np.ndarray, torch.Tensor]:
    values = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    return values, torch.from_numpy((values[:, 0] * values[:, 1] > 0).astype(int))


def reported(
    monkeypatch: pytest.MonkeyPatch, data: Any, call: str, options: dict[str, Any]
) -> list[ProgressView]:
    """What a display gets."""
    progress = list[ProgressView]()

    @contextmanager
    def display(*, shown: bool | None) -> Iterator[Callable[[ProgressView], None]]:
        assert shown
        yield progress.append

    monkeypatch.setattr(pretraining, "progress_display", display)
    getattr(lipt.Pretrained(data, run=SMALL, progress=True), call)(**options)
    return progress


@pytest.mark.parametrize(
    ("data", "call", "options", "activities"),
    [
        (pictures(240), "select", {"fraction": 0.05}, {"trying mirror images"}),
        (
            pictures(240, wrong=0.2),
            "select",
            {"fraction": 0.05, "soft_labels": True},
            {"trying proxies on a sample (patches+soup)", "selecting by auto"},
        ),
        (numbers(300), "select", {"fraction": 0.05}, {"training learner 2 of 2"}),
        (numbers(300), "select", {"strategy": "forgetting"}, {"merging learners"}),
        (
            pictures(240),
            "select",
            {"strategy": "facility_location", "features": np.eye(240, 4, dtype=np.float32)},
            {"reading the features"},
        ),
        (pictures(240), "diagnose", {}, {"looking at all examples", "measuring redundancy"}),
        (numbers(300), "diagnose", {}, {"fitting a ridge head", "measuring a learning curve"}),
    ],
)
def test_every_activity_reaches_its_one_total(
    monkeypatch: pytest.MonkeyPatch,
    data: Any,
    call: str,
    options: dict[str, Any],
    activities: set[str],
) -> None:
    progress = reported(monkeypatch, data, call, options)
    assert activities <= {report.activity for report in progress}
    runs = [(report.activity, (report.done, report.total)) for report in progress]
    for activity, group in groupby(runs, key=itemgetter(0)):
        counts = [count for _, count in group]
        assert len({total for _, total in counts}) == 1, activity
        assert all(before <= after for (before, _), (after, _) in pairwise(counts)), activity
        assert counts[-1][0] == counts[-1][1], activity
    shares = [report.share for report in progress if isinstance(report, CallProgress)]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    # Parts are left out before, and at the end.
    assert shares[-2] < 1.0


def test_parts_that_are_left_out_count_as_done() -> None:
    parts = CallParts({CallPart.SAMPLE: 1.0, CallPart.LEARNERS: 6.0, CallPart.HEAD: 3.0})
    parts.advance(CallPart.SAMPLE, 0.5)
    parts.advance(CallPart.SELECTION, 1.0)
    assert parts.share == pytest.approx(0.05)
    parts.advance(CallPart.SAMPLE, 0.25)
    assert parts.share == pytest.approx(0.05)
    parts.leave_out(CallPart.LEARNERS)
    assert (parts.share, parts.jumps) == (pytest.approx(0.65), 1)
    parts.leave_out()
    assert (parts.share, parts.jumps) == (1.0, 2)
    assert CallParts({}).share == 0.0


def test_a_line_has_the_share_of_the_call_a_rate_and_the_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A start, and three readings a line.
    clock = iter([0.0, *(second for second in (1.0, 3.0, 4.0, 6.0) for _ in range(3))])
    monkeypatch.setattr(module, "monotonic", lambda: next(clock))
    with progress_display(shown=True) as show:
        show(CallProgress("fitting", 0, 4000, share=0.1))
        show(CallProgress("fitting", 2000, 4000, share=0.3))
        # A jump says nothing of the speed.
        show(CallProgress("fitting", 3000, 4000, share=0.8, jumps=1))
        show(CallProgress("fitting", 4000, 4000, share=0.82, jumps=1))
    assert capsys.readouterr().err.splitlines() == [
        "lipt: 10%, fitting 0/4000",
        "lipt: 30%, fitting 2000/4000, 1,000/s, about 10 s left",
        "lipt: 80%, fitting 3000/4000, 1,000/s",
        "lipt: 82%, fitting 4000/4000, 800/s, about 20 s left",
    ]


@pytest.mark.parametrize("data", [pictures(240), numbers(300)])
def test_reading_the_data_reaches_its_total(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lipt.Pretrained(data, run=SMALL, progress=True)
    *counts, last = capsys.readouterr().err.splitlines()
    assert counts[0] == f"lipt: reading the data 0/{len(data[0])}"
    assert last == f"lipt: reading the data {len(data[0])}/{len(data[0])}"
