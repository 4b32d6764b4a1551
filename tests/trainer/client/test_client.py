from __future__ import annotations

import contextlib
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lipt.common.errors import (
    ConfigError,
    LiptError,
    NotACoordinatorError,
    OtherDataError,
    RunFailedError,
    UnknownRunError,
    UnreachableError,
)
from lipt.common.states import LearnerState, RunState
from lipt.trainer.client.client import Client
from lipt.v1 import config_pb2, info_pb2, run_pb2, subset_pb2


def test_starting_a_run_sends_only_what_was_given(fake: Any, client: Client) -> None:
    run = client.start_run({"model": "resnet8", "learners": {"num_steps": 5}}, name="mine")
    (request,) = fake.requests
    assert request.name == "mine"
    assert request.request_id
    assert request.config == config_pb2.RunConfig(
        model="resnet8", learners=config_pb2.LearnersConfig(num_steps=5)
    )
    assert (run.run_id, run.name, run.state, run.config.learners.num_steps) == (
        "r-1",
        "mine",
        RunState.PENDING,
        5,
    )


def test_an_unknown_setting_is_refused_before_anything_is_sent(fake: Any, client: Client) -> None:
    with pytest.raises(ConfigError, match=r"learners\.num_stepz: there is no such setting"):
        client.start_run({"learners": {"num_stepz": 5}})
    assert fake.requests == []


def test_a_run_is_a_frozen_value(fake: Any, client: Client) -> None:
    created = Timestamp()
    created.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    ingredient = run_pb2.IngredientReport(
        position=0, accuracy=0.5, soup_accuracy=0.5, alpha=1.0, kept=True
    )
    learner = run_pb2.Learner(
        index=3, state=run_pb2.LEARNER_STATE_DONE, worker_name="w", ingredient=ingredient
    )
    fake.runs = [
        run_pb2.Run(
            run_id="r-9",
            state=run_pb2.RUN_STATE_READY,
            created_at=created,
            learners=[learner],
            soup=run_pb2.SoupReport(soup_accuracy=0.75, num_kept=1),
        )
    ]
    run = client.run("r-9")
    assert run.ended
    assert run.label == "r-9"
    assert run.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert run.ended_at is None
    assert run.soup is not None
    assert run.soup.soup_accuracy == 0.75
    assert run.learners[0].state is LearnerState.DONE
    assert run.learners[0].ingredient is not None
    assert run.learners[0].ingredient.alpha == 1.0
    assert run.learners[0].result is None
    with pytest.raises(AttributeError):
        run.name = "other"  # type: ignore[misc]


def test_a_state_of_a_newer_coordinator_is_unknown(fake: Any, client: Client) -> None:
    fake.runs = [run_pb2.Run(run_id="r", state=99)]  # type: ignore[arg-type]
    assert client.run("r").state is RunState.UNKNOWN


def test_all_pages_of_runs_are_read(fake: Any, client: Client) -> None:
    fake.runs = [run_pb2.Run(run_id=name) for name in ("c", "b", "a")]
    assert [run.run_id for run in client.runs()] == ["c", "b", "a"]
    assert len(fake.requests_of(run_pb2.ListRunsRequest)) == 3


def test_a_run_that_was_cancelled_is_not_waited_for_and_named_once(
    fake: Any, client: Client
) -> None:
    fake.runs = [
        run_pb2.Run(
            run_id="r-1", name="mine", state=run_pb2.RUN_STATE_CANCELLED, message="cancelled"
        )
    ]
    with pytest.raises(RunFailedError, match=r"^run mine is cancelled\.$"):
        client.wait("r-1")


def test_cancelling_gives_the_cancelled_run(fake: Any, client: Client) -> None:
    fake.runs = [run_pb2.Run(run_id="r")]
    assert client.cancel("r").state is RunState.CANCELLED
    assert fake.requests_of(run_pb2.CancelRunRequest)[0].run_id == "r"


def test_info_describes_data_and_workers(fake: Any, client: Client) -> None:
    fake.info.workers.add(name="worker-1", device="cpu", seconds_since_heard=1.5)
    info = client.info()
    assert info.protocol == (1, 0)
    assert info.dataset is not None
    assert info.dataset.image_shape == (1, 8, 8)
    assert info.default_run.model == "resnet8"
    assert info.workers[0].seconds_since_heard == 1.5


def test_a_coordinator_without_data_says_none(fake: Any, client: Client) -> None:
    fake.info = info_pb2.GetInfoResponse()
    assert client.info().dataset is None


def test_strategies_come_with_their_options(fake: Any, client: Client) -> None:
    option = subset_pb2.StrategyOption(
        name="norm", default_value="last_layer", allowed_values=["last_layer", "full"]
    )
    fake.strategies = [
        subset_pb2.Strategy(name="grand", balanced_by_default=True, options=[option])
    ]
    (strategy,) = client.strategies()
    assert strategy.name == "grand"
    assert strategy.options[0].allowed_values == ("last_layer", "full")


def test_a_refusal_is_raised_as_its_class_with_its_sentence(
    fake: Any, client: Client, refusal: Any
) -> None:
    sentence = "there is no run 'x'. There are: a, b."
    fake.refusal = refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_RUN", sentence)
    with pytest.raises(UnknownRunError) as caught:
        client.run("x")
    assert str(caught.value) == sentence


