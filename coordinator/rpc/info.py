"""Servicers about the coordinator: tokens and callers, information, and health probes."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from lipt.common.access import Role
from lipt.common.access.tls import split_address
from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import run_config_to_proto
from lipt.common.errors import (
    ConfigError,
    InvalidRequestError,
    StateError,
    UnknownRunError,
    UnreadableRunError,
)
from lipt.common.observability.logs import Events
from lipt.common.process.devices import versions
from lipt.common.rpc.messages import enum_to_proto, enum_value
from lipt.coordinator.access.caller import Caller, current_caller
from lipt.coordinator.access.tokens import Tokens
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import LearnerLease
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.rpc.handlers import Context, Interceptor, refusals
from lipt.coordinator.rpc.messages import (
    message_of,
    protocol_version,
    run_view,
    timestamp,
    unreadable_view,
)
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import RunRecord, RunSummary
from lipt.v1 import access_pb2, access_pb2_grpc, info_pb2_grpc, run_pb2
from lipt.v1 import info_pb2 as pb

logger = logging.getLogger(__name__)


_DEFAULT_INTERVAL_SECONDS = 1.0
_DEFAULT_NUM_RUNS = 20
_MIN_INTERVAL_SECONDS, _MAX_INTERVAL_SECONDS = 0.2, 60.0
_MAX_NUM_RUNS = 200
_MAX_WORKERS = 500
_SIGN_OF_LIFE_SECONDS = 5.0


# A link that signs a browser in as a caller, and its expiry (wall clock).
PageLink = Callable[[Caller], tuple[str, float]]


@dataclass(eq=False)
class AccessService(access_pb2_grpc.AccessServiceServicer):
    """Tokens for admins, and the identity of a caller."""

    tokens: Tokens
    link: PageLink

    async def CreateToken(
        self, request: access_pb2.CreateTokenRequest, context: Context
    ) -> access_pb2.CreateTokenResponse:
        try:
            role = Role(enum_value(access_pb2.Role.DESCRIPTOR, request.role))
        except ValueError:
            raise InvalidRequestError(
                f"a token needs one of the roles {', '.join(Role)}. Set `role` to one of them."
            ) from None
        record, secret = await self.tokens.create(
            role,
            name=request.name,
            days=request.days,
            creator=current_caller(),
            scores=request.scores,
            source=request.source,
        )
        return access_pb2.CreateTokenResponse(
            token=message_of(access_pb2.Token, record), secret=secret
        )

    async def ListTokens(
        self, request: access_pb2.ListTokensRequest, context: Context
    ) -> access_pb2.ListTokensResponse:
        return access_pb2.ListTokensResponse(
            tokens=[message_of(access_pb2.Token, token) for token in self.tokens.listed()]
        )

    async def RevokeToken(
        self, request: access_pb2.RevokeTokenRequest, context: Context
    ) -> access_pb2.RevokeTokenResponse:
        record = await self.tokens.revoke(request.token_id)
        return access_pb2.RevokeTokenResponse(token=message_of(access_pb2.Token, record))

    async def WhoAmI(
        self, request: access_pb2.WhoAmIRequest, context: Context
    ) -> access_pb2.WhoAmIResponse:
        caller = current_caller()
        roles = [
            enum_to_proto(access_pb2.Role.DESCRIPTOR, role) for role in Role if role in caller.roles
        ]
        return access_pb2.WhoAmIResponse(name=caller.name, roles=roles)

    async def OpenPage(
        self, request: access_pb2.OpenPageRequest, context: Context
    ) -> access_pb2.OpenPageResponse:
        url, expires_at = self.link(current_caller())
        return access_pb2.OpenPageResponse(url=url, expires_at=timestamp(expires_at))


@dataclass(eq=False)
class InfoService(info_pb2_grpc.InfoServiceServicer):
    """This coordinator and the state of the whole service."""

    dataset: pb.DatasetInfo
    store: RunStore
    dispatcher: Dispatcher
    compute: ComputeQueue
    stopping: asyncio.Event
    default_run: RunConfig
    device: str
    wall_clock: Callable[[], float]

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        return pb.GetInfoResponse(
            protocol=protocol_version(),
            versions=versions(),
            dataset=self.dataset,
            default_run=run_config_to_proto(self.default_run),
            workers=map(self._worker, self.dispatcher.alive()),
            device=self.device,
        )

    async def WatchService(
        self, request: pb.WatchServiceRequest, context: Context
    ) -> AsyncIterator[pb.WatchServiceResponse]:
        """Stream the service's state after each change; runs are sent only if changed."""
        interval = request.interval_seconds or _DEFAULT_INTERVAL_SECONDS
        num_runs = request.num_runs or _DEFAULT_NUM_RUNS
        fast_enough = interval <= _MAX_INTERVAL_SECONDS  # also refuses NaN
        if not fast_enough or not 0 < num_runs <= _MAX_NUM_RUNS:
            raise InvalidRequestError(
                f"interval_seconds {interval} is above {_MAX_INTERVAL_SECONDS:g}, or "
                f"num_runs {num_runs} is outside 1..{_MAX_NUM_RUNS}."
            )
        pause = max(interval, _MIN_INTERVAL_SECONDS)
        silent_turns = max(math.ceil(_SIGN_OF_LIFE_SECONDS / pause), 1)
        sent: dict[str, tuple[int, str]] = {}
        last, turns = b"", silent_turns
        while not self.stopping.is_set():
            answer = self._answer(sent, num_runs)
            essence = _essence(answer)
            if answer.runs or essence != last or turns >= silent_turns:
                yield answer
                last, turns = essence, 0
            turns += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.stopping.wait()

    def _answer(self, sent: dict[str, tuple[int, str]], num_runs: int) -> pb.WatchServiceResponse:
        """The current state with the runs that differ from `sent`, which is updated."""
        now = self.wall_clock()
        alive = self.dispatcher.alive()
        shown = alive
        if len(alive) > _MAX_WORKERS:
            busy = self.dispatcher.leases.holders()
            shown = tuple(sorted(alive, key=lambda worker: worker.worker_id not in busy))
        return pb.WatchServiceResponse(
            now=timestamp(now),
            runs=self._changed(sent, num_runs),
            workers=map(self._worker, shown[:_MAX_WORKERS]),
            num_workers=len(alive),
            computations=[
                message_of(pb.Computation, computation, run_id=computation.run)
                for computation in self.compute.computations()
            ],
            num_runs=len(self.store.runs()),
        )

    def _changed(self, sent: dict[str, tuple[int, str]], num_runs: int) -> list[run_pb2.Run]:
        changed: list[run_pb2.Run] = []
        for place, summary in enumerate(reversed(self.store.runs())):
            if place >= num_runs and summary.state.ended:
                continue
            with suppress(UnknownRunError):  # the run is being removed
                # The record of an ended run is read only when it is sent.
                live = None if summary.state.ended else self.store.record(summary.run_id)
                # Its wait reason may change while its revision stays.
                waiting = "" if live is None else self.dispatcher.waiting_reason(live)
                standing = (self.store.revision(summary.run_id), waiting)
                if sent.get(summary.run_id) != standing:
                    sent[summary.run_id] = standing
                    changed.append(self._shown(summary, live, waiting))
        return changed

    def _shown(self, run: RunSummary, live: RunRecord | None, waiting: str) -> run_pb2.Run:
        try:
            record = live or self.store.record(run.run_id)
        except (UnreadableRunError, StateError) as error:
            return unreadable_view(self.store, run, str(error))
        return run_view(self.store, record, waiting_reason=waiting)

    def _worker(self, worker: WorkerRecord) -> pb.WorkerInfo:
        held = self.dispatcher.leases.held_by(worker.worker_id, LearnerLease)
        scored = self.dispatcher.scans.held_by(worker.worker_id)
        key = held.key if held else None
        learner = f"{self.store.find(key.run_id).name}/{key.learner}" if key else ""
        caller = worker.caller
        return message_of(
            pb.WorkerInfo,
            worker,
            assignment=str(scored) if scored else learner,
            seconds_since_last_call=self.dispatcher.seconds_since_last_call(worker),
            idle_reason=self.dispatcher.idle_reason(worker),
            certificate_expires_at=caller.expires_at if caller.certificate else None,
        )


