import contextlib
import hashlib
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from lipt.common.errors import (
    ConfigError,
    FeaturesError,
    InvalidRequestError,
    LiptError,
    NotACoordinatorError,
    OtherDataError,
    PermissionDeniedError,
    RunFailedError,
    UnauthenticatedError,
    UnreachableError,
)
from lipt.common.states import RunState
from lipt.trainer.client.client import Client
from lipt.trainer.client.sources import features_source
from lipt.v1 import blob_pb2, run_pb2
from tests.relay import Fault, Relay, answer, before, change
from tests.service import READY, SMALLEST, Service


def test_an_unknown_setting_is_refused_before_sending(relay: Relay, client: Client) -> None:
    with pytest.raises(ConfigError, match=r"learners\.num_stepz: there is no such setting"):
        client.start_run({"learners": {"num_stepz": 5}})
    assert relay.calls == []


def test_all_pages_of_runs_are_read(relay: Relay, client: Client) -> None:
    pages = (("c", "1"), ("b", "2"), ("a", ""))
    relay.next(
        "ListRuns",
        *(
            answer(run_pb2.ListRunsResponse(runs=[run_pb2.Run(run_id=run)], next_page_token=token))
            for run, token in pages
        ),
    )
    assert [run.run_id for run in client.runs()] == ["c", "b", "a"]
    assert [request.page_token for request in relay.requests] == ["", "1", "2"]


def test_a_cancelled_run_is_not_waited_for(client: Client) -> None:
    run = client.start_run(SMALLEST, name="cancelled")
    assert client.cancel(run.run_id).state is RunState.CANCELLED
    with pytest.raises(RunFailedError, match=r"^run cancelled is cancelled\.$"):
        client.wait(run.run_id)


def test_an_unreachable_address_is_an_error_with_hints(dead_address: str) -> None:
    with Client(dead_address) as client, pytest.raises(UnreachableError) as caught:
        client.run("x")
    assert dead_address in str(caught.value)
    assert "Check that lipt-coordinator runs there" in str(caught.value)
    assert "without TLS" in str(caught.value)


@pytest.fixture
def plain_server() -> Iterator[Callable[[bytes], str]]:
    with contextlib.ExitStack() as stack:

        def start(greeting: bytes) -> str:
            class Greet(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    self.request.sendall(greeting)
                    while self.request.recv(1024):
                        pass

            class Server(socketserver.ThreadingTCPServer):
                daemon_threads = True

            server = stack.enter_context(Server(("127.0.0.1", 0), Greet))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"127.0.0.1:{server.server_address[1]}"

        yield start


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n"],
    ids=["http", "ssh"],
)
def test_servers_without_grpc(plain_server: Callable[[bytes], str], greeting: bytes) -> None:
    address = plain_server(greeting)
    complaint = f"{address} is not a LiPT coordinator: it does not speak gRPC.*Check host and port"
    with Client(address) as client:
        for call in (client.info, lambda: client.subset(fraction=0.1)):
            with pytest.raises(NotACoordinatorError, match=complaint):
                call()


def in_state(state: Any, message: str = "") -> Fault:
    def edit(response: Any) -> None:
        response.run.state = state
        response.run.message = message

    return change(edit)


HELD = "run r was made on data with fingerprint a, this coordinator now serves other with b."