def test_a_reason_of_a_newer_coordinator_is_still_a_lipt_error(
    fake: Any, client: Client, refusal: Any
) -> None:
    fake.refusal = refusal(grpc.StatusCode.NOT_FOUND, "FROM_THE_FUTURE", "no such thing.")
    with pytest.raises(LiptError, match="no such thing"):
        client.run("x")


def test_nobody_at_the_address_is_said_with_what_to_check(dead_address: str) -> None:
    with Client(dead_address) as client, pytest.raises(UnreachableError) as caught:
        client.run("x")
    assert dead_address in str(caught.value)
    assert "Check that lipt-coordinator runs there" in str(caught.value)
    assert "without TLS" in str(caught.value)


def test_a_watch_of_nobody_does_not_wait_for_a_restart(dead_address: str) -> None:
    with Client(dead_address) as client, pytest.raises(UnreachableError):
        next(client.watch("x"))


def test_another_kind_of_server_is_named_as_such(serve: Callable[[None], str]) -> None:
    address = serve(None)
    with Client(address) as client:
        for call in (client.info, client.runs, client.strategies, lambda: next(client.watch("x"))):
            with pytest.raises(NotACoordinatorError, match=f"{address} is not a LiPT coordinator"):
                call()


@pytest.fixture
def plain_server() -> Iterator[Callable[[bytes], str]]:
    """Starts a TCP server that greets with these bytes and listens."""
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
def test_a_server_that_speaks_no_grpc_is_named_as_such(
    plain_server: Callable[[bytes], str], greeting: bytes
) -> None:
    address = plain_server(greeting)
    complaint = f"{address} is not a LiPT coordinator: it does not speak gRPC.*Check host and port"
    with Client(address) as client:
        for call in (client.info, lambda: client.subset(fraction=0.1)):
            with pytest.raises(NotACoordinatorError, match=complaint):
                call()


def test_a_server_that_says_nothing_is_not_waited_for(
    plain_server: Callable[[bytes], str],
) -> None:
    address = plain_server(b"")
    with Client(address) as client, pytest.raises(UnreachableError, match=address):
        client.info()


def test_a_client_costs_no_torch() -> None:
    script = """
import sys
import lipt.trainer
from lipt.trainer import Client, Subset
from lipt.common.errors import UnreachableError
try:
    Client(sys.argv[1]).info()
except UnreachableError:
    print(sorted(name for name in sys.modules if name.partition(".")[0].startswith("torch")))
"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", script, address], capture_output=True, text=True, check=False
        )
    assert done.stdout == "[]\n", done.stderr


def test_importing_the_trainer_costs_no_grpc() -> None:
    script = "import sys, lipt.trainer; print({'grpc', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_a_client_goes_on_after_it_was_closed(fake: Any, client: Client) -> None:
    client.info()
    client.close()
    assert client.info().device == "cpu"


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="not host:port"):
        Client("localhost")


def test_waiting_returns_the_ready_run(fake: Any, client: Client) -> None:
    fake.runs = [run_pb2.Run(run_id="r", revision=1, state=run_pb2.RUN_STATE_TRAINING)]
    fake.watch_scripts = [[run_pb2.Run(run_id="r", revision=2, state=run_pb2.RUN_STATE_READY)]]
    assert client.wait("r").state is RunState.READY


def test_waiting_for_a_run_that_fails_raises_with_its_reason(fake: Any, client: Client) -> None:
    fake.runs = [
        run_pb2.Run(run_id="r", state=run_pb2.RUN_STATE_FAILED, message="no learner arrived.")
    ]
    with pytest.raises(RunFailedError, match="run r is failed: no learner arrived"):
        client.wait("r")


HELD = "run r was made on data with fingerprint a, this coordinator now serves other with b."


def test_waiting_for_a_run_that_is_held_says_what_to_do(fake: Any, client: Client) -> None:
    fake.runs = [run_pb2.Run(run_id="r", state=run_pb2.RUN_STATE_HELD, message=HELD)]
    with pytest.raises(OtherDataError, match=HELD):
        client.wait("r")


def test_waiting_ends_when_the_run_is_held(fake: Any, client: Client) -> None:
    fake.runs = [run_pb2.Run(run_id="r", revision=1, state=run_pb2.RUN_STATE_TRAINING)]
    fake.watch_scripts = [
        [
            run_pb2.Run(run_id="r", revision=2, state=run_pb2.RUN_STATE_MERGING),
            run_pb2.Run(run_id="r", revision=3, state=run_pb2.RUN_STATE_HELD, message=HELD),
            run_pb2.Run(run_id="r", revision=4, state=run_pb2.RUN_STATE_READY),
        ]
    ]
    with pytest.raises(OtherDataError, match=HELD):
        client.wait("r")


def test_a_watch_goes_on_while_the_run_is_held(fake: Any, client: Client) -> None:
    fake.watch_scripts = [
        [
            run_pb2.Run(run_id="r", revision=1, state=run_pb2.RUN_STATE_HELD, message=HELD),
            run_pb2.Run(run_id="r", revision=2, state=run_pb2.RUN_STATE_READY),
        ]
    ]
    assert [run.state for run in client.watch("r")] == [RunState.HELD, RunState.READY]
