"""Progress of a call: of every activity one total, which is reached and never exceeded."""

from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch

import lipt
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


def reported(data: Any, call: str, *arguments: Any, **options: Any) -> list[ProgressView]:
    pretrained = lipt.Pretrained(data, run=SMALL, progress=False)
    progress = list[ProgressView]()
    # What a display gets.
    vars(pretrained.workspace)["_on_progress"] = lambda *parts: progress.append(
        ProgressView(*parts)
    )
    getattr(pretrained, call)(*arguments, **options)
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
    data: Any, call: str, options: dict[str, Any], activities: set[str]
) -> None:
    progress = reported(data, call, **options)
    assert activities <= {report.activity for report in progress}
    runs = [(report.activity, (report.done, report.total)) for report in progress]
    for activity, group in groupby(runs, key=itemgetter(0)):
        counts = [count for _, count in group]
        assert len({total for _, total in counts}) == 1, activity
        assert all(before <= after for (before, _), (after, _) in pairwise(counts)), activity
        assert counts[-1][0] == counts[-1][1], activity
