"""Near copies among images: found whatever their labels are, and looked for once."""

from __future__ import annotations

import pytest
import torch

from lipt.common.data.dataset import in_memory
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.copies import near_copies
from tests.digits import digits_settings


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def context(tmp_path_factory: pytest.TempPathFactory, reports: list[str]) -> Context:
    """A hundred digits, of which row 7 is row 3 with another label, and row 9 a brighter row 4."""
    settings = digits_settings(tmp_path_factory.mktemp("state"), "digits-test")
    context = Context(settings, report=lambda activity, *_: reports.append(activity))
    plain = context.dataset
    images_NCHW, labels_N = plain.images(torch.arange(100)), plain.labels_N[:100].clone()
    images_NCHW[7] = images_NCHW[3]
    labels_N[7] = (labels_N[3] + 1) % 10
    images_NCHW[9] = (images_NCHW[4].float() * 0.9 + 10).clamp(0, 255).to(torch.uint8)
    vars(context)["dataset"] = in_memory(
        "copies", plain.class_names, labels_N, "print", images_NCHW
    )
    return context


def test_copies_share_a_picture_whatever_their_labels_are(context: Context) -> None:
    pictures_N = near_copies(context, cpu_threads=1)
    assert pictures_N[7] == pictures_N[3] == 3
    assert pictures_N[9] == pictures_N[4] == 4
    assert len(pictures_N.unique()) >= 95


def test_they_are_looked_for_once(context: Context, reports: list[str]) -> None:
    first = near_copies(context, cpu_threads=1)
    assert {"looking at all images", "looking for near copies"} <= set(reports)
    reports.clear()
    again = near_copies(context, cpu_threads=1)
    assert torch.equal(first, again)
    assert not reports
