"""What is done without images and models is the same as with them, and the rest is not done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.images.formats import ImageFormat
from lipt.common.weights.files import pack
from lipt.coordinator.compute import light
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import DescribeData
from lipt.coordinator.compute.jobs.selecting import SelectSubset
from lipt.coordinator.compute.light import LightContext
from lipt.coordinator.compute.messages import MAX_CHEAP_BYTES, Cost, TooDearError
from tests.digits import digits_context

IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))
CONFIG = RunConfig(model="resnet8")


@pytest.fixture(scope="module")
def dear(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return digits_context(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def theta_p(dear: Context) -> BlobName:
    return dear.blobs.put_bytes(pack(dear.new_model(CONFIG).state_dict()))


@pytest.fixture
def select(theta_p: BlobName) -> Callable[..., SelectSubset]:
    def job(strategy: str, **changes: Any) -> SelectSubset:
        balanced = strategy != "uniform"
        asked = SelectSubset(CONFIG, IMAGE, theta_p, strategy, 20, balanced=balanced, options=())
        return replace(asked, **changes)

    return job


@pytest.fixture
def context(dear: Context) -> LightContext:
    known = DescribeData().run(dear)
    return LightContext(dear.settings, lambda _: None, known)


def test_data_is_known_by_its_labels(dear: Context, context: LightContext) -> None:
    assert torch.equal(context.dataset.labels_N, dear.dataset.labels_N)
    assert context.dataset.labels_N.dtype is torch.int64
    for name in ("fingerprint", "inputs", "class_names", "source"):
        assert getattr(context.dataset, name) == getattr(dear.dataset, name)
    with pytest.raises(TooDearError):
        context.dataset.images(torch.tensor([0]))
    with pytest.raises(TooDearError):
        context.dataset.raw_bytes(0)


@pytest.mark.parametrize("strategy", ["uniform", "uniform_per_class"])
def test_what_is_drawn_from_labels_is_the_same(
    dear: Context, context: LightContext, select: Callable[..., SelectSubset], strategy: str
) -> None:
    assert select(strategy).run(context) == select(strategy).run(dear)


@pytest.mark.parametrize("strategy", ["grand", "el2n", "ccs"])
def test_signals_are_used_where_they_are_kept_and_the_subset_is_the_same(
    dear: Context,
    context: LightContext,
    select: Callable[..., SelectSubset],
    strategy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = select(strategy).run(dear)
    assert select(strategy).run(context) == expected
    monkeypatch.setattr(light, "MAX_CHEAP_BYTES", 1000)
    with pytest.raises(TooDearError):
        select(strategy).run(context)


def test_what_is_not_kept_is_not_computed(
    context: LightContext, select: Callable[..., SelectSubset]
) -> None:
    later = BlobName.of(b"later weights")
    for changes in ({"weights": later}, {"proxy": "ridge:patches"}, {"proxy": "auto"}):
        with pytest.raises(TooDearError):
            select("grand", **changes).run(context)


def test_signals_that_the_other_process_has_just_forgotten_are_too_dear(
    dear: Context,
    context: LightContext,
    select: Callable[..., SelectSubset],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    select("grand").run(dear)

    def gone(*_: object, **__: object) -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(light, "find_cached", gone)
    with pytest.raises(TooDearError):
        select("grand").run(context)
    monkeypatch.setattr(light, "find_cached", lambda *_, **__: dear.signals_dir / "gone")
    with pytest.raises(TooDearError):
        select("grand").run(context)


def test_a_backbone_is_not_loaded(
    context: LightContext, select: Callable[..., SelectSubset]
) -> None:
    assert context.backbone is None
    settings = context.settings.model_copy(update={"backbone": "torchvision:resnet18@missing"})
    with pytest.raises(TooDearError):
        select("grand", proxy="auto").run(replace(context, settings=settings))


def test_cost_follows_from_the_strategy_and_from_what_is_read(
    select: Callable[..., SelectSubset],
) -> None:
    small, large = BlobName("0" * 64, 1000), BlobName("0" * 64, MAX_CHEAP_BYTES + 1)
    assert select("uniform").cost is Cost.LABELS
    assert select("uniform", features=small).cost is Cost.SIGNALS
    assert select("grand").cost is Cost.SIGNALS
    assert select("moderate", features=small).cost is Cost.SIGNALS
    assert select("moderate", features=large).cost is Cost.DEAR
    assert select("facility_location").cost is Cost.DEAR
    # Pairs are the data set's own where nobody has given others.
    assert select("clip_score").cost is Cost.DEAR
    assert select("clip_score", features=small).cost is Cost.SIGNALS
    assert select("auto").cost is Cost.DEAR