@pytest.mark.parametrize(
    ("state", "message", "error", "told"),
    [
        ("FAILED", "no learner arrived.", RunFailedError, "run first is failed: no learner arri"),
        ("HELD", HELD, OtherDataError, HELD),
        ("READY", "", None, ""),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_waiting_ends_with_the_ready_run_or_with_the_reason(
    relay: Relay,
    client: Client,
    state: str,
    message: str,
    error: type[LiptError] | None,
    told: str,
    at_once: bool,
) -> None:
    last = in_state(run_pb2.RunState.Value(f"RUN_STATE_{state}"), message)
    if at_once:
        relay.next("GetRun", last)
    else:
        relay.next("GetRun", in_state(run_pb2.RUN_STATE_TRAINING))
        relay.next("WatchRun", last)
    if error is None:
        assert client.wait(READY).state is RunState.READY
    else:
        with pytest.raises(error, match=told):
            client.wait(READY)
    assert bool(relay.requests_of(run_pb2.WatchRunRequest)) is not at_once


def test_a_watch_goes_on_while_the_run_is_held(relay: Relay, client: Client) -> None:
    held = run_pb2.Run(run_id="r", revision=1, state=run_pb2.RUN_STATE_HELD, message=HELD)
    relay.next("WatchRun", before(run_pb2.WatchRunResponse(run=held)))
    assert [run.state for run in client.watch(READY)] == [RunState.HELD, RunState.READY]


# A header of 640 bytes makes the first two bytes those of a pickle.
AMBIGUOUS = struct.pack("<Q", 640) + b"{}".ljust(640)


def test_weights_that_look_like_a_pickle_are_uploaded_once(
    service: Service, relay: Relay, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(AMBIGUOUS)
    blob = client.upload_weights(path)
    assert blob.sha256 == hashlib.sha256(AMBIGUOUS).hexdigest()
    assert service.blob(blob.sha256) == AMBIGUOUS
    assert client.upload_weights(AMBIGUOUS) == blob
    assert len(relay.requests_of(blob_pb2.WriteBlobRequest)) == 1


@pytest.mark.parametrize("kind", ["initial", "pretrained"])
def test_weights_come_in_files(service: Service, client: Client, tmp_path: Path, kind: str) -> None:
    expected: Any = getattr(service.ready, f"{kind}_weights")
    path = tmp_path / "out.safetensors"
    blob = client.save_weights(path, READY, kind)
    assert (blob.sha256, blob.size_bytes) == (expected.sha256, expected.size_bytes)
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == expected.sha256
    assert load_file(path)
    assert client.weights(READY, kind) == content
    # Nothing but the file is left beside it.
    assert [item.name for item in tmp_path.iterdir()] == ["out.safetensors"]


def test_other_weights_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="'final' weights; choose initial or pretrained"):
        client.weights(READY, "final")


def test_a_token_is_valid_until_it_is_revoked(relay: Relay, client: Client) -> None:
    me = client.who_am_i()
    assert (me.name, me.roles) == ("the coordinator's own user", ("admin",))
    given = client.create_token("trainer", name="ci", days=30)
    token = given.token
    assert given.secret not in repr(given)
    assert (token.name, token.role, token.created_by) == ("ci", "trainer", me.name)
    assert token.created_at is not None
    assert token.expires_at == token.created_at + timedelta(days=30)
    assert (token.revoked_at, token in client.tokens(), token.scores) == (None, True, False)
    assert client.create_token("worker", scores=True).token.scores
    with Client(relay.address, token=given.secret) as holder:
        caller = holder.who_am_i()
        assert caller.roles == ("trainer",)
        assert token.token_id in caller.name
        with pytest.raises(PermissionDeniedError):
            holder.tokens()
        revoked = client.revoke_token(token.token_id)
        assert revoked.revoked_at is not None
        assert datetime.now(UTC) - revoked.revoked_at < timedelta(minutes=5)
        with pytest.raises(UnauthenticatedError):
            holder.who_am_i()


ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
ARRAY = np.array(ROWS)


@pytest.mark.parametrize(
    "features",
    [
        ARRAY,
        np.broadcast_to(ARRAY, ARRAY.shape),
        ARRAY.T.copy().T,
        torch.tensor(ROWS),
        ROWS,
        {"features": ROWS},
    ],
    ids=["array", "read-only", "transposed", "tensor", "lists", "named"],
)
def test_features_are_tensors_under_their_name(features: Any) -> None:
    sent = features_source(features)
    assert isinstance(sent, dict)
    assert list(sent) == ["features"]
    assert sent["features"].tolist() == ROWS


def test_a_large_file_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    safetensors.torch.save_file({"features": torch.ones(3, 2)}, path)
    assert features_source(path) == features_source(str(path)) == path
    assert features_source(path.read_bytes()) == path.read_bytes()


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (b"nothing of the kind", r"not a safetensors file.*'features': N x d"),
        ({"features": [[1.0], [2.0, 3.0]]}, r"are no tensors \(.*'features': N x d"),
        ({"features": "many"}, "are no tensors"),
        (torch.zeros(3, 2, dtype=torch.complex64), r"they are torch.complex64, torch.strided"),
        (torch.ones(3, 2).to_sparse(), r"they are torch.float32, torch.sparse_coo"),
        (torch.ones(3, 2, device="meta"), r"on meta"),
    ],
)
def test_invalid_features_are_refused(features: Any, words: str) -> None:
    with pytest.raises(FeaturesError, match=words):
        features_source(features)
