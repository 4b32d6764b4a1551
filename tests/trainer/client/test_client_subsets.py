from __future__ import annotations

import hashlib
import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import safetensors.torch
import torch

from lipt.common.errors import (
    BudgetError,
    FeaturesError,
    InvalidRequestError,
    ProxyError,
    SubsetError,
    WeightsError,
)
from lipt.trainer.client.client import Client
from lipt.trainer.views import ProgressView
from lipt.v1 import blob_pb2, subset_pb2
from tests.trainer.made_up import subset_description, subset_examples

INDICES = [2, 5, 9]
WEIGHTS = [1.0, 0.5, 2.0]
DIGEST = hashlib.sha256(struct.pack("<3q3f", *INDICES, *WEIGHTS)).hexdigest()


def progress(done: int) -> subset_pb2.GetSubsetResponse:
    part = subset_pb2.SubsetProgress(activity="gradients", done=done, total=4)
    return subset_pb2.GetSubsetResponse(progress=part)


description = partial(
    subset_description, DIGEST, run_id="r-1", manifest_json=json.dumps({"seed": 0})
)


def whole() -> list[Any]:
    return [
        progress(1),
        progress(4),
        description(),
        subset_examples(INDICES[:2], WEIGHTS[:2]),
        subset_examples(INDICES[2:], WEIGHTS[2:]),
    ]


def test_a_subset_is_put_together_from_its_parts(fake: Any, client: Client) -> None:
    fake.subset_scripts = [whole()]
    seen: list[ProgressView] = []
    subset = client.subset("r-1", "grand", fraction=0.1, on_progress=seen.append)
    assert subset.indices.tolist() == INDICES
    assert subset.weights.tolist() == WEIGHTS
    assert (str(subset.indices.dtype), str(subset.weights.dtype)) == ("int64", "float32")
    assert subset.fingerprint == "f" * 64
    assert subset.manifest == {"seed": 0}
    assert [(item.done, item.total) for item in seen] == [(1, 4), (4, 4)]


def test_the_request_says_what_was_asked(fake: Any, client: Client) -> None:
    fake.subset_scripts = [whole()]
    client.subset(budget=3, balanced=False, options={"exact": True, "rate": 0.5})
    (request,) = fake.requests
    assert request.run_id == "latest"
    assert request.strategy == "auto"
    assert request.WhichOneof("size") == "budget"
    assert (request.budget, request.balanced) == (3, False)
    assert dict(request.options) == {"exact": "true", "rate": "0.5"}
    assert not request.HasField("weights")


def test_a_preset_is_asked_for_and_answered(fake: Any, client: Client) -> None:
    script = whole()
    script[2] = description(manifest_json=json.dumps({"preset": "paper"}))
    fake.subset_scripts = [script]
    assert client.subset(strategy="ccs", budget=3, preset="paper").indices.tolist() == INDICES
    (request,) = fake.requests
    assert request.preset == "paper"


def test_a_coordinator_without_presets_is_not_taken_for_one_with_them(
    fake: Any, client: Client
) -> None:
    fake.subset_scripts = [whole()]
    words = "'paper' was asked for, and the coordinator selected without it.*Update it"
    with pytest.raises(InvalidRequestError, match=words):
        client.subset(budget=3, preset="paper")


def test_a_proxy_is_named_and_has_to_be_looked_at(fake: Any, client: Client) -> None:
    told = json.dumps({"proxy": {"proxy": "ridge:patches"}})
    examples = subset_examples(INDICES, WEIGHTS)
    fake.subset_scripts = [[description(manifest_json=told), examples], whole(), whole()]
    assert client.subset(budget=3, proxy="ridge:patches").indices.tolist() == INDICES
    assert fake.requests[0].proxy == "ridge:patches"
    # An older coordinator answers as if nothing had been said.
    with pytest.raises(ProxyError, match=r"older version.*'ridge:patches'"):
        client.subset(budget=3, proxy="ridge:patches")
    client.subset(budget=3)
    assert fake.requests[-1].proxy == ""


def test_labels_are_left_out_where_that_is_asked_for(fake: Any, client: Client) -> None:
    told = json.dumps({"labels": "none"})
    examples = subset_examples(INDICES, WEIGHTS)
    fake.subset_scripts = [[description(manifest_json=told), examples], whole(), whole()]
    subset = client.subset(strategy="kcenter", budget=3, labels="none")
    assert subset.indices.tolist() == INDICES
    assert fake.requests[0].labels == "none"
    # An older coordinator lets them enter.
    words = "labels=none was asked for, and the coordinator selected as if they were given.*Update"
    with pytest.raises(InvalidRequestError, match=words):
        client.subset(strategy="kcenter", budget=3, labels="none")
    # It is asked what it knows.
    assert client.subset(budget=3).indices.tolist() == INDICES
    assert fake.requests[-1].labels in ("", "given")


