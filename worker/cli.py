"""Command line of `lipt-worker`; heavy imports come after the flags, so that `--help` is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lipt.common.config.settings import (
    ConfigFile,
    PrintConfig,
    example_file,
    exit_on_error,
    load_settings,
    service_app,
    with_flags,
)
from lipt.common.terminal import Version, print_document
from lipt.worker.settings import WorkerSettings

app = service_app()


@app.command()
@with_flags(
    WorkerSettings,
    "coordinator device name worker_data source cache_dir max_learners max_idle_seconds "
    "max_threads max_memory tls_cert tls_key tls_ca token_file metrics_listen insecure "
    "stopped_status "
    "log_level log_format",
    allow_module="allow_modules",
)
def worker(
    flags: dict[str, Any],
    config: ConfigFile = None,
    print_config: PrintConfig = False,
    version: Version = False,  # noqa: ARG001 - shown before anything else
) -> None:
    """Train learners for a coordinator until a signal, or a limit of the settings."""
    if print_config:
        print_document(example_file("worker.example.toml"))
        return
    with exit_on_error("lipt-worker"):
        _work(config, flags)


def _work(config: Path | None, flags: dict[str, Any]) -> None:
    import logging
    import os
    from contextlib import ExitStack

    from lipt.common.imports import require_importable
    from lipt.common.observability.logs import configure_logging
    from lipt.common.process import on_stop_signals, this_machine, wait_passively

    settings = load_settings(WorkerSettings, config=config, flags=flags)
    configure_logging(settings.log_level, settings.log_format)
    wait_passively()
    # Fail now, before learners do.
    require_importable(settings.allow_modules)

    from lipt.common.access.tls import TlsFiles, require_deliberate_exposure
    from lipt.common.access.tokens import TokenSource
    from lipt.common.blobs.store import BlobStore
    from lipt.common.observability.metrics import serving_metrics
    from lipt.common.observability.tracing import exporting
    from lipt.common.process.devices import limit_memory, resolve_device
    from lipt.common.rpc.channel import open_channel
    from lipt.worker.agent import Agent
    from lipt.worker.assignment import Worker, WorkerLimits
    from lipt.worker.client import CoordinatorClient
    from lipt.worker.instruments import SECONDS, WORKER

    logger = logging.getLogger(__name__)
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    if tls is not None and (soon := tls.expires_soon()):
        logger.warning("%s", soon)
    token = TokenSource.from_options(settings.token_file, settings.token)
    listen, insecure = settings.metrics_listen, settings.insecure
    if listen is not None:
        require_deliberate_exposure(listen, tls, insecure=insecure, flag="--metrics-listen")
    device = resolve_device(settings.device)
    limits = WorkerLimits(settings, this_machine(), device)
    # A CUDA driver maps far more memory than is used.
    memory = limits.at_most.get("worker_memory")
    if memory is not None and device.type == "cpu":
        limit_memory(memory.at_most)
    cache = BlobStore(settings.cache_dir, max_blob_bytes=settings.max_blob_bytes)
    with ExitStack() as stack:
        stack.enter_context(exporting("lipt-worker", instance=settings.name))
        channel = stack.enter_context(open_channel(settings.coordinator, tls, token))
        worker = Worker(settings, CoordinatorClient(channel), device, limits, cache)
        given = (tls, worker.events, worker.meters, WORKER)
        seconds = worker.phases.seconds
        stack.enter_context(serving_metrics(listen, *given, lambda: {SECONDS: seconds()}))
        agent = Agent(worker)
        on_stop_signals(agent.stop)
        agent.run()
    logger.info("stopped")
    # A released learner may still be in a kernel, and gRPC may wait for a hanging coordinator. The
    # process must not wait for either.
    logging.shutdown()
    os._exit(settings.stopped_status if agent.stopped_early else 0)


def main() -> None:
    app()
