"""Selection without labels: whatever the labels are, the subset is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.images.formats import ImageFormat
from lipt.common.weights.files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selecting import SelectSubset
from lipt.core.selection.registry import STRATEGIES
from lipt.core.stages.question import Labels, SubsetQuery, without_labels, works_without_labels
from tests.digits import digits_settings

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))
# Of the model nothing is looked at.
NOWHERE = BlobName.of(b"never uploaded")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    settings = digits_settings(tmp_path_factory.mktemp("state"), "digits-test")
    return Context(settings, send=lambda _: None)


def with_labels(context: Context, labels_N: Tensor) -> Context:
    """The same images under other labels, which make them another data set."""
    dataset = context.dataset
    other = Context(context.settings, send=lambda _: None)
    rows = replace(dataset.rows, labels_N=labels_N)
    fingerprint = f"labels {labels_N.tolist()}"
    vars(other)["dataset"] = replace(dataset, rows=rows, fingerprint=fingerprint)
    return other


@pytest.fixture(scope="module")
def permuted(context: Context) -> Context:
    labels_N = context.dataset.labels_N
    order_N = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(0))
    return with_labels(context, labels_N[order_N])


def job_of(name: str, **others: Any) -> SelectSubset:
    plain = SelectSubset(
        config=CONFIG,
        inputs=IMAGE,
        weights=NOWHERE,
        strategy=name,
        budget=40,
        balanced=False,
        options=(),
    )
    return replace(plain, **others)


def unlabelled(name: str, **others: Any) -> SelectSubset:
    query = SubsetQuery("", name, None, 40, None, {}, None, features=others.get("features"))
    options, proxy = without_labels(STRATEGIES[name], {}, query)
    named = None if proxy.is_own_head else str(proxy)
    given = tuple(options.items())
    return job_of(name, options=given, proxy=named, labels=Labels.NONE, **others)


@pytest.mark.parametrize(
    "name", [name for name, strategy in STRATEGIES.items() if works_without_labels(strategy)]
)
def test_permuted_labels_give_the_same_subset(
    context: Context, permuted: Context, name: str
) -> None:
    job = unlabelled(name)
    first, second = job.run(context), job.run(permuted)
    assert first.num_examples == 40 or first.told["stopped_early"]
    assert first.blob == second.blob
    assert first.told["proxy"]["features"] == "patches"


@pytest.mark.parametrize("name", ["facility_location", "sas"])
def test_with_labels_they_give_another_one(context: Context, permuted: Context, name: str) -> None:
    # The test above would see them come in.
    job = job_of(name, proxy="ridge:patches")
    assert job.run(context).blob != job.run(permuted).blob


def test_a_single_class_is_enough(context: Context) -> None:
    alone = with_labels(context, torch.zeros_like(context.dataset.labels_N))
    job = unlabelled("kcenter")
    assert job.run(alone).blob == job.run(context).blob


def test_own_features_are_taken_as_they_are(context: Context, permuted: Context) -> None:
    # Of two columns one counts, unless each is divided by its deviation.
    drawn_N2 = torch.rand(len(context.dataset), 2, generator=torch.Generator().manual_seed(0))
    own = pack({"features": drawn_N2 * torch.tensor([1000.0, 1.0])})
    features = context.blobs.put_bytes(own)
    job = unlabelled("kcenter", features=features)
    assert job.proxy is None
    first = job.run(context)
    assert first.told["proxy"] == {"proxy": None}
    assert job.run(permuted).blob == first.blob
    # As where labels are given and looked at by nobody.
    assert job_of("kcenter", features=features).run(context).blob == first.blob
    assert replace(job, proxy="ridge:user").run(context).blob != first.blob
