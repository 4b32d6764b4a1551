"""Diagnosis of digits without a run: labels flipped on purpose, and one picture there twice."""

from __future__ import annotations

import json

import pytest
import torch

from lipt.common.config.run_config import RunConfig
from lipt.common.errors import ProxyError
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selecting import DiagnoseData
from lipt.core.diagnosis.diagnosis import Diagnosis
from lipt.core.proxies.proxy import Proxy
from lipt.core.stages.question import Sources
from tests.digits import digits_settings
from tests.in_memory import in_memory

SOURCES = Sources(RunConfig(model="resnet8", seed=3, evaluation_threads=1), None, None)
DIAGNOSE = DiagnoseData(SOURCES, Proxy.parse("ridge:patches"))
FLIPPED = list(range(0, 300, 10))
COPY = 299


@pytest.fixture
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    settings = digits_settings(tmp_path_factory.mktemp("state"), "digits-test")
    context = Context(settings, send=lambda _: None)
    plain = context.dataset
    some = torch.arange(min(300, len(plain)))
    images, labels_N = plain.images(some), plain.labels_N[some].clone()
    images[COPY], labels_N[COPY] = images[1], labels_N[1]
    labels_N[FLIPPED] = (labels_N[FLIPPED] + 1) % 10
    flipped = in_memory("flipped", plain.class_names, labels_N, "print", images)
    vars(context)["dataset"] = flipped
    return context


def test_flipped_labels_and_copies_are_found_without_a_run(context: Context) -> None:
    diagnosed = DIAGNOSE.run(context)
    diagnosis = Diagnosis.load(context.blobs.verified_path(diagnosed.blob))
    summary = diagnosis.summary
    assert diagnosed.device == "cpu"
    assert json.loads(json.dumps(summary)) == summary
    assert summary["proxy"]["features"] == "patches"
    ranked = [one["id"] for one in summary["label_errors"]["ranked"]]
    assert len(set(ranked[:20]) & set(FLIPPED)) >= 18
    assert summary["label_errors"]["noise_low"] <= 0.1 <= summary["label_errors"]["noise_high"]
    assert summary["duplicates"]["exact_groups"] == 1
    assert diagnosis.columns["duplicate_of"][[1, COPY]].unique().numel() == 1
    assert summary["learnability"]["sizes"] == [150, 300]
    assert summary["redundancy"]["sampled"] == 300
    assert summary["seconds"].keys() == {
        "signals",
        "label_errors",
        "duplicates",
        "outliers",
        "redundancy",
        "learnability",
    }


def test_one_question_has_one_answer(context: Context) -> None:
    first, second = (
        Diagnosis.load(context.blobs.verified_path(DIAGNOSE.run(context).blob)) for _ in range(2)
    )
    for name, column in first.columns.items():
        assert torch.equal(column, second.columns[name]), name
    assert {**first.summary, "seconds": {}} == {**second.summary, "seconds": {}}


def test_a_head_that_has_learned_from_the_labels_is_refused(context: Context) -> None:
    own = Proxy.parse("soup")
    with pytest.raises(ProxyError, match="has learned from the labels that it would judge"):
        DiagnoseData(SOURCES, own).run(context)


def test_features_of_a_model_need_a_run(context: Context) -> None:
    soup = Proxy.parse("ridge:soup")
    with pytest.raises(ProxyError, match="`soup` needs a run"):
        DiagnoseData(SOURCES, soup).run(context)
