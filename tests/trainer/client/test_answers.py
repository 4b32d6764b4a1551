from typing import Any

import pytest
import safetensors.torch
import torch
from grpc import StatusCode

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.errors import (
    BudgetError,
    DiagnosisError,
    FeaturesError,
    StrategyOptionError,
    SubsetError,
    UnreachableError,
    WeightsError,
)
from lipt.trainer.client import client as module
from lipt.trainer.client.client import Client
from lipt.trainer.views import ProgressView
from lipt.v1 import blob_pb2, diagnosis_pb2, run_pb2, subset_pb2
from tests.relay import Fault, Relay, answer, before, change, cut, refuse, silence
from tests.service import READY, SMALLEST, Service
from tests.trainer.made_up import described
from tests.trainer.made_up_diagnosis import FINGERPRINT, diagnosis_answer


def run_at(revision: int, state: int = run_pb2.RUN_STATE_TRAINING) -> run_pb2.Run:
    return run_pb2.Run(run_id="r-1", revision=revision, state=state)  # type: ignore[arg-type]


def shown(*runs: run_pb2.Run, then: Fault | None = None) -> Fault:
    return answer(*(run_pb2.WatchRunResponse(run=run) for run in runs), then=then)


@pytest.fixture
def waiting_run(client: Client) -> str:
    """A run whose learners nobody trains."""
    return client.start_run(SMALLEST).run_id


def test_a_new_waiting_reason_is_yielded(relay: Relay, client: Client) -> None:
    waits = run_at(1)
    waits.waiting_reason = "worker vm is idle"
    ready = run_at(2, run_pb2.RUN_STATE_READY)
    relay.next("WatchRun", shown(run_at(1), waits, waits, run_at(1), ready))
    assert [(run.revision, run.waiting_reason) for run in client.watch("r-1")] == [
        (1, ""),
        (1, "worker vm is idle"),
        (1, ""),
        (2, ""),
    ]


def test_a_cut_stream_resumes_after_the_last_revision(relay: Relay, client: Client) -> None:
    relay.next(
        "WatchRun",
        shown(run_at(1), run_at(2), then=cut()),
        shown(run_at(2), run_at(3), then=cut()),
        # A coordinator whose clock was set back starts lower after its restart.
        shown(run_at(1, run_pb2.RUN_STATE_READY)),
    )
    assert [run.revision for run in client.watch("latest")] == [1, 2, 3, 1]
    # "latest" is what it was at first, whatever has been started since.
    asked = relay.requests_of(run_pb2.WatchRunRequest)
    assert [(request.run_id, request.after_revision) for request in asked] == [
        ("latest", 0),
        ("r-1", 2),
        ("r-1", 3),
    ]


@pytest.mark.parametrize(
    ("fault", "complaint"), [(cut, "going away"), (silence, r"sent nothing for 0\.1 s")]
)
def test_a_coordinator_that_stays_away_or_silent_is_given_up(
    relay: Relay, waiting_run: str, monkeypatch: pytest.MonkeyPatch, fault: Any, complaint: str
) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.1 if fault is silence else 30.0)
    relay.every("WatchRun", fault(after=1))
    with Client(relay.address, reconnect_seconds=0.0) as client:
        changes = client.watch(waiting_run)
        assert next(changes).run_id == waiting_run
        with pytest.raises(UnreachableError, match=complaint):
            next(changes)


def progress(activity: str = "gradients", **fields: int) -> subset_pb2.GetSubsetResponse:
    part = run_pb2.Progress(activity=activity, **fields)
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


def test_interrupted_streams_and_files_resume(relay: Relay, client: Client) -> None:
    whole = client.subset(READY, "uniform", budget=40)
    computing = before(progress())
    relay.next("GetSubset", lambda answers: cut(after=1)(computing(answers)))
    relay.next("ReadBlob", cut(after=0), cut(after=1))
    assert client.subset(READY, "uniform", budget=40) == whole
    # The second cut came after all bytes: nothing is asked for again.
    assert len(relay.requests_of(blob_pb2.ReadBlobRequest)) == 3


def test_the_request_has_all_arguments(relay: Relay, client: Client) -> None:
    options = {"careful": True, "num_neighbors": 5}
    with pytest.raises(StrategyOptionError, match="no option 'careful'"):
        client.subset(READY, "cal", budget=3, balanced=False, options=options)
    client.subset(READY, "gradmatch", preset="paper", proxy="soup")
    client.subset(READY, "herding", budget=4, labels="none", features=torch.eye(1442)[:, :2])
    with pytest.raises(BudgetError):
        client.subset(READY, budget=10**6)
    one, other, third, plain = relay.requests_of(subset_pb2.GetSubsetRequest)
    assert (one.WhichOneof("size"), one.budget, one.balanced) == ("budget", 3, False)
    assert dict(one.options) == {"careful": "true", "num_neighbors": "5"}
    assert (other.fraction, other.preset, other.proxy) == (0.1, "paper", "soup")
    assert third.labels == "none"
    # All else is left to the coordinator.
    assert (plain.strategy, plain.preset, plain.proxy, plain.previous) == ("auto", "", "", "")
    absent = ("balanced", "weights", "features")
    assert not [name for name in absent if plain.HasField(name)]
    assert plain.labels in ("", "given")