def test_balance_is_left_to_the_strategy_where_it_is_not_given(fake: Any, client: Client) -> None:
    fake.subset_scripts = [whole()]
    client.subset(fraction=0.1)
    (request,) = fake.requests
    assert request.WhichOneof("size") == "fraction"
    assert not request.HasField("balanced")


@pytest.mark.parametrize("size", [{}, {"fraction": 0.1, "budget": 3}])
def test_one_of_fraction_and_budget_has_to_be_given(
    fake: Any, client: Client, size: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match="give one of them"):
        client.subset(**size)
    assert fake.requests == []


def test_a_cut_stream_is_asked_again_from_its_start(fake: Any, client: Client, cut: Any) -> None:
    fake.subset_scripts = [[*whole()[:4], cut], whole()]
    assert client.subset(fraction=0.1).indices.tolist() == INDICES


def test_a_refusal_is_raised_as_its_class(fake: Any, client: Client, refusal: Any) -> None:
    sentence = "budget 9 is outside 1..3."
    fake.subset_scripts = [[refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_BUDGET", sentence)]]
    with pytest.raises(BudgetError, match=r"outside 1\.\.3"):
        client.subset(budget=9)


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ([subset_description("0" * 64), subset_examples(INDICES, WEIGHTS)], "was announced"),
        ([description(), subset_examples([2, 5, 8], WEIGHTS)], DIGEST),
        ([description(), subset_examples(INDICES, [1.0, 0.5, 2.5])], DIGEST),
        ([description(), subset_examples(INDICES[:2], WEIGHTS[:2])], "3 examples and sent 2"),
        (
            [description(), subset_examples([*INDICES, 10], [*WEIGHTS, 1.0])],
            "3 examples and sent 4",
        ),
        ([description(), subset_examples([9, 5, 2], WEIGHTS)], "ascending"),
        ([description(), subset_examples(INDICES, WEIGHTS[:2])], "one weight per index"),
        ([description(), subset_examples([], [1.0] * 4)], "3 examples and sent 4"),
        ([subset_examples(INDICES, WEIGHTS)], "no description"),
        ([description(manifest_json="{"), subset_examples(INDICES, WEIGHTS)], "not JSON"),
        ([description(manifest_json="[]"), subset_examples(INDICES, WEIGHTS)], "not a JSON object"),
    ],
)
def test_what_differs_from_its_announcement_is_refused(
    fake: Any, client: Client, script: list[Any], complaint: str
) -> None:
    fake.subset_scripts = [script]
    with pytest.raises(SubsetError, match=complaint):
        client.subset(fraction=0.1)


def test_weights_to_select_on_are_uploaded_before(fake: Any, client: Client) -> None:
    content = struct.pack("<Q", 2) + b"{}"
    fake.subset_scripts = [whole()]
    client.subset(fraction=0.1, weights=content)
    name = hashlib.sha256(content).hexdigest()
    assert fake.blobs[name] == content
    (request,) = fake.requests_of(subset_pb2.GetSubsetRequest)
    assert request.weights == blob_pb2.BlobRef(sha256=name, size_bytes=10)


def test_a_pickle_to_select_on_is_never_sent(fake: Any, client: Client) -> None:
    with pytest.raises(WeightsError, match="pickle"):
        client.subset(fraction=0.1, weights=b"\x80\x02}q\x00.")
    assert fake.requests == []


def test_a_plain_request_has_no_features_and_no_previous_subset(fake: Any, client: Client) -> None:
    fake.subset_scripts = [whole()]
    subset = client.subset(fraction=0.1)
    (request,) = fake.requests
    assert not request.HasField("features")
    assert request.previous == ""
    assert not subset.kept
    assert subset.stopped_early == ""


def test_the_previous_subset_is_named_by_its_digest(fake: Any, client: Client) -> None:
    kept = [description(kept=True), subset_examples(INDICES, WEIGHTS)]
    fake.subset_scripts = [whole(), kept, kept]
    first = client.subset(fraction=0.1)
    again = client.subset(fraction=0.1, previous=first)
    assert again.kept
    assert again == first  # the very same examples
    assert client.subset(fraction=0.1, previous=first.digest).kept
    assert [request.previous for request in fake.requests] == ["", DIGEST, DIGEST]


