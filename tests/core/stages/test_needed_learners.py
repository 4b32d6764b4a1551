"""Learners are trained only where untrained features show that they can change the choice."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lipt.common.config.run_config import InitializationConfig, LearnersConfig, RunConfig
from lipt.common.requests import FeatureKind
from lipt.core.proxies.proxy import training_can_pay
from lipt.core.stages import feature_kinds, needed_learners, proxy_features
from lipt.core.stages.needed_learners import training_passes
from lipt.pretraining import Pretrained

PATCHES, COLUMNS = (FeatureKind.PATCHES,), (FeatureKind.COLUMNS,)


def test_training_costs_three_passes_for_a_trained_example() -> None:
    learners = LearnersConfig(num_learners=2, num_steps=10, num_minibatches=4, batch_size=25)
    config = RunConfig(learners=learners)
    assert training_passes(config, 1000) == 3 * 2 * 10 * 100 / 1000
    trained = replace_initialization(config, steps=5, batch_size=200)
    assert training_passes(trained, 1000) == 6 + 3
    assert training_passes(replace_initialization(config, epochs=0.5), 1000) == 6 + 1.5


def replace_initialization(config: RunConfig, **settings: Any) -> RunConfig:
    return config.model_copy(update={"initialization": InitializationConfig(**settings)})


@pytest.mark.parametrize(
    ("kinds", "accuracy", "passes", "can_pay"),
    [
        # 12% of 50 points are 6: worth 12 passes, one of them theta_p's own.
        (PATCHES, 0.5, 10.9, True),
        (PATCHES, 0.5, 11.1, False),
        # Half of 20 points are 10: worth 20 passes.
        (COLUMNS, 0.8, 18.9, True),
        (COLUMNS, 0.8, 19.1, False),
        (COLUMNS, 1.0, 0.0, False),
    ],
)
def test_features_pay_if_they_remove_more_errors_than_their_passes_cost(
    kinds: tuple[FeatureKind, ...], accuracy: float, passes: float, can_pay: bool
) -> None:
    assert training_can_pay(accuracy, kinds, passes) is can_pay


def clouds(count: int, seed: int = 0) -> tuple[np.ndarray, Tensor]:
    """Two clouds of points, of which a head takes one in six for the other's."""
    labels = np.arange(count) % 2
    points = np.random.default_rng(seed).normal(size=(count, 2)) + 2 * labels[:, None] * (1, 0)
    return points.astype(np.float32), torch.from_numpy(labels)


SMALL = {"learners": {"num_learners": 1, "num_steps": 2, "num_minibatches": 4, "batch_size": 32}}


def selected(data: object, **given: Any) -> tuple[bool, dict[str, Any]]:
    """Whether learners were trained, and the manifest."""
    pretrained = Pretrained(data, run=SMALL, progress=False)
    subset = pretrained.select(**given)
    return "training_seconds" in pretrained.seconds, dict(subset.manifest)


def test_no_learner_is_trained_where_the_choice_is_random_anyway() -> None:
    trained, manifest = selected(clouds(600), fraction=0.5)
    assert not trained
    assert manifest["proxy"]["unneeded"] == "plan"
    assert (
        "no learner is needed: the choice is random whatever they find"
        in (manifest["findings"]["words"])
    )


def test_no_learner_is_trained_where_untrained_features_suffice() -> None:
    points, labels = clouds(600)
    known = np.column_stack([points, labels.numpy()]).astype(np.float32)
    trained, manifest = selected((known, labels), fraction=0.02)
    assert not trained
    assert manifest["proxy"]["unneeded"] == "price"


def test_learners_are_trained_where_they_may_change_the_choice() -> None:
    trained, manifest = selected(clouds(600), fraction=0.02)
    assert trained
    assert "unneeded" not in manifest["proxy"]


def test_no_learner_is_trained_for_numbers() -> None:
    points, _ = clouds(300)
    trained, manifest = selected((points, points[:, 0] * 2.5), fraction=0.05)
    assert not trained
    assert manifest["proxy"]["unneeded"] == "plan"


def test_soft_labels_need_learners_even_of_a_random_choice() -> None:
    trained, _ = selected(clouds(600), fraction=0.5, soft_labels=True)
    assert trained


def test_a_run_that_is_trained_already_gives_the_same_subset() -> None:
    data = clouds(600)
    alone = Pretrained(data, run=SMALL, progress=False).select(fraction=0.5)
    pretrained = Pretrained(data, run=SMALL, progress=False)
    pretrained.train()
    after = pretrained.select(fraction=0.5)
    assert after.digest == alone.digest
    assert after.manifest["proxy"]["features"] == alone.manifest["proxy"]["features"]


def test_the_choice_takes_the_filters_and_the_sample_of_the_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = np.random.default_rng(0).integers(256, size=(240, 28, 28)).astype(np.uint8)
    for module in (needed_learners, proxy_features):
        monkeypatch.setattr(module, "MAX_SAMPLE", 50)
    drawn, sizes = list[int](), list[int]()
    draw, fit = feature_kinds.draw_filters, proxy_features.leave_one_out

    def draw_filters(images_NCHW: Tensor, **options: Any) -> Any:
        drawn.append(len(images_NCHW))
        return draw(images_NCHW, **options)

    def leave_one_out(features_ND: Tensor, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(features_ND))
        return fit(features_ND, *arguments, **options)

    monkeypatch.setattr(feature_kinds, "draw_filters", draw_filters)
    monkeypatch.setattr(proxy_features, "leave_one_out", leave_one_out)
    trained, manifest = selected((images, torch.arange(240) % 2), fraction=0.5, soft_labels=True)
    assert trained
    assert [one["features"] for one in manifest["proxy"]["tried"]] == ["patches", "patches+soup"]
    assert drawn == [240]
    # Each of the two on the sample, once.
    assert sizes.count(50) == 2
