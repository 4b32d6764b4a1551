from __future__ import annotations

import hashlib
from typing import Any

import grpc
import pytest
import torch

from lipt.common.blobs.messages import blob_to_proto
from lipt.common.blobs.name import BlobName
from lipt.common.errors import DiagnosisError, FeaturesError, UnknownRunError
from lipt.trainer.client.client import Client
from lipt.trainer.views import ProgressView
from lipt.v1 import diagnosis_pb2
from tests.trainer.made_up_diagnosis import FINGERPRINT, diagnosis_file, diagnosis_script


def test_a_diagnosis_comes_with_its_file_and_progress(fake: Any, client: Client) -> None:
    fake.diagnosis_scripts = [diagnosis_script(fake.blobs, run_id="r-1")]
    told: list[ProgressView] = []
    diagnosis = client.diagnose("latest", "ridge:learners", on_progress=told.append)
    (request,) = fake.requests
    assert request == diagnosis_pb2.DiagnoseRequest(run_id="latest", proxy="ridge:learners")
    assert [str(progress) for progress in told] == ["computing features 4/8"]
    assert (len(diagnosis), diagnosis.fingerprint) == (8, FINGERPRINT)
    assert diagnosis.run_id == "r-1"
    assert diagnosis.manifest == {"data": {"source": "pets"}}


def test_without_arguments_the_data_alone_is_asked_about(fake: Any, client: Client) -> None:
    fake.diagnosis_scripts = [diagnosis_script(fake.blobs)]
    assert client.diagnose().run_id == ""
    (request,) = fake.requests
    assert request == diagnosis_pb2.DiagnoseRequest()


def test_own_features_are_uploaded(fake: Any, client: Client) -> None:
    fake.diagnosis_scripts = [diagnosis_script(fake.blobs)]
    client.diagnose(features={"features": torch.ones(8, 2)})
    (request,) = fake.requests_of(diagnosis_pb2.DiagnoseRequest)
    content = fake.blobs[request.features.sha256]
    assert hashlib.sha256(content).hexdigest() == request.features.sha256
    with pytest.raises(FeaturesError, match="a pickle"):
        client.diagnose(features=b"\x80\x04}\x94.")


def test_a_broken_stream_is_asked_again(fake: Any, client: Client, cut: Any) -> None:
    script = diagnosis_script(fake.blobs)
    fake.diagnosis_scripts = [[script[0], cut], script]
    assert len(client.diagnose()) == 8
    assert len(fake.requests) == 2


def test_a_refusal_is_the_same_class(fake: Any, client: Client, refusal: Any) -> None:
    sentence = "there is no run 'x'. There are: mine."
    fake.diagnosis_scripts = [[refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_RUN", sentence)]]
    with pytest.raises(UnknownRunError, match="There are: mine"):
        client.diagnose("x")


def test_an_end_without_a_description_is_refused(fake: Any, client: Client) -> None:
    fake.diagnosis_scripts = [diagnosis_script(fake.blobs)[:1]]
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
    ],
)
def test_what_does_not_fit_its_description_is_refused(
    fake: Any, client: Client, changes: dict[str, Any], complaint: str
) -> None:
    fake.diagnosis_scripts = [diagnosis_script(fake.blobs, **changes)]
    with pytest.raises(DiagnosisError, match=complaint):
        client.diagnose()


def test_a_file_that_is_too_large_is_not_fetched(fake: Any, client: Client) -> None:
    # It is not there: fetching it would be another error.
    huge = blob_to_proto(BlobName("a" * 64, 2**40))
    fake.diagnosis_scripts = [diagnosis_script({}, file=huge)]
    with pytest.raises(DiagnosisError, match=r"8 examples in 1099511627776 bytes; \d+ can be"):
        client.diagnose()


def test_a_damaged_file_is_refused(fake: Any, client: Client) -> None:
    fake.diagnosis_scripts = [diagnosis_script(fake.blobs, diagnosis_file()[:-4])]
    with pytest.raises(DiagnosisError, match="what arrived is no diagnosis"):
        client.diagnose()