def test_an_early_stop_is_read_from_the_manifest(fake: Any, client: Client) -> None:
    manifest = json.dumps({"stopped_early": "nothing is left to gain."})
    fake.subset_scripts = [[description(manifest_json=manifest), subset_examples(INDICES, WEIGHTS)]]
    assert client.subset(fraction=0.1).stopped_early == "nothing is left to gain."


@pytest.mark.parametrize("form", ["path", "text", "bytes"])
def test_features_to_select_on_are_uploaded_before(
    fake: Any, client: Client, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "features.safetensors"
    safetensors.torch.save_file({"features": torch.ones(3, 2)}, path)
    content = path.read_bytes()
    fake.subset_scripts = [whole()]
    given = {"path": path, "text": str(path), "bytes": content}[form]
    client.subset(fraction=0.1, features=given)
    name = hashlib.sha256(content).hexdigest()
    assert fake.blobs[name] == content
    (request,) = fake.requests_of(subset_pb2.GetSubsetRequest)
    assert request.features == blob_pb2.BlobRef(sha256=name, size_bytes=len(content))


def test_features_may_be_tensors_arrays_or_lists(fake: Any, client: Client) -> None:
    fake.subset_scripts = [whole()]
    features = {
        "features": torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True),
        "paired_features": np.array([[1.0], [2.0]], np.float32),
    }
    client.subset(fraction=0.1, features=features)
    (request,) = fake.requests_of(subset_pb2.GetSubsetRequest)
    sent = safetensors.torch.load(fake.blobs[request.features.sha256])
    assert sent["features"].dtype == torch.bfloat16
    assert sent["features"].tolist() == [[1.0, 1.0]] * 2
    assert sent["paired_features"].tolist() == [[1.0], [2.0]]
    fake.subset_scripts = [whole()]
    client.subset(fraction=0.1, features={"features": [[0.5], [1.5]]})
    request = fake.requests_of(subset_pb2.GetSubsetRequest)[-1]
    assert safetensors.torch.load(fake.blobs[request.features.sha256])["features"].shape == (2, 1)


@pytest.mark.parametrize("form", ["array", "read-only", "transposed", "tensor", "lists"])
def test_features_may_be_given_without_a_name(fake: Any, client: Client, form: str) -> None:
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    array = np.array(rows)
    read_only = array.copy()
    read_only.flags.writeable = False
    given = {
        "array": array,
        "read-only": read_only,
        "transposed": np.array(rows).T.copy().T,
        "tensor": torch.tensor(rows),
        "lists": rows,
    }
    fake.subset_scripts = [whole()]
    client.subset(fraction=0.1, features=given[form])
    (request,) = fake.requests_of(subset_pb2.GetSubsetRequest)
    sent = safetensors.torch.load(fake.blobs[request.features.sha256])
    assert list(sent) == ["features"]
    assert sent["features"].tolist() == rows


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (b"\x80\x02}q\x00.", r"the content is a pickle, .* any code\. Give \{'features'"),
        (b"nothing of the kind", r"not a safetensors file.*'features': N x d"),
        ({"features": [[1.0], [2.0, 3.0]]}, r"are no tensors \(.*'features': N x d"),
        ({"features": "many"}, "are no tensors"),
    ],
)
def test_what_is_no_features_is_never_sent(
    fake: Any, client: Client, features: Any, words: str
) -> None:
    with pytest.raises(FeaturesError, match=words):
        client.subset(fraction=0.1, features=features)
    assert fake.requests == []


def test_a_full_queue_is_told_and_asked_again(fake: Any, client: Client, refusal: Any) -> None:
    full = refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "9 requests wait. Ask again.", 0.25
    )
    waiting = subset_pb2.SubsetProgress(activity="waiting for its turn", ahead=3)
    fake.subset_scripts = [[full], [subset_pb2.GetSubsetResponse(progress=waiting), *whole()]]
    seen: list[ProgressView] = []
    assert client.subset(budget=3, on_progress=seen.append).indices.tolist() == INDICES
    assert [str(progress) for progress in seen[:2]] == [
        "9 requests wait; asking again in 0.2 s",
        "waiting for its turn, 3 ahead",
    ]
    assert len(fake.requests) == 2
