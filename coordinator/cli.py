"""Command line of `lipt-coordinator`: flags over LIPT_* variables over `--config FILE`, then serve.

Heavy imports wait until the flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def coordinator(
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with every setting; deploy/run.example.toml shows them."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set: digits, cifar10:DIR, cifar100:DIR, imagefolder:DIR, parquet:PATH, "
            "or package.module:factory."
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Resize images to this many pixels a side.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of a run that names none: resnet8, resnet18, wrn28_10, torchvision:NAME, "
            "or package.module:factory."
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address to serve on [default: 127.0.0.1:50051].")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Where runs survive restarts [default: the user's state directory]."),
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(help="Address of Prometheus metrics, at /metrics.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu or cuda:N, for the soup and the signals.")
    ] = None,
    allow_module: Annotated[
        list[str] | None,
        typer.Option(help="Module that a run may name a model factory in; repeatable."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate of this server.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the certificate.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM authority whose certificates peers must show (mTLS).")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Listen beyond this machine without TLS."),
    ] = None,
    address_file: Annotated[
        Path | None, typer.Option(help="Write the address here once it is served.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Hold a data set, run the pipeline over workers, and serve subsets."""
    from lipt.common.errors import LiptError

    try:
        _serve(
            config,
            {
                "dataset": {"source": data, "image_size": image_size},
                "run": {"model": model},
                "listen": listen,
                "state_dir": state_dir,
                "metrics_listen": metrics_listen,
                "device": device,
                "allow_modules": tuple(allow_module) if allow_module else None,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "tls_ca": tls_ca,
                "insecure": insecure,
                "address_file": address_file,
                "log_level": log_level,
            },
        )
    except LiptError as error:
        typer.echo(f"lipt-coordinator: {error}", err=True)
        raise typer.Exit(1) from None


def _serve(config: Path | None, flags: dict[str, Any]) -> None:
    import asyncio

    from lipt.common.config.settings import load_settings
    from lipt.common.process.logs import configure_logging
    from lipt.common.process.threads import wait_passively
    from lipt.coordinator.settings import CoordinatorSettings, with_own_modules

    settings = with_own_modules(load_settings(CoordinatorSettings, config=config, flags=flags))
    configure_logging(settings.log_level)
    wait_passively()
    from lipt.coordinator.server import serve

    asyncio.run(serve(settings))


def main() -> None:
    """Entry point of the console script."""
    app()
