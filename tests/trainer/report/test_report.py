from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lipt.common.config.run_config import RunConfig
from lipt.common.data import open_dataset
from lipt.common.errors import UnreachableError
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model, find_head
from lipt.common.weights.files import pack
from lipt.trainer.report.report import features_of, overlaps
from tests.trainer.made_up import made_up_run, made_up_subset

LABELS = np.array([0, 0, 0, 0, 1, 1])


def test_shared_examples_are_counted_beside_what_chance_gives() -> None:
    first = made_up_subset([0, 1, 4], strategy="craig")
    second = made_up_subset([1, 2, 3, 4, 5], strategy="grand")
    (found,) = overlaps([first, second], LABELS)
    assert (found.first, found.second, found.shared) == ("craig", "grand", 2)
    assert found.jaccard == pytest.approx(2 / 6)
    # Of the first class 2 x 3 / 4, of the second 1 x 2 / 2.
    assert found.by_chance == pytest.approx(2.5)


def test_every_two_are_compared_once() -> None:
    subsets = [made_up_subset([row], strategy=name) for row, name in enumerate("abc")]
    assert [(found.first, found.second) for found in overlaps(subsets, LABELS)] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
    assert overlaps(subsets[:1], LABELS) == ()


DIGITS = open_dataset("digits-test")
RUN = made_up_run(config=RunConfig(model="resnet8"))
IDS = torch.tensor([5, 3, 300])


@dataclass
class FakeClient:
    """Has these weights, or raises what keeps it from having some."""

    give: Callable[[], bytes]

    def weights(self, run: str) -> bytes:
        assert run == "r-1"
        return self.give()


def weights(scale: float = 1.0) -> bytes:
    model = build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=3)
    tensors = model.state_dict().items()
    return pack({n: value * scale if value.is_floating_point() else value for n, value in tensors})


def test_features_are_what_enters_the_head_of_the_merged_model() -> None:
    features, seen_by = features_of(FakeClient(weights), RUN, DIGITS, IDS)  # type: ignore[arg-type]
    model = build_model("resnet8", num_classes=10, inputs=ImageSpec(1, 8, 8), seed=3)
    assert features.shape == (3, find_head(model)[1].in_features)
    assert seen_by == "theta_p"
    # An example's features depend on nothing but itself.
    alone, _ = features_of(FakeClient(weights), RUN, DIGITS, IDS[1:2])  # type: ignore[arg-type]
    torch.testing.assert_close(alone[0], features[1])


@pytest.mark.parametrize(
    ("config", "give", "why"),
    [
        (RunConfig(model="mine:model"), weights, "mine"),
        (RunConfig(model="resnet18"), weights, "tensor"),
        (RunConfig(model="resnet8"), lambda: b"none", "safetensors"),
        (RunConfig(model="resnet8"), lambda: weights(float("inf")), "not finite"),
    ],
)
def test_where_the_model_cannot_be_had_pixels_take_its_place_and_it_is_said_why(
    config: RunConfig, give: Callable[[], bytes], why: str
) -> None:
    run = made_up_run(config=config)
    features, seen_by = features_of(FakeClient(give), run, DIGITS, IDS)  # type: ignore[arg-type]
    assert seen_by.startswith("their own values, not by theta_p: ")
    assert why in seen_by
    assert torch.equal(features, DIGITS.images(IDS).flatten(start_dim=1).float())


def test_a_coordinator_that_is_away_is_no_reason_for_pixels() -> None:
    def away() -> bytes:
        raise UnreachableError("nobody answers.")

    with pytest.raises(UnreachableError):
        features_of(FakeClient(away), RUN, DIGITS, IDS)  # type: ignore[arg-type]