def test_an_answer_without_a_description_is_refused(relay: Relay, client: Client) -> None:
    relay.next("GetSubset", answer(subset_pb2.GetSubsetResponse()))
    with pytest.raises(SubsetError, match="no description"):
        client.subset(READY, fraction=0.1)
    relay.next("Diagnose", answer(diagnosis_pb2.DiagnoseResponse()))
    with pytest.raises(DiagnosisError, match="no description"):
        client.diagnose()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_examples": 0}, "no file of a subset: it does not hold 0 examples"),
        ({"num_examples": -1}, "a subset of -1 examples"),
        ({"num_examples": 41}, "no file of a subset: it does not hold 41 examples"),
        ({"num_examples": 2**40}, "a subset of 1099511627776 examples"),
        ({"digest": "0" * 64}, "was announced"),
        ({"manifest_json": "[1]"}, "manifest is not a JSON object"),
        ({"manifest_json": "[" * 100_000}, "manifest is not JSON"),
    ],
    ids=["none", "less", "more", "huge", "other", "list", "deep"],
)
def test_a_file_that_does_not_match_its_description_is_refused(
    relay: Relay, client: Client, changes: dict[str, Any], complaint: str
) -> None:
    relay.next("GetSubset", described(**changes))
    with pytest.raises(SubsetError, match=complaint):
        client.subset(READY, "uniform", budget=40)


def test_weights_are_uploaded_first(service: Service, relay: Relay, client: Client) -> None:
    weights = safetensors.torch.load(client.weights(READY))
    content = safetensors.torch.save({name: tensor + 1 for name, tensor in weights.items()})
    subset = client.subset(READY, "el2n", budget=30, weights=content)
    assert subset != client.subset(READY, "el2n", budget=30)
    request = relay.requests_of(subset_pb2.GetSubsetRequest)[0]
    assert request.weights.size_bytes == len(content)
    assert service.blob(request.weights.sha256) == content


def test_invalid_weights_and_features_are_not_sent(relay: Relay, client: Client) -> None:
    with pytest.raises(WeightsError):
        client.subset(fraction=0.1, weights=b"\x80\x02}q\x00.")
    with pytest.raises(FeaturesError):
        client.subset(fraction=0.1, features=b"\x80\x02}q\x00.")
    assert relay.calls == []


def test_the_answer_may_be_the_previous_subset(relay: Relay, client: Client) -> None:
    first = client.subset(READY, "uniform", budget=40)
    relay.every("GetSubset", described(kept=True))
    for previous in (first, first.digest):
        again = client.subset(READY, "uniform", budget=40, previous=previous)
        assert (again.kept, again) == (True, first)


def test_a_full_queue_is_reported_and_retried(relay: Relay, client: Client) -> None:
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


def test_a_diagnosis_survives_a_cut(service: Service, relay: Relay, client: Client) -> None:
    whole = diagnosis_answer(service.store, run_id="r-1")
    relay.next("Diagnose", lambda answers: cut(after=1)(whole(answers)), whole)
    told: list[ProgressView] = []
    diagnosis = client.diagnose("latest", "ridge:learners", on_progress=told.append)
    assert str(told[-1]) == "computing features 4/8"
    assert (len(diagnosis), diagnosis.fingerprint, diagnosis.run_id) == (8, FINGERPRINT, "r-1")
    assert diagnosis.manifest == {"data": {"source": "pets"}}
    asked = diagnosis_pb2.DiagnoseRequest(run_id="latest", proxy="ridge:learners")
    assert relay.requests_of(diagnosis_pb2.DiagnoseRequest) == [asked] * 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_examples": 0}, "a diagnosis of 0 examples"),
        ({"num_examples": -(2**40)}, "a diagnosis of -1099511627776 examples"),
        ({"num_examples": 9}, "9 examples were announced, it has 8"),
        # It is not there: fetching it would be another error.
        ({"file": blob_to_proto(BlobName("a" * 64, 2**40))}, r"8 examples in 1099511627776 bytes"),
    ],
    ids=["none", "less", "more", "too-large"],
)
def test_a_diagnosis_that_does_not_fit_its_description_is_refused(
    service: Service, relay: Relay, client: Client, changes: dict[str, Any], complaint: str
) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store, **changes))
    with pytest.raises(DiagnosisError, match=complaint):
        client.diagnose()
