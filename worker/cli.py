"""`lipt-worker`: flags over LIPT_* variables over `--config FILE`, then work.

Heavy imports wait until the flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def worker(
    coordinator: Annotated[
        str | None, typer.Option(help="host:port [default: 127.0.0.1:50051].")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with these settings.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda:N.")] = None,
    name: Annotated[
        str | None, typer.Option(help="How this worker is shown [default: the host's name].")
    ] = None,
    allow_module: Annotated[
        list[str] | None,
        typer.Option(help="Module to import model factories from when a run asks; repeatable."),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where initial weights are kept between learners.")
    ] = None,
    max_learners: Annotated[
        int | None, typer.Option(help="Stop after so many learners [default: go on].")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate of this worker.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the certificate.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM authority that certified the coordinator.")
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(help="Address of Prometheus metrics, at /metrics.")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Show metrics beyond this machine without TLS."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Train learners for a coordinator until told to stop."""
    from lipt.common.errors import LiptError

    try:
        _work(
            config,
            {
                "coordinator": coordinator,
                "device": device,
                "name": name,
                "allow_modules": tuple(allow_module) if allow_module else None,
                "cache_dir": cache_dir,
                "max_learners": max_learners,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "tls_ca": tls_ca,
                "metrics_listen": metrics_listen,
                "insecure": insecure,
                "log_level": log_level,
            },
        )
    except LiptError as error:
        typer.echo(f"lipt-worker: {error}", err=True)
        raise typer.Exit(1) from None


def _work(config: Path | None, flags: dict[str, Any]) -> None:
    import logging
    import os
    import signal
    from contextlib import ExitStack

    from lipt.common.config.settings import load_settings
    from lipt.common.network.address import require_deliberate_exposure
    from lipt.common.network.tls import TlsFiles
    from lipt.common.process.logs import configure_logging
    from lipt.common.process.threads import wait_passively
    from lipt.worker.settings import WorkerSettings

    settings = load_settings(WorkerSettings, config=config, flags=flags)
    configure_logging(settings.log_level)
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    if settings.metrics_listen is not None:
        require_deliberate_exposure(
            settings.metrics_listen, tls, insecure=settings.insecure, flag="--metrics-listen"
        )
    wait_passively()
    from lipt.common.blobs.store import BlobStore
    from lipt.common.observability.events import Events
    from lipt.common.observability.metrics import serving_metrics
    from lipt.common.process.devices import resolve_device
    from lipt.common.rpc.channel import open_channel
    from lipt.worker.agent import Agent
    from lipt.worker.coordinator import Coordinator

    device = resolve_device(settings.device)
    cache = BlobStore(settings.cache_dir, max_blob_bytes=settings.max_blob_bytes)
    events = Events()
    with ExitStack() as stack:
        if settings.metrics_listen is not None:
            stack.enter_context(
                serving_metrics(settings.metrics_listen, tls, events, gauges=lambda: ())
            )
        channel = stack.enter_context(open_channel(settings.coordinator, tls))
        agent = Agent(settings, Coordinator(channel), cache, device, events)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        agent.run()
    logging.getLogger(__name__).info("stopped")
    # A learner that was given back may still be inside a kernel, and gRPC waits for the answer
    # of a coordinator that hangs: the process must not wait for either.
    logging.shutdown()
    os._exit(0)


def main() -> None:
    """Entry point of the console script."""
    app()
