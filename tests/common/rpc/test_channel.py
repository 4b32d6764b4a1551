import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from lipt.common.access.local import local_sockets
from lipt.common.access.tls import TlsFiles, server_credentials
from lipt.common.access.tokens import Token, TokenSource
from lipt.common.errors import ConfigError, InvalidRequestError
from lipt.common.rpc.channel import IdleWatchdog, open_channel
from lipt.common.rpc.health_check import main
from lipt.common.rpc.messages import message_to_dict, require_lengths
from lipt.v1 import (
    blob_pb2,
    config_pb2,
    run_pb2,
    run_pb2_grpc,
    subset_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from tests.serving import serving
from tests.tls_files import write_files


class Unavailable(run_pb2_grpc.RunServiceServicer):
    num_unary = num_streams = 0

    async def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        self.num_unary += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        raise AssertionError

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[run_pb2.WatchRunResponse]:
        self.num_streams += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        yield run_pb2.WatchRunResponse()


async def test_grpc_retries_unary_calls_and_readers_retry_streams() -> None:
    servicer = Unavailable()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented

    def ask(address: str) -> None:
        with open_channel(address) as channel:
            stub = run_pb2_grpc.RunServiceStub(channel)
            with pytest.raises(grpc.RpcError):
                stub.GetRun(run_pb2.GetRunRequest(), timeout=20)
            with pytest.raises(grpc.RpcError):
                list(stub.WatchRun(run_pb2.WatchRunRequest(), timeout=20))

    async with serving((run_pb2_grpc.add_RunServiceServicer_to_server, servicer)) as address:
        await asyncio.to_thread(ask, address)
    assert (servicer.num_unary, servicer.num_streams) == (5, 1)


class Call:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_silent_stream_times_out_and_every_stream_ends_with_the_block() -> None:
    call, watchdog = Call(), IdleWatchdog(0.01)
    with watchdog.over(call):
        assert call.cancelled.wait(60)
    assert watchdog.expired
    call = Call()
    with IdleWatchdog(60.0).over(call):
        pass
    assert call.cancelled.is_set()


class Listener(grpc.GenericRpcHandler):
    """Answers with the certificate that it is shown, and keeps tokens and peers.

    A stream waits for `go_on` between its two answers.
    """

    def __init__(self) -> None:
        self.shown: list[str | bytes | None] = []
        self.peers: set[str] = set()
        self.keys: set[str] = set()
        self.go_on = threading.Event()
        self.go_on.set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        metadata = dict(handler_call_details.invocation_metadata or ())
        self.shown.append(metadata.get("authorization"))
        self.keys |= metadata.keys()
        kind = handler_call_details.method.rpartition("/")[2]

        def answer(requests: Any, context: Any) -> bytes:
            if kind.startswith("stream"):
                list(requests)
            self.peers.add(context.peer())
            return bytes(context.auth_context().get("x509_pem_cert", [b""])[0])

        def answers(requests: Any, context: Any) -> Iterator[bytes]:
            yield answer(requests, context)
            assert self.go_on.wait(60)
            yield answer((), context)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(answers if kind.endswith("stream") else answer)


Bound = tuple[grpc.Server, int, int]


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> TlsFiles:
    return write_files(tmp_path / "client", authority)


@pytest.fixture
def server(listener: Listener, authority: trustme.CA, tmp_path: Path) -> Iterator[Bound]:
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((listener,))
    credentials = server_credentials(write_files(tmp_path / "server", authority))
    secure = server.add_secure_port("127.0.0.1:0", credentials)
    yield server, server.add_insecure_port("127.0.0.1:0"), secure
    listener.go_on.set()
    server.stop(None).wait()


def call_each_kind(channel: grpc.Channel) -> list[bytes]:
    unary = channel.unary_unary("/x.X/unary_unary")
    return [
        unary(b"", timeout=30),
        unary.future(b"", timeout=30).result(),
        *channel.unary_stream("/x.X/unary_stream")(b"", timeout=30),
        channel.stream_unary("/x.X/stream_unary")(iter([b""]), timeout=30),
        *channel.stream_stream("/x.X/stream_stream")(iter([b""]), timeout=30),
    ]


TOKEN = TokenSource(text=Token.draw("one").text)


def test_every_kind_of_call_carries_the_token(server: Bound, listener: Listener) -> None:
    server[0].start()
    with open_channel(f"127.0.0.1:{server[1]}", token=TOKEN) as channel:
        call_each_kind(channel)
    assert listener.shown == [f"Bearer {TOKEN.text}"] * 5


def test_loopback_calls_use_the_socket_without_token(server: Bound, listener: Listener) -> None:
    address = f"localhost:{server[1]}"
    with open_channel(address) as channel:
        ask = channel.unary_unary("/x.X/unary_unary")
        with local_sockets(address, server[0].add_insecure_port) as paths:
            assert paths
            server[0].start()
            ask(b"", timeout=30)
        assert listener.peers == {"unix:"}
        # The socket is gone, and its coordinator may be about to start again.
        ask(b"", timeout=30)
    assert listener.peers == {"unix:"}
    with open_channel(address) as channel:
        channel.unary_unary("/x.X/unary_unary")(b"", timeout=30)
    assert len(listener.peers) == 2
    # A listener at the port gets nothing that lets it in elsewhere.
    assert listener.keys == {"user-agent"}


def test_missing_token_file_fails_a_call(server: Bound, listener: Listener, tmp_path: Path) -> None:
    server[0].start()
    token = TokenSource(tmp_path / "none")
    with open_channel(f"127.0.0.1:{server[1]}", token=token) as shown:
        with pytest.raises(ConfigError, match="none cannot be read"):
            shown.unary_unary("/x.X/unary_unary")(b"", timeout=30)
        with pytest.raises(ConfigError, match="none cannot be read"):
            list(shown.unary_stream("/x.X/unary_stream")(b"", timeout=30))
    assert listener.shown == []


def test_a_token_over_plain_text_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with open_channel("127.0.0.1:1", token=TOKEN):
        assert caplog.text == ""
    with open_channel("head-node:1", token=TOKEN):
        assert "the token goes to head-node:1 in the clear" in caplog.text
    assert TOKEN.text not in caplog.text


def name(certificate: bytes) -> str:
    return hashlib.sha256(certificate.strip()).hexdigest()[:8]


@pytest.mark.parametrize("token", [None, TOKEN], ids=["alone", "with a token"])
def test_new_calls_use_the_renewed_certificate_and_open_calls_continue(
    server: Bound, listener: Listener, files: TlsFiles, authority: trustme.CA, token: Any
) -> None:
    assert files.cert is not None
    old = name(files.cert.read_bytes())
    server[0].start()
    with open_channel(f"127.0.0.1:{server[2]}", files, token) as channel:
        unary = channel.unary_unary("/x.X/unary_unary")
        seen = [unary(b"", timeout=30), unary.future(b"", timeout=30).result()]
        listener.go_on.clear()
        stream = channel.unary_stream("/x.X/unary_stream")(b"", timeout=30)
        seen.append(next(stream))
        write_files(files.cert.parent, authority)
        seen += [unary(b"", timeout=30), unary.future(b"", timeout=30).result()]
        listener.go_on.set()
        seen += [*stream, *call_each_kind(channel)]
    new = name(files.cert.read_bytes())
    assert list(map(name, seen)) == [old] * 3 + [new] * 2 + [old] + [new] * 7
    assert len(listener.peers) == 2


def test_an_old_connection_is_closed_at_the_second_renewal(
    server: Bound, files: TlsFiles, authority: trustme.CA, tmp_path: Path
) -> None:
    server[0].start()
    with open_channel(f"127.0.0.1:{server[2]}", files) as channel:
        unary = channel.unary_unary("/x.X/unary_unary")
        oldest, _ = channel.method_of(None, lambda _: None)  # type: ignore[attr-defined]
        for _ in range(2):
            oldest.unary_unary("/x.X/unary_unary")(b"", timeout=30)  # still open
            write_files(tmp_path / "client", authority)
            unary(b"", timeout=30)
        with pytest.raises(ValueError, match="hannel"):
            oldest.unary_unary("/x.X/unary_unary")(b"", timeout=30)


def test_a_first_call_after_closing_is_an_error() -> None:
    channel = open_channel("127.0.0.1:1")
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    channel.close()
    with pytest.raises(ValueError, match="closed channel"):
        stub.Register(Register())


Register = worker_pb2.RegisterRequest


def test_dict_of_a_message_has_only_set_fields() -> None:
    message = config_pb2.RunConfig(model="x", seed=0)
    message.pruning.method = config_pb2.PRUNING_METHOD_SNIP
    message.learners.frozen.append("all-but-head")
    assert message_to_dict(message) == {
        "model": "x",
        "seed": 0,
        "learners": {"frozen": ["all-but-head"]},
        "pruning": {"method": "snip"},
    }
    # Proto3 does not tell a zero of these from nothing.
    assert message_to_dict(worker_pb2.Lease()) == {
        "epoch": 0,
        "duration_seconds": 0.0,
        "heartbeat_seconds": 0.0,
    }


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Register(name="x" * 81), r"RegisterRequest\.name has 81 characters; at most 80 "),
        (run_pb2.CreateRunRequest(request_id="x" * 101), r"\.request_id has 101 .* most 100 "),
        # Of a field that says nothing, of one in a message in it, of a list, a key and a value.
        (run_pb2.GetRunRequest(run_id="x" * 201), r"GetRunRequest\.run_id has 201 .* at most 200 "),
        (
            run_pb2.CreateRunRequest(config=config_pb2.RunConfig(model="m" * 201)),
            r"RunConfig\.model has 201 characters",
        ),
        (
            worker_pb2.CommitResultRequest(
                snapshots=[blob_pb2.BlobRef(), blob_pb2.BlobRef(sha256="0" * 201)]
            ),
            r"BlobRef\.sha256 has 201 characters",
        ),
        (Register(allowed_modules=["mine", "m" * 201]), r"\.allowed_modules has 201 characters"),
        (Register(allowed_modules=["mine"] * 101), r"_modules has 101 entries; at most 100 are"),
        (Register(versions={"v" * 81: ""}), r"versions has 81 characters"),
        (Register(versions={"": "v" * 81}), r"versions has 81 characters"),
        (Register(versions=dict.fromkeys(map(str, range(21)), "")), r"has 21 entries; at most 20"),
        (
            subset_pb2.GetSubsetRequest(options={"o": "x" * 1001}),
            r"GetSubsetRequest\.options has 1001 characters; at most 1000",
        ),
    ],
)
def test_a_too_long_text_is_refused_with_length_and_limit(request_: Message, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        require_lengths(request_)


def test_a_text_at_the_limit_is_accepted() -> None:
    require_lengths(
        Register(
            instance_id="i" * 100,
            name="ü" * 80,  # characters, not bytes
            versions={f"{number:080}": "v" * 80 for number in range(20)},
            allowed_modules=["m" * 200] * 100,
        )
    )
    # What a worker of an older version says of its failure has any length.
    require_lengths(worker_pb2.ReleaseAssignmentRequest(error="e" * 100_000))
    # Lists that are no texts are counted by who reads them, and bytes by the message's limit.
    require_lengths(worker_pb2.CommitResultRequest(snapshots=[blob_pb2.BlobRef()] * 2000))
    require_lengths(blob_pb2.WriteBlobRequest(chunk=blob_pb2.Chunk(data=b"x" * 10_000)))


async def test_health_status_is_serving_or_not_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = health.aio.HealthServicer()
    async with serving((health_pb2_grpc.add_HealthServicer_to_server, healthy)) as address:
        monkeypatch.setenv("LIPT_LISTEN", address.replace("127.0.0.1", "0.0.0.0"))
        assert await asyncio.to_thread(main) is None
        monkeypatch.setenv("LIPT_HEALTH_LISTEN", address)
        assert await asyncio.to_thread(main) is None
        await healthy.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await asyncio.to_thread(main) == f"{address}: NOT_SERVING"
    assert await asyncio.to_thread(main) == f"{address}: UNAVAILABLE"
