import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lipt.common.access import EVERY_ROLE, Role
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    OverloadedError,
    PermissionDeniedError,
    TooManyCallsError,
    UnauthenticatedError,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Histogram, Meters
from lipt.common.rpc.channel import open_channel
from lipt.coordinator.access.caller import (
    ANYBODY,
    CallCredentials,
    Caller,
    current_caller,
    note_caller,
)
from lipt.coordinator.access.tokens import OWN_USER, Shown
from lipt.coordinator.app import App
from lipt.coordinator.instruments import PEER_REFUSALS, RPC, RPC_IN_FLIGHT, RPC_LONG
from lipt.coordinator.rpc import limits as module
from lipt.coordinator.rpc.info import answering_probes
from lipt.coordinator.rpc.limits import CallInterceptor, PeerLimits, peer_of, shown_by
from lipt.coordinator.server import serving
from lipt.coordinator.settings import LimitSettings
from lipt.trainer.client.connection import Connection
from lipt.v1 import blob_pb2, blob_pb2_grpc, info_pb2, info_pb2_grpc, run_pb2, run_pb2_grpc
from tests.clock import Clock
from tests.coordinator.fakes import make_settings, opened
from tests.coordinator.rpc.test_ended_callers import poll, refusal
from tests.meters import observed, sums
from tests.serving import own_user_channel

NONE = {"calls_per_second": 0, "registrations_per_minute": 0, "max_calls": 0, "max_streams": 0}


def limits_of(clock: Clock, *, in_all: int = 1000, **per_peer: float) -> PeerLimits:
    given = {"max_concurrent_calls": in_all, "per_peer": {**NONE, **per_peer}}
    return PeerLimits(LimitSettings.model_validate(given), clock=clock)


def call(limits: PeerLimits, peer: str = "one", *, registers: bool = False) -> float:
    """A call that is over at once; how long it had to wait."""
    waits = limits.enter(peer, streams=False, registers=registers)
    limits.leave(peer, streams=False)
    return waits


def test_calls_beyond_the_burst_wait_up_to_a_second_and_are_refused_beyond_that(
    clock: Clock,
) -> None:
    limits = limits_of(clock, calls_per_second=2)
    # A second's worth at once, then two that wait, then one that would wait for 1.5 s.
    assert [call(limits) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.5, 1.0])
    words = r"more than 2 calls a second \(limits.per_peer.calls_per_second\). Call again in 1.5 s"
    with pytest.raises(TooManyCallsError, match=words) as caught:
        call(limits)
    assert caught.value.retry_after_seconds == pytest.approx(1.5)
    # What is refused uses nothing, and another peer notices nothing.
    assert call(limits, "other") == 0.0
    clock.now += 1.5
    assert call(limits) == pytest.approx(0.0)


def test_registrations_have_a_rate_of_their_own(clock: Clock) -> None:
    limits = limits_of(clock, registrations_per_minute=12)
    # Those of ten seconds at once, which are two.
    for _ in range(2):
        call(limits, registers=True)
    with pytest.raises(TooManyCallsError, match=r"more than 12 times a minute.*in 5\.0 s"):
        call(limits, registers=True)
    assert call(limits) == 0.0
    clock.now += 5.0
    call(limits, registers=True)


def test_open_calls_and_streams_are_counted_until_they_end(clock: Clock) -> None:
    limits = limits_of(clock, max_calls=3, max_streams=1)
    limits.enter("one", streams=True)
    with pytest.raises(
        TooManyCallsError, match=r"1 streams of this peer are under way, 1 may"
    ) as caught:
        limits.enter("one", streams=True)
    assert caught.value.retry_after_seconds == 1.0
    for _ in range(2):
        limits.enter("one", streams=False)
    with pytest.raises(TooManyCallsError, match=r"3 calls of this peer are under way, 3 may"):
        limits.enter("one", streams=False)
    limits.enter("other", streams=True)
    limits.leave("one", streams=True)
    limits.enter("one", streams=True)


