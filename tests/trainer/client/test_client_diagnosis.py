from __future__ import annotations

from typing import Any

import pytest
import torch

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.errors import DiagnosisError, FeaturesError, UnknownRunError
from lipt.common.weights.files import pack
from lipt.trainer.client.client import Client
from lipt.trainer.views import ProgressView
from lipt.v1 import diagnosis_pb2
from tests.relay import Relay, answer, cut
from tests.service import Service
from tests.trainer.made_up_diagnosis import FINGERPRINT, diagnosis_answer, diagnosis_file


def test_a_diagnosis_comes_with_its_file_and_progress(
    service: Service, relay: Relay, client: Client
) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store, run_id="r-1"))
    told: list[ProgressView] = []
    diagnosis = client.diagnose("latest", "ridge:learners", on_progress=told.append)
    assert relay.requests[0] == diagnosis_pb2.DiagnoseRequest(
        run_id="latest", proxy="ridge:learners"
    )
    assert [str(progress) for progress in told] == ["computing features 4/8"]
    assert (len(diagnosis), diagnosis.fingerprint) == (8, FINGERPRINT)
    assert diagnosis.run_id == "r-1"
    assert diagnosis.manifest == {"data": {"source": "pets"}}


def test_without_arguments_the_data_alone_is_asked_about(
    service: Service, relay: Relay, client: Client
) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store))
    assert client.diagnose().run_id == ""
    assert relay.requests[0] == diagnosis_pb2.DiagnoseRequest()


def test_own_features_are_uploaded_and_have_to_fit_the_data(
    service: Service, relay: Relay, client: Client
) -> None:
    features = {"features": torch.ones(8, 2)}
    with pytest.raises(FeaturesError, match="1442"):
        client.diagnose(features=features)
    (request,) = relay.requests_of(diagnosis_pb2.DiagnoseRequest)
    assert service.blob(request.features.sha256) == pack(features)
    with pytest.raises(FeaturesError, match="a pickle"):
        client.diagnose(features=b"\x80\x04}\x94.")


def test_a_broken_stream_is_asked_again(service: Service, relay: Relay, client: Client) -> None:
    whole = diagnosis_answer(service.store)
    relay.next("Diagnose", lambda answers: cut(after=1)(whole(answers)), whole)
    assert len(client.diagnose()) == 8
    assert len(relay.requests_of(diagnosis_pb2.DiagnoseRequest)) == 2


def test_a_refusal_is_the_same_class(client: Client) -> None:
    with pytest.raises(UnknownRunError):
        client.diagnose("x")


def test_an_end_without_a_description_is_refused(relay: Relay, client: Client) -> None:
    relay.next("Diagnose", answer(diagnosis_pb2.DiagnoseResponse()))
    with pytest.raises(DiagnosisError, match="no description"):
        client.diagnose()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_examples": 0}, "a diagnosis of 0 examples"),
        ({"num_examples": -(2**40)}, "a diagnosis of -1099511627776 examples"),
        ({"num_examples": 9}, "9 examples were announced, it has 8"),
        ({"manifest_json": "[1]"}, "manifest is not a JSON object"),
        ({"manifest_json": "{"}, "manifest is not JSON"),
        ({"manifest_json": "[" * 100_000}, "manifest is not JSON"),
        # It is not there: fetching it would be another error.
        (
            {"file": blob_to_proto(BlobName("a" * 64, 2**40))},
            r"8 examples in 1099511627776 bytes; \d+ can be",
        ),
    ],
    ids=["none", "less", "more", "list", "cut", "deep", "too-large"],
)
def test_what_does_not_fit_its_description_is_refused(
    service: Service, relay: Relay, client: Client, changes: dict[str, Any], complaint: str
) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store, **changes))
    with pytest.raises(DiagnosisError, match=complaint):
        client.diagnose()


def test_a_damaged_file_is_refused(service: Service, relay: Relay, client: Client) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store, diagnosis_file()[:-4]))
    with pytest.raises(DiagnosisError, match="what arrived is no diagnosis"):
        client.diagnose()
