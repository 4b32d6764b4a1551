"""Command line of `lipt-worker-pool`: flags over LIPT_* variables, then workers as needed.

Heavy imports wait until the flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lipt.common.config.knobs import option_help
from lipt.common.terminal import SHORT_HELP, Version, complain, say
from lipt.worker.settings import PoolSettings

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SHORT_HELP,
)


def knob(name: str, *flags: str, note: str = "") -> Any:
    """The option of a setting of a pool."""
    return typer.Option(*flags, help=option_help(PoolSettings, name, note=note))


Workers = Annotated[int | None, knob("workers")]
MinWorkers = Annotated[int | None, knob("min_workers")]
IdleSeconds = Annotated[float | None, knob("idle_seconds")]
Ray = Annotated[str | None, knob("ray")]
GpusPerWorker = Annotated[float | None, knob("gpus_per_worker")]
CpusPerWorker = Annotated[float | None, knob("cpus_per_worker")]
Resources = Annotated[list[str] | None, knob("resources", "--resource", note="Repeatable.")]
RuntimeEnv = Annotated[Path | None, knob("runtime_env")]
WorkingDir = Annotated[Path | None, knob("working_dir")]
TlsCert = Annotated[Path | None, knob("tls_cert")]
TlsKeyFile = Annotated[Path | None, knob("tls_key")]
TlsCa = Annotated[Path | None, knob("tls_ca")]
TokenFile = Annotated[Path | None, knob("token_file")]
Level = Annotated[str | None, knob("log_level")]
WorkerArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- WORKER_FLAGS]",
        help="After --: flags for every lipt-worker, such as --allow-module mine.",
        show_default=False,
    ),
]


@app.command()
def worker_pool(
    worker_arguments: WorkerArguments = None,
    coordinator: Annotated[str | None, knob("coordinator")] = None,
    workers: Workers = None,
    min_workers: MinWorkers = None,
    idle_seconds: IdleSeconds = None,
    ray: Ray = None,
    gpus_per_worker: GpusPerWorker = None,
    cpus_per_worker: CpusPerWorker = None,
    resource: Resources = None,
    runtime_env: RuntimeEnv = None,
    working_dir: WorkingDir = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKeyFile = None,
    tls_ca: TlsCa = None,
    token_file: TokenFile = None,
    log_level: Level = None,
    version: Version = False,  # noqa: ARG001 - shown before anything else
) -> None:
    """Keep as many workers running as there are learners for, here or on a Ray cluster."""
    from lipt.common.errors import LiptError

    try:
        _run(
            {
                "coordinator": coordinator,
                "workers": workers,
                "min_workers": min_workers,
                "idle_seconds": idle_seconds,
                "ray": ray,
                "gpus_per_worker": gpus_per_worker,
                "cpus_per_worker": cpus_per_worker,
                "resources": tuple(resource) if resource else None,
                "runtime_env": runtime_env,
                "working_dir": working_dir,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "tls_ca": tls_ca,
                "token_file": token_file,
                "log_level": log_level,
            },
            worker_arguments or [],
        )
    except LiptError as error:
        complain("lipt-worker-pool", str(error))
        raise typer.Exit(1) from None


def _run(flags: dict[str, Any], worker_arguments: list[str]) -> None:
    import logging
    import signal
    from functools import partial

    from lipt.common.config.settings import load_settings
    from lipt.common.observability.logs import configure_logging
    from lipt.worker.pool.pool import opened

    settings = load_settings(PoolSettings, config=None, flags=flags)
    configure_logging(settings.log_level)
    with opened(settings, worker_arguments, say=partial(say, err=True)) as pool:
        # Only now: connecting to Ray sets handlers, too.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: pool.stop())
        logging.getLogger(__name__).info(
            "up to %d workers for %s, %s",
            settings.workers,
            settings.coordinator,
            settings.where,
        )
        pool.run()
    logging.getLogger(__name__).info("stopped")


def main() -> None:
    """Entry point of the console script."""
    app()