def test_all_peers_together_have_a_limit(clock: Clock) -> None:
    limits = limits_of(clock, in_all=8)
    for number in range(8):
        limits.enter(f"peer {number}", streams=False)
    with pytest.raises(OverloadedError, match=r"8 calls are under way, 8 may be") as caught:
        limits.enter("late", streams=False)
    assert caught.value.retry_after_seconds == 1.0
    limits.leave("peer 0", streams=False)
    limits.enter("late", streams=False)


def test_only_idle_peers_are_forgotten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PEERS", 3)
    limits = limits_of(clock, max_streams=1)
    limits.enter("there", streams=True)
    for number in range(100):
        call(limits, f"peer {number}")
    assert list(limits._peers) == ["there", "peer 98", "peer 99"]
    with pytest.raises(TooManyCallsError):
        limits.enter("there", streams=True)


PEER = "ipv4:10.0.0.7:40123"


def context(*metadata: tuple[str, str | bytes]) -> Any:
    return SimpleNamespace(peer=lambda: PEER, invocation_metadata=lambda: metadata or None)


def key_of(caller: Caller) -> str:
    note_caller(caller)
    return peer_of(context(("user-agent", "lipt-1")))


@pytest.mark.parametrize(
    ("caller", "key"),
    [
        (Caller("certificate:ab12", "box-7", frozenset({Role.WORKER})), "certificate:ab12"),
        (Caller("token:61486203", "the token box-3", frozenset({Role.ADMIN})), "token:61486203"),
        (OWN_USER, f"{PEER} lipt-1"),
    ],
)
def test_a_credential_is_a_certificate_a_token_or_a_connection(caller: Caller, key: str) -> None:
    assert copy_context().run(key_of, caller) == key


@pytest.mark.parametrize(
    ("metadata", "secret"),
    [
        ((), ""),
        ((("user-agent", "x"),), ""),
        ((("user-agent", "x"), ("lipt-worker-secret", "s")), "s"),
        # Of a peer that sends what is no text.
        ((("lipt-worker-secret", b"s"),), ""),
    ],
)
def test_a_call_s_metadata_has_its_caller_and_worker_secret(
    metadata: tuple[tuple[str, str | bytes], ...], secret: str
) -> None:
    call = context(*metadata)
    assert shown_by(call) == CallCredentials(ANYBODY, secret)
    box = Caller("k", "box", frozenset({Role.WORKER}), certificate="aa")

    def as_box() -> CallCredentials:
        note_caller(box)
        return shown_by(call)

    assert copy_context().run(as_box) == CallCredentials(box, secret)


_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


@asynccontextmanager
async def served(
    directory: Path, *, in_all: int = 8, **per_peer: float
) -> AsyncIterator[tuple[App, str, grpc.aio.Channel]]:
    limits = {"per_peer": per_peer, "max_concurrent_calls": in_all}
    async with (
        opened(make_settings(directory, limits=limits)) as app,
        serving(app) as address,
        own_user_channel(address, _OPTIONS) as channel,
    ):
        yield app, address, channel


async def info(channel: grpc.aio.Channel) -> Any:
    stub: Any = info_pb2_grpc.InfoServiceStub(channel)
    return await stub.GetInfo(info_pb2.GetInfoRequest(), timeout=60)