def _essence(answer: pb.WatchServiceResponse) -> bytes:
    """The parts whose change is sent; the passing of time is not."""
    kept = pb.WatchServiceResponse(
        workers=answer.workers,
        num_workers=answer.num_workers,
        computations=answer.computations,
        num_runs=answer.num_runs,
    )
    for worker in kept.workers:
        worker.ClearField("seconds_since_last_call")
    for computation in kept.computations:
        computation.ClearField("seconds")
    return kept.SerializeToString(deterministic=True)


# Health service names. The kubelet asks without TLS, also while the data is being opened. LIVENESS:
# the process answers. READINESS (gRPC's name for the whole server): it serves callers.
LIVENESS, READINESS = "liveness", ""
_MOST_PROBES = 64
# Age of a connection, and the time that its last calls have then: longer than any computation.
_AGE_SECONDS, _GRACE_SECONDS = 3600, 12 * 3600
_MOST_STREAMS = 128


class Probes(health.aio.HealthServicer):
    """Answers `Check`, but not `Watch`, whose streams would need limits."""

    Watch = health_pb2_grpc.HealthServicer.Watch


@asynccontextmanager
async def answering_probes(listen: str | None) -> AsyncIterator[Probes]:
    """Answer probes at an address until the block ends; without one, do nothing."""
    probes, states = Probes(), health_pb2.HealthCheckResponse
    await probes.set(LIVENESS, states.SERVING)
    await probes.set(READINESS, states.NOT_SERVING)
    if listen is None:
        yield probes
        return
    answering = Interceptor(lambda _: (refusals(Events()),))
    server = grpc.aio.server(interceptors=[answering], options=connection_options(_MOST_PROBES))
    health_pb2_grpc.add_HealthServicer_to_server(probes, server)
    address = bind(server, listen, None, flag="--health-listen")
    await server.start()
    logger.info("health on %s", address)
    try:
        yield probes
    finally:
        await server.stop(None)


def connection_options(most: int, max_streams: int = 0) -> tuple[tuple[str, int], ...]:
    """GRPC's options for a port with at most so many connections, none of them silent for long.

    max_streams: that a peer may have, all of them over one connection.
    """
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", most),
        # Until a connection has spoken HTTP/2, TLS included; and without any call.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        # From then on, new calls need a new connection, with a certificate that is valid today.
        ("grpc.max_connection_age_ms", int(_AGE_SECONDS * 1000)),
        ("grpc.max_connection_age_grace_ms", int(_GRACE_SECONDS * 1000)),
        # Calls of one connection that the coordinator has not ended, those of its peer included.
        ("grpc.max_concurrent_streams", max(_MOST_STREAMS, 2 * max_streams)),
    )


def bind(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None, *, flag: str
) -> str:
    """Bind a server to host:port, and return the address with the actual port."""
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Tried first: gRPC writes a line of its own to stderr where it fails.
        socket.create_server((host, port), family=family).close()
        port = (
            server.add_insecure_port(listen)
            if credentials is None
            else server.add_secure_port(listen, credentials)
        )
    except (OSError, RuntimeError):
        raise ConfigError(
            f"{flag} {listen}: the address is in use, or is not this machine's. Choose another."
        ) from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
