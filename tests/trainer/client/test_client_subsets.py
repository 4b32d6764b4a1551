from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from grpc import StatusCode

from lipt.common.errors import (
    BudgetError,
    FeaturesError,
    InvalidRequestError,
    LiptError,
    ProxyError,
    SubsetError,
    WeightsError,
)
from lipt.trainer.client.client import Client
from lipt.trainer.views import ProgressView
from lipt.v1 import subset_pb2
from tests.relay import Fault, Relay, answer, before, change, cut, refuse
from tests.service import READY, Service
from tests.trainer.made_up import described


def progress(activity: str = "gradients", **fields: int) -> subset_pb2.GetSubsetResponse:
    part = subset_pb2.SubsetProgress(activity=activity, **fields)
    return subset_pb2.GetSubsetResponse(progress=part)


def noting(kinds: list[str]) -> Fault:
    """The answer as it is; of what its messages are goes into the list."""
    return change(lambda message: kinds.append(message.WhichOneof("part")))


def test_a_subset_comes_packed_with_its_progress(
    service: Service, relay: Relay, client: Client
) -> None:
    kinds: list[str] = []
    counting = before(progress("gradients", done=1, total=4))
    relay.next("GetSubset", lambda answers: noting(kinds)(counting(answers)))
    seen: list[ProgressView] = []
    subset = client.subset(READY, "el2n", budget=30, on_progress=seen.append)
    assert (len(subset), subset.strategy) == (30, "el2n")
    assert (str(subset.indices.dtype), str(subset.weights.dtype)) == ("int64", "float32")
    assert subset.fingerprint == service.ready.fingerprint
    assert subset.manifest["run_name"] == READY
    assert (subset.kept, subset.stopped_early) == (False, "")
    assert [kind for kind in kinds if kind != "progress"] == ["subset", "packed"]
    assert len(seen) == kinds.count("progress") > 0
    assert str(seen[0]) == "gradients 1/4"
    (request,) = relay.requests
    assert (request.run_id, request.strategy, request.accept_packed) == (READY, "el2n", True)


def test_a_plain_request_leaves_everything_to_the_coordinator(relay: Relay, client: Client) -> None:
    relay.next("GetSubset", refuse(StatusCode.INVALID_ARGUMENT, "INVALID_BUDGET", "none."))
    with pytest.raises(BudgetError):
        client.subset(fraction=0.1)
    (request,) = relay.requests
    assert (request.run_id, request.strategy) == ("latest", "auto")
    assert request.WhichOneof("size") == "fraction"
    absent = ("balanced", "weights", "features")
    assert not [name for name in absent if request.HasField(name)]
    assert (request.preset, request.proxy, request.previous) == ("", "", "")
    assert request.labels in ("", "given")


def test_the_request_says_what_was_asked(relay: Relay, client: Client) -> None:
    options = {"normalized": True, "num_neighbors": 5}
    client.subset(READY, "cal", budget=3, balanced=False, options=options)
    (request,) = relay.requests
    assert request.WhichOneof("size") == "budget"
    assert (request.budget, request.balanced) == (3, False)
    assert dict(request.options) == {"normalized": "true", "num_neighbors": "5"}


@pytest.mark.parametrize(
    ("asked", "older", "error", "words"),
    [
        (
            {"strategy": "gradmatch", "preset": "paper"},
            "preset",
            InvalidRequestError,
            "'paper' was asked for, and the coordinator selected without it.*Update it",
        ),
        (
            {"strategy": "el2n", "proxy": "soup"},
            "proxy",
            ProxyError,
            "older version.*'soup'",
        ),
        (
            {"strategy": "herding", "labels": "none", "features": torch.eye(1442)[:, :2]},
            "labels",
            InvalidRequestError,
            "labels=none was asked for, and the coordinator selected as if they were given.*Upd",
        ),
    ],
    ids=["preset", "proxy", "labels"],
)
def test_what_an_older_coordinator_passes_over_is_noticed(
    relay: Relay,
    client: Client,
    asked: dict[str, Any],
    older: str,
    error: type[LiptError],
    words: str,
) -> None:
    assert older in client.subset(READY, budget=40, **asked).manifest
    request = relay.requests_of(subset_pb2.GetSubsetRequest)[0]
    assert getattr(request, older) == asked[older]
    relay.next("GetSubset", described(manifest_json=json.dumps({"seed": 0})))
    with pytest.raises(error, match=words):
        client.subset(READY, budget=40, **asked)


@pytest.mark.parametrize("size", [{}, {"fraction": 0.1, "budget": 3}])
def test_one_of_fraction_and_budget_has_to_be_given(
    relay: Relay, client: Client, size: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match="give one of them"):
        client.subset(**size)
    assert relay.calls == []


def test_a_cut_stream_goes_on_after_what_has_come(relay: Relay, client: Client) -> None:
    whole = client.subset(READY, "uniform", budget=40)
    relay.next("GetSubset", cut(after=1), cut(after=2))
    again = client.subset(READY, "uniform", budget=40)
    assert again == whole
    asked = [(request.received_digest, request.num_received) for request in relay.requests[1:]]
    # Nothing but the description had come at first, and then all examples.
    assert asked == [("", 0), ("", 0), (whole.digest, 40)]