async def until(holds: Callable[[], bool]) -> None:
    """A server notes the end of a call a moment after its client has the answer."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - meters have no event
            await asyncio.sleep(0)


async def test_health_is_answered_above_the_limits(tmp_path: Path) -> None:
    async with served(tmp_path) as (app, address, channel), AsyncExitStack() as stack:
        entering = [own_user_channel(address, _OPTIONS) for _ in range(8)]
        polls = [await poll(await stack.enter_async_context(one)) for one in entering]
        await until(lambda: app.dispatcher.num_waiting() == len(polls))
        refused = await refusal(info(channel))
        assert isinstance(refused, OverloadedError)
        assert "8 calls are under way, 8 may be" in str(refused)
        health: Any = health_pb2_grpc.HealthStub(channel)
        for _ in range(100):
            await health.Check(health_pb2.HealthCheckRequest())
        for call in polls:
            call.cancel()


async def test_health_streams_of_strangers_are_limited_apart_from_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = LimitSettings.model_validate({"per_peer": {"max_streams": 2}})
    monkeypatch.setattr(module, "LimitSettings", lambda: few)
    async with (
        served(tmp_path, in_all=8) as (_, address, channel),
        grpc.aio.insecure_channel(address) as stranger,
    ):
        health: Any = health_pb2_grpc.HealthStub(stranger)
        request = health_pb2.HealthCheckRequest()
        watches = [health.Watch(request) for _ in range(2)]
        for each in watches:
            await each.read()
        assert isinstance(await refusal(health.Watch(request).read()), TooManyCallsError)
        await health.Check(request)
        await info(channel)


async def test_junk_is_named_by_every_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    paths = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", reflection]
    async with served(tmp_path) as (_, _, channel), answering_probes("127.0.0.1:0"):
        probes = caplog.text.partition("health on ")[2].split()[0]
        async with grpc.aio.insecure_channel(probes) as probing:
            for path, asked in [*((path, channel) for path in paths), (paths[0], probing)]:
                call: Any = asked.stream_stream(path)(iter([b"\xff"]))
                assert isinstance(await refusal(call.read()), InvalidRequestError)
    assert "Traceback" not in caplog.text


# Two calls at once, two that wait for up to a second, and what comes then is refused.
SLOW = {"calls_per_second": 2}


@pytest.mark.parametrize(
    "transfers", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["calls", "transfers"]
)
async def test_clients_retry_after_the_given_time(tmp_path: Path, transfers: bool) -> None:
    async with served(tmp_path, in_all=100, **SLOW) as (app, address, _):
        connection = Connection(address, None, reconnect_seconds=0.0)
        with ThreadPoolExecutor(6) as pool, open_channel(address) as channel:
            uploads = Transfers(blob_pb2_grpc.BlobServiceStub(channel))

            def ask(number: int) -> None:
                if transfers:
                    uploads.upload(b"x%d" % number)
                else:
                    connection.unary(lambda of: of.info.GetInfo, info_pb2.GetInfoRequest())

            asking = [asyncio.wrap_future(pool.submit(ask, number)) for number in range(6)]
            await asyncio.gather(*asking)
        connection.close()
        assert app.events.count(EventKind.CALL_REFUSED, "TOO_MANY_CALLS") >= 1


def counts(app: App, histogram: Histogram) -> dict[tuple[str, ...], int]:
    found = observed(app.meters, histogram)
    return {labels: int(count) for labels, (count, _) in found.items()}


async def test_calls_are_measured_by_method_and_code_and_refusals_by_peer(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (app, address, channel),
        grpc.aio.insecure_channel(address) as stranger,
    ):
        runs: Any = run_pb2_grpc.RunServiceStub(channel)
        await info(channel)
        for _ in range(2):
            await refusal(runs.GetRun(run_pb2.GetRunRequest(run_id="nobody")))
        await refusal(channel.unary_unary("/lipt.v1.RunService/Guess")(b""))
        # Turned away at the entrance.
        await refusal(info(stranger))
        expected = {
            ("InfoService/GetInfo", "OK"): 1,
            ("InfoService/GetInfo", "UNAUTHENTICATED"): 1,
            ("RunService/GetRun", "NOT_FOUND"): 2,
            ("other", "UNIMPLEMENTED"): 1,
        }
        await until(lambda: counts(app, RPC) == expected)
        await until(lambda: sums(app.meters, RPC_IN_FLIGHT) == {(): 0.0})
        refusals = {(OWN_USER.name, "NOT_FOUND"): 2.0, ("ipv4:127.0.0.1", "UNAUTHENTICATED"): 1.0}
        assert sums(app.meters, PEER_REFUSALS) == refusals
        assert counts(app, RPC_LONG) == {}
        # A watcher that leaves was not refused, and is no answer at once.
        await runs.CreateRun(run_pb2.CreateRunRequest(name="mine"))
        watching = runs.WatchRun(run_pb2.WatchRunRequest(run_id="mine"))
        await watching.read()
        assert sums(app.meters, RPC_IN_FLIGHT) == {(): 1.0}
        watching.cancel()
        await until(lambda: counts(app, RPC_LONG) == {("RunService/WatchRun", "CANCELLED"): 1})
        assert sums(app.meters, PEER_REFUSALS) == refusals
        await until(lambda: sums(app.meters, RPC_IN_FLIGHT) == {(): 0.0})


def identify(shown: Shown) -> Caller:
    """Identify `Bearer NAME ROLE...` as NAME, with these roles."""
    if shown.authorization is None:
        raise UnauthenticatedError("no credential. Show one.")
    _, name, *roles = shown.authorization.split()
    return Caller(name, name, frozenset(map(Role, roles)) or EVERY_ROLE)


class Naming(run_pb2_grpc.RunServiceServicer, blob_pb2_grpc.BlobServiceServicer):
    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.several = asyncio.Barrier(2)

    async def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        self.requests.append(request)
        if request.run_id == "several":
            await self.several.wait()
        return run_pb2.GetRunResponse(run=run_pb2.Run(name=current_caller().name))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[run_pb2.WatchRunResponse]:
        self.requests.append(request)
        for _ in range(2):
            yield run_pb2.WatchRunResponse(run=run_pb2.Run(name=current_caller().name))

    async def WriteBlob(self, request_iterator: Any, context: Any) -> blob_pb2.WriteBlobResponse:
        self.requests += [request async for request in request_iterator]
        return blob_pb2.WriteBlobResponse(blob=blob_pb2.BlobRef(sha256=current_caller().name))


@asynccontextmanager
async def entrance() -> AsyncIterator[tuple[grpc.aio.Channel, Naming, Events]]:
    events, limits = Events(), PeerLimits(LimitSettings(), clock=monotonic)
    server = grpc.aio.server(interceptors=[CallInterceptor(identify, events, Meters(), limits)])
    naming = Naming()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    run_pb2_grpc.add_RunServiceServicer_to_server(naming, server)
    blob_pb2_grpc.add_BlobServiceServicer_to_server(naming, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel, naming, events
    await server.stop(None)


def called(*words: str) -> Any:
    return (("authorization", " ".join(("Bearer", *words))),)


async def test_handlers_of_every_kind_know_their_caller() -> None:
    async with entrance() as (channel, naming, _):
        runs: Any = run_pb2_grpc.RunServiceStub(channel)
        blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)
        watching = runs.WatchRun(run_pb2.WatchRunRequest(), metadata=called("bob"))
        assert [item.run.name async for item in watching] == ["bob", "bob"]
        request = blob_pb2.WriteBlobRequest()
        written = await blobs.WriteBlob(iter([request, request]), metadata=called("cid"))
        assert written.blob.sha256 == "cid"
        assert len(naming.requests) == 3
        # At the same time, too.
        several = run_pb2.GetRunRequest(run_id="several")
        answers = await asyncio.gather(
            *(runs.GetRun(several, metadata=called(name)) for name in ("ann", "bob"))
        )
        assert [answer.run.name for answer in answers] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("path", "metadata", "kind"),
    [
        ("RunService/GetRun", (), UnauthenticatedError),
        ("RunService/WatchRun", (), UnauthenticatedError),
        ("BlobService/WriteBlob", (), UnauthenticatedError),
        ("RunService/GetRun", called("box", "worker"), PermissionDeniedError),
        ("RunService/WatchRun", called("box", "worker"), PermissionDeniedError),
    ],
)
async def test_a_caller_is_refused_before_its_request_is_read(
    path: str, metadata: Any, kind: type[LiptError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with entrance() as (channel, naming, events):
        call: Any = channel.stream_stream(f"/lipt.v1.{path}")(metadata=metadata)
        assert type(await refusal(call.read())) is kind
        assert events.count(EventKind.CALL_REFUSED, kind.reason) == 1
        assert naming.requests == []
        assert f"detail={kind.reason} method=/lipt.v1.{path} peer=ipv4:127.0.0.1:" in caplog.text


async def test_an_admitted_caller_without_a_request_gets_an_error() -> None:
    async with entrance() as (channel, _, _):
        method: Any = channel.stream_unary("/lipt.v1.RunService/GetRun")
        error = await refusal(method(iter(()), metadata=called("ann")))
        assert isinstance(error, InvalidRequestError)
        assert "ended without a request" in str(error)
