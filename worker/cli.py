"""Command line of `lipt-worker`: flags over LIPT_* variables over `--config FILE`, then work.

Heavy imports wait until the flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.common.config.knobs import option_help
from lipt.common.config.settings import example_file
from lipt.common.terminal import SHORT_HELP, Version, complain, say_document
from lipt.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from lipt.common.access.tokens import TokenSource

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SHORT_HELP,
)


def _knob(name: str, *flags: str, note: str = "") -> Any:
    return typer.Option(*flags, help=option_help(WorkerSettings, name, note=note))


@app.command()
def worker(
    coordinator: Annotated[str | None, _knob("coordinator")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with these settings; --print-config prints one with all."),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting as a file for --config, and end."),
    ] = False,
    device: Annotated[str | None, _knob("device")] = None,
    name: Annotated[str | None, _knob("name")] = None,
    worker_data: Annotated[str | None, _knob("worker_data")] = None,
    allow_module: Annotated[list[str] | None, _knob("allow_modules", note="Repeatable.")] = None,
    cache_dir: Annotated[Path | None, _knob("cache_dir")] = None,
    max_learners: Annotated[int | None, _knob("max_learners")] = None,
    max_idle_seconds: Annotated[float | None, _knob("max_idle_seconds")] = None,
    max_threads: Annotated[int | None, _knob("max_threads")] = None,
    max_memory: Annotated[str | None, _knob("max_memory")] = None,
    tls_cert: Annotated[Path | None, _knob("tls_cert")] = None,
    tls_key: Annotated[Path | None, _knob("tls_key")] = None,
    tls_ca: Annotated[Path | None, _knob("tls_ca")] = None,
    token_file: Annotated[Path | None, _knob("token_file")] = None,
    metrics_listen: Annotated[str | None, _knob("metrics_listen")] = None,
    insecure: Annotated[bool | None, _knob("insecure", "--insecure")] = None,
    stopped_status: Annotated[int | None, _knob("stopped_status")] = None,
    log_level: Annotated[str | None, _knob("log_level")] = None,
    log_format: Annotated[str | None, _knob("log_format")] = None,
    version: Version = False,  # noqa: ARG001 - shown before anything else
) -> None:
    """Train learners for a coordinator until told to stop."""
    if print_config:
        say_document(example_file("worker.example.toml"))
        return
    from lipt.common.errors import LiptError

    try:
        _work(
            config,
            {
                "coordinator": coordinator,
                "device": device,
                "name": name,
                "worker_data": worker_data,
                "allow_modules": tuple(allow_module) if allow_module else None,
                "cache_dir": cache_dir,
                "max_learners": max_learners,
                "max_idle_seconds": max_idle_seconds,
                "max_threads": max_threads,
                "max_memory": max_memory,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "tls_ca": tls_ca,
                "token_file": token_file,
                "metrics_listen": metrics_listen,
                "insecure": insecure,
                "stopped_status": stopped_status,
                "log_level": log_level,
                "log_format": log_format,
            },
        )
    except LiptError as error:
        complain("lipt-worker", str(error))
        raise typer.Exit(1) from None


def _work(config: Path | None, flags: dict[str, Any]) -> None:
    import logging
    import os
    import signal
    from contextlib import ExitStack

    from lipt.common.config.settings import load_settings
    from lipt.common.imports import require_importable
    from lipt.common.network.tls import TlsFiles, require_deliberate_exposure
    from lipt.common.observability.logs import configure_logging
    from lipt.common.process.machine import wait_passively

    settings = load_settings(WorkerSettings, config=config, flags=flags)
    configure_logging(settings.log_level, settings.log_format)
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    if tls is not None and (soon := tls.expires_soon()):
        logging.getLogger(__name__).warning("%s", soon)
    token = _token_source(settings)
    if settings.metrics_listen is not None:
        require_deliberate_exposure(
            settings.metrics_listen, tls, insecure=settings.insecure, flag="--metrics-listen"
        )
    wait_passively()
    # Now, rather than when every learner has failed on it.
    require_importable(settings.allow_modules)
    from lipt.common.observability.exporting import exporting
    from lipt.common.observability.logs import Events
    from lipt.common.observability.metrics import serving_metrics
    from lipt.common.process.devices import resolve_device
    from lipt.common.process.machine import this_machine
    from lipt.common.process.memory import limit_memory
    from lipt.common.rpc.channel import open_channel
    from lipt.worker.agent import assemble
    from lipt.worker.instruments import WORKER, Metering
    from lipt.worker.limits import WorkerLimits

    device = resolve_device(settings.device)
    limits = WorkerLimits(settings, this_machine(), device, allowed_modules=settings.allow_modules)
    # The driver of a CUDA device maps far more than is used.
    if limits.memory is not None and device.type == "cpu":
        limit_memory(limits.memory.at_most)
    events, metering = Events(), Metering()
    with ExitStack() as stack:
        stack.enter_context(exporting("lipt-worker", instance=settings.name))
        if settings.metrics_listen is not None:
            address = stack.enter_context(
                serving_metrics(
                    settings.metrics_listen,
                    tls,
                    events,
                    metering.meters,
                    WORKER,
                    lambda: metering.readings(device),
                )
            )
            logging.getLogger(__name__).info("metrics on %s/metrics", address)
        channel = stack.enter_context(open_channel(settings.coordinator, tls, token))
        agent = assemble(settings, channel, device, limits, events, metering=metering)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        agent.run()
    logging.getLogger(__name__).info("stopped")
    # A learner that was given back may still be inside a kernel, and gRPC waits for the answer
    # of a coordinator that hangs: the process must not wait for either.
    logging.shutdown()
    os._exit(settings.stopped_status if agent.cut_short else 0)


def _token_source(settings: WorkerSettings) -> TokenSource | None:
    from lipt.common.access.tokens import TokenSource

    secret = settings.token.get_secret_value() if settings.token is not None else None
    return TokenSource.from_options(settings.token_file, secret)


def main() -> None:
    """Entry point of the console script."""
    app()