def test_examples_without_a_description_are_refused(relay: Relay, client: Client) -> None:
    part = subset_pb2.SubsetExamples(indices=[1], weights=[1.0])
    relay.next("GetSubset", answer(subset_pb2.GetSubsetResponse(examples=part)))
    with pytest.raises(SubsetError, match="no description"):
        client.subset(READY, fraction=0.1)


def test_what_differs_from_its_announcement_is_refused(relay: Relay, client: Client) -> None:
    relay.next("GetSubset", described(digest="0" * 64))
    with pytest.raises(SubsetError, match="was announced"):
        client.subset(READY, "uniform", budget=40)


def test_a_refusal_is_raised_as_its_class(client: Client) -> None:
    with pytest.raises(BudgetError, match=r"outside 1\.\.1442"):
        client.subset(READY, "uniform", budget=1443)


def test_weights_to_select_on_are_uploaded_before(
    service: Service, relay: Relay, client: Client
) -> None:
    weights = safetensors.torch.load(client.weights(READY))
    content = safetensors.torch.save({name: tensor + 1 for name, tensor in weights.items()})
    subset = client.subset(READY, "el2n", budget=30, weights=content)
    assert subset != client.subset(READY, "el2n", budget=30)
    request = relay.requests_of(subset_pb2.GetSubsetRequest)[0]
    assert request.weights.size_bytes == len(content)
    assert service.blob(request.weights.sha256) == content


def test_what_is_no_weights_or_features_is_never_sent(relay: Relay, client: Client) -> None:
    with pytest.raises(WeightsError):
        client.subset(fraction=0.1, weights=b"\x80\x02}q\x00.")
    with pytest.raises(FeaturesError):
        client.subset(fraction=0.1, features=b"\x80\x02}q\x00.")
    assert relay.calls == []


@pytest.mark.parametrize("form", ["path", "content", "array"])
def test_features_to_select_on_are_uploaded_before(
    service: Service, relay: Relay, client: Client, tmp_path: Path, form: str
) -> None:
    features = np.random.default_rng(0).normal(size=(1442, 2)).astype(np.float32)
    path = tmp_path / "features.safetensors"
    safetensors.torch.save_file({"features": torch.from_numpy(features)}, path)
    given = {"path": path, "content": path.read_bytes(), "array": features}[form]
    assert len(client.subset(READY, "herding", budget=20, features=given)) == 20
    (request,) = relay.requests_of(subset_pb2.GetSubsetRequest)
    sent = safetensors.torch.load(service.blob(request.features.sha256))
    assert sent["features"].tolist() == features.tolist()


def test_features_that_do_not_fit_the_data_are_refused(client: Client) -> None:
    with pytest.raises(FeaturesError, match="1442"):
        client.subset(READY, "herding", budget=20, features=torch.ones(3, 2))


def test_a_difference_is_sent_to_who_has_the_previous_examples(
    relay: Relay, client: Client
) -> None:
    old = client.subset(READY, "el2n", budget=300)
    whole: list[str] = []
    relay.next("GetSubset", noting(whole))
    new = client.subset(READY, "el2n", budget=301, previous=old.digest)
    parts: list[str] = []
    relay.next("GetSubset", noting(parts))
    again = client.subset(READY, "el2n", budget=301, previous=old)
    assert again == new
    assert "packed" in whole
    assert "difference" in parts
    asked = [(request.previous, request.accept_difference) for request in relay.requests[-2:]]
    assert asked == [(old.digest, False), (old.digest, True)]


def test_a_difference_for_who_has_only_a_digest_is_refused(relay: Relay, client: Client) -> None:
    relay.next("GetSubset", described(difference_to="0" * 64))
    with pytest.raises(SubsetError, match="and none is here"):
        client.subset(READY, "uniform", budget=40, previous="0" * 64)


def test_the_answer_may_be_the_previous_subset(relay: Relay, client: Client) -> None:
    first = client.subset(READY, "uniform", budget=40)
    relay.every("GetSubset", described(kept=True))
    again = client.subset(READY, "uniform", budget=40, previous=first)
    assert again.kept
    assert again == first
    assert client.subset(READY, "uniform", budget=40, previous=first.digest).kept


def test_an_early_stop_is_read_from_the_manifest(relay: Relay, client: Client) -> None:
    manifest = json.dumps({"stopped_early": "nothing is left to gain."})
    relay.next("GetSubset", described(manifest_json=manifest))
    subset = client.subset(READY, "uniform", budget=40)
    assert subset.stopped_early == "nothing is left to gain."


def test_a_full_queue_is_told_and_asked_again(relay: Relay, client: Client) -> None:
    full = "9 requests wait. Ask again."
    code, waiting = StatusCode.RESOURCE_EXHAUSTED, progress("waiting for its turn", ahead=3)
    relay.next(
        "GetSubset", refuse(code, "QUEUE_FULL", full, retry_after_seconds=0.25), before(waiting)
    )
    seen: list[ProgressView] = []
    assert len(client.subset(READY, "uniform", budget=40, on_progress=seen.append)) == 40
    assert [str(progress) for progress in seen[:2]] == [
        "9 requests wait; asking again in 0.2 s",
        "waiting for its turn, 3 ahead",
    ]
    assert len(relay.calls) == 2
