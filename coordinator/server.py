"""Server: the gRPC server from start to shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic, time

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lipt.common.access.local import forget_dead, local_sockets
from lipt.common.access.tls import (
    TlsFiles,
    is_loopback,
    require_deliberate_exposure,
    server_credentials,
    split_address,
)
from lipt.common.observability.metrics import Readings, serving_metrics
from lipt.common.process import (
    notify_service_manager,
    on_stop_signals,
    raise_descriptor_limit,
)
from lipt.common.process.devices import device_name, resolve_device
from lipt.common.text import empty_classes, listed
from lipt.coordinator.access.caller import ALLOWED_ROLES
from lipt.coordinator.access.tokens import (
    OWN_FILE,
    Admission,
    admission,
    describe_exposure,
    identify,
)
from lipt.coordinator.app import App, open_app
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.instruments import COORDINATOR
from lipt.coordinator.metrics import in_event_loop, machine_readings, state_readings
from lipt.coordinator.mixtures import Mixtures
from lipt.coordinator.page.serving import FLAG as DASHBOARD_FLAG
from lipt.coordinator.page.serving import PageServer, open_page, require_dashboard
from lipt.coordinator.page.sessions import Sessions
from lipt.coordinator.rpc.blobs import BlobService
from lipt.coordinator.rpc.info import (
    READINESS,
    AccessService,
    InfoService,
    answering_probes,
    bind,
    connection_options,
)
from lipt.coordinator.rpc.limits import CallInterceptor, PeerLimits
from lipt.coordinator.rpc.messages import dataset_view
from lipt.coordinator.rpc.trainers import (
    DiagnosisService,
    MixtureService,
    RunService,
    SubsetService,
)
from lipt.coordinator.rpc.workers import WorkerService, unless
from lipt.coordinator.settings import CoordinatorSettings
from lipt.coordinator.uploads import WorkerBlobs

_MOST_NAMED = 20


def notes_on(data: DataDescription) -> Iterator[tuple[int, str]]:
    if ids := data.quarantined:
        named = listed(ids, _MOST_NAMED)
        left_out = f"{len(ids)} of {data.num_rows} images cannot be used and are left out: {named}."
        yield logging.WARNING, left_out
    if data.note:
        yield logging.INFO, f"{data.note}."
    empty = empty_classes(data.class_names, data.class_counts)
    if data.other_target is None and empty:
        yield logging.WARNING, f"{empty}. Models get an output for each of these."


logger = logging.getLogger(__name__)


async def serve(
    settings: CoordinatorSettings,
    *,
    asked: asyncio.Event | None = None,
    opening: Callable[[CoordinatorSettings], AbstractAsyncContextManager[App]] = open_app,
) -> None:
    """Serve until a stop signal or `asked`, then drain and return."""
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    addresses = {
        "--listen": settings.listen,
        "--metrics-listen": settings.metrics_listen,
        DASHBOARD_FLAG: settings.dashboard_listen,
    }
    for flag, address in addresses.items():
        if address is not None:
            require_deliberate_exposure(address, tls, insecure=settings.insecure, flag=flag)
    if tls is not None and (soon := tls.expires_soon()):
        logger.warning("%s", soon)
    if settings.dashboard_listen is not None:
        require_dashboard()
    asked = asked or _on_signals()
    async with AsyncExitStack() as stack:
        probes = await stack.enter_async_context(answering_probes(settings.health_listen))
        app = await unless(asked, stack.enter_async_context(opening(settings)))
        if app is None:
            logger.info("stopping before the state and the data are open")
        else:
            given = (tls, app.events, app.meters, COORDINATOR, _readings(app))
            stack.enter_context(serving_metrics(settings.metrics_listen, *given))
            async with serving(app, tls):
                await probes.set(READINESS, health_pb2.HealthCheckResponse.SERVING)
                await asked.wait()
                await probes.set(READINESS, health_pb2.HealthCheckResponse.NOT_SERVING)
    logger.info("stopped")


@asynccontextmanager
async def serving(app: App, tls: TlsFiles | None = None) -> AsyncIterator[str]:
    """Serve during the block, which gets the address; drain at its end."""
    settings = app.settings
    admitted = admission(
        settings.listen, tls, insecure=settings.insecure, require_token=settings.require_token
    )
    stopping = asyncio.Event()
    tokens = app.tokens
    sessions = Sessions(
        lambda: tokens.own, tokens.holds, settings.state_dir, clock=tokens.wall_clock
    )
    limits = PeerLimits(settings.limits, clock=monotonic)
    servicers = _servicers(app, stopping, sessions)
    healthy = health.aio.HealthServicer()
    # The own user's calls have a server by themselves: strangers at the port cannot fill its queue.
    servers = [_grpc_server(app, admitted, limits) for _ in range(2)]
    for each in servers:
        _add(each, healthy, servicers)
    server, local = servers
    credentials = None if tls is None else server_credentials(tls)
    address = bind(server, settings.listen, credentials, flag="--listen")
    page = None if settings.dashboard_listen is None else PageServer(settings.dashboard_listen, tls)
    # From before the first call until after the last.
    with _local(local, app, address, admitted):
        await asyncio.gather(*(each.start() for each in servers))
        try:
            if page is not None:
                by_name = {type(servicer).__name__: servicer for servicer in servicers}
                await open_page(app, by_name, sessions, page, tls, limits=limits)
            await _announce(app, address, tls, admitted)
            if page is not None:
                logger.info("the page is at %s: `lipt dashboard` opens it", page.url)
            notify_service_manager(READY="1", STATUS=f"serving {address}")
            yield address
        finally:
            notify_service_manager(STOPPING="1")
            logger.info(
                "stopping: no new work, up to %g s for calls under way", settings.drain_seconds
            )
            await healthy.enter_graceful_shutdown()
            stopping.set()
            ending = [] if page is None else [page.stop()]
            drained = (each.stop(settings.drain_seconds) for each in servers)
            await asyncio.gather(*drained, *ending)


def _readings(app: App) -> Callable[[], Readings]:
    state = in_event_loop(
        lambda: {**state_readings(app.store, app.dispatcher, app.compute), **app.storage.readings()}
    )
    return lambda: {**state(), **machine_readings(app.compute, app.settings.state_dir)}


@contextmanager
def _local(server: grpc.aio.Server, app: App, address: str, admitted: Admission) -> Iterator[None]:
    if is_loopback(split_address(address)[0]):
        forget_dead(address)
    if admitted is not Admission.OWN_USER:
        yield
        return
    with local_sockets(address, server.add_insecure_port) as paths:
        if not paths:
            logger.warning(
                "clients of this user cannot reach it without a token: no folder for a socket can "
                "be used. Set XDG_RUNTIME_DIR or TMPDIR, here and for them, to a folder of this "
                "user with a short path, or start them with --token-file %s.",
                app.settings.state_dir / OWN_FILE,
            )
        yield


def _grpc_server(app: App, admitted: Admission, limits: PeerLimits) -> grpc.aio.Server:
    identification = partial(identify, admitted=admitted, tokens=app.tokens)
    return grpc.aio.server(
        interceptors=[CallInterceptor(identification, app.events, app.meters, limits)],
        options=(
            # The other half is for files, the page, the metrics, and this user's own connections.
            *connection_options(
                raise_descriptor_limit() // 2, app.settings.limits.per_peer.max_streams
            ),
            # Workers ping every 30 s, also between calls.
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ),
    )


def _servicers(app: App, stopping: asyncio.Event, sessions: Sessions) -> tuple[object, ...]:
    settings, dispatcher = app.settings, app.dispatcher
    of_workers, uploads = WorkerBlobs(dispatcher), app.storage.uploads
    info = InfoService(
        dataset_view(app.data),
        app.store,
        dispatcher,
        app.compute,
        stopping,
        default_run=settings.run,
        device=device_name(resolve_device(settings.device)),
        wall_clock=time,
    )
    return (
        AccessService(app.tokens, sessions.link),
        BlobService(app.blobs, uploads, of_workers=of_workers, meters=app.meters),
        DiagnosisService(app.answers),
        info,
        MixtureService(Mixtures(app.answers)),
        RunService(app.store, app.requests, app.answers, stopping, dispatcher.waiting_reason),
        SubsetService(app.answers),
        WorkerService(dispatcher, app.intake, app.data, stopping),
    )


def _add(
    server: grpc.aio.Server, healthy: health.aio.HealthServicer, servicers: Iterable[object]
) -> None:
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    for servicer in servicers:
        # Each generated base class has its add function beside it.
        base = type(servicer).__bases__[0]
        getattr(import_module(base.__module__), f"add_{base.__name__}_to_server")(servicer, server)
    services = sorted({method.split("/")[1] for method in ALLOWED_ROLES})
    reflection.enable_server_reflection((*services, health.SERVICE_NAME), server)


async def _announce(app: App, address: str, tls: TlsFiles | None, admitted: Admission) -> None:
    app.lock.describe(f"serving {address}")
    data = app.data
    logger.info(
        "lipt-coordinator on %s (%s), serving %s (%d examples, %s) with %s; state in %s",
        address,
        describe_exposure(address, tls, admitted),
        data.source,
        data.num_examples,
        data.target,
        app.settings.run.model,
        app.settings.state_dir,
    )
    for level, note in notes_on(data):
        logger.log(level, "%s: %s", data.source, note)
    if app.settings.address_file is not None:
        await asyncio.to_thread(_write_address, app.settings.address_file, address)


def _write_address(path: Path, address: str) -> None:
    # Renamed into place: readers never see a partial file.
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(f"{address}\n", encoding="utf-8")
    temporary.replace(path)


def _on_signals() -> asyncio.Event:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    # Not the loop's own handlers: those are gone before the process has ended.
    def stop() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(asked.set)

    on_stop_signals(stop)
    return asked
