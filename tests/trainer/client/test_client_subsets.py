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
    SubsetError,
    WeightsError,
)
from lipt.trainer.client.client import Client
from lipt.trainer.views import ProgressView
from lipt.v1 import blob_pb2, subset_pb2
from tests.relay import Fault, Relay, answer, before, change, cut, refuse
from tests.service import READY, Service
from tests.trainer.made_up import described


def progress(activity: str = "gradients", **fields: int) -> subset_pb2.GetSubsetResponse:
    part = subset_pb2.SubsetProgress(activity=activity, **fields)
    return subset_pb2.GetSubsetResponse(progress=part)


def noting(kinds: list[str]) -> Fault:
    """The answer as it is; of what its messages are goes into the list."""
    return change(lambda message: kinds.append(message.WhichOneof("part")))


def test_a_subset_comes_with_its_progress(service: Service, relay: Relay, client: Client) -> None:
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
    assert [kind for kind in kinds if kind != "progress"] == ["subset"]
    assert len(seen) == kinds.count("progress") > 0
    assert str(seen[0]) == "gradients 1/4"
    request = relay.requests[0]
    assert (request.run_id, request.strategy) == (READY, "el2n")


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
    request = relay.requests[0]
    assert request.WhichOneof("size") == "budget"
    assert (request.budget, request.balanced) == (3, False)
    assert dict(request.options) == {"normalized": "true", "num_neighbors": "5"}


def test_a_preset_a_proxy_and_labels_are_passed_on(relay: Relay, client: Client) -> None:
    client.subset(READY, "gradmatch", budget=40, preset="paper", proxy="soup")
    client.subset(READY, "herding", budget=4, labels="none", features=torch.eye(1442)[:, :2])
    first, second = relay.requests_of(subset_pb2.GetSubsetRequest)
    assert (first.preset, first.proxy, second.labels) == ("paper", "soup", "none")


def test_one_of_fraction_and_budget_is_given(relay: Relay, client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="give one of them"):
        client.subset(fraction=0.1, budget=3)
    assert relay.calls == []


def test_a_tenth_is_chosen_where_neither_is_given(relay: Relay, client: Client) -> None:
    assert len(client.subset(READY, "uniform")) == 144
    assert relay.requests[0].fraction == 0.1


def test_a_stream_and_a_file_that_are_cut_are_gone_on_with(relay: Relay, client: Client) -> None:
    whole = client.subset(READY, "uniform", budget=40)
    computing = before(progress())
    relay.next("GetSubset", lambda answers: cut(after=1)(computing(answers)))
    relay.next("ReadBlob", cut(after=0), cut(after=1))
    assert client.subset(READY, "uniform", budget=40) == whole
    # The second cut came after all bytes: nothing is asked for again.
    assert len(relay.requests_of(blob_pb2.ReadBlobRequest)) == 3


def test_an_end_without_a_description_is_refused(relay: Relay, client: Client) -> None:
    relay.next("GetSubset", answer(subset_pb2.GetSubsetResponse()))
    with pytest.raises(SubsetError, match="no description"):
        client.subset(READY, fraction=0.1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_examples": 0}, "no file of a subset: it holds more than 0"),
        ({"num_examples": -1}, "a subset of -1 examples"),
        ({"num_examples": 41}, "no file of a subset: it holds fewer"),
        ({"num_examples": 2**40}, "a subset of 1099511627776 examples"),
        ({"manifest_json": "[1]"}, "manifest is not a JSON object"),
        ({"manifest_json": "[" * 100_000}, "manifest is not JSON"),
    ],
    ids=["none", "less", "more", "huge", "list", "deep"],
)
def test_what_does_not_fit_its_description_is_refused(
    relay: Relay, client: Client, changes: dict[str, Any], complaint: str
) -> None:
    relay.next("GetSubset", described(**changes))
    with pytest.raises(SubsetError, match=complaint):
        client.subset(READY, "uniform", budget=40)


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
    assert len(relay.requests_of(subset_pb2.GetSubsetRequest)) == 2
