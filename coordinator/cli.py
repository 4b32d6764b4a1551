"""Command line of `lipt-coordinator`: flags over LIPT_* variables over `--config FILE`, then serve.

Heavy imports wait until the flags are read, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lipt.common.config.knobs import option_help
from lipt.common.config.settings import example_file
from lipt.common.terminal import SHORT_HELP, Version, complain, say_document
from lipt.coordinator.settings import CoordinatorSettings, with_own_modules

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SHORT_HELP,
)


def _knob(name: str, *flags: str, note: str = "") -> Any:
    return typer.Option(*flags, help=option_help(CoordinatorSettings, name, note=note))


@app.command()
def coordinator(
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with any setting; --print-config prints one with all."),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting as a file for --config, and end."),
    ] = False,
    data: Annotated[str | None, _knob("dataset.source")] = None,
    image_size: Annotated[int | None, _knob("dataset.image_size")] = None,
    fingerprint: Annotated[str | None, _knob("dataset.fingerprint")] = None,
    max_corrupt: Annotated[int | None, _knob("dataset.max_corrupt")] = None,
    model: Annotated[str | None, _knob("run.model", note="A run may name another.")] = None,
    listen: Annotated[str | None, _knob("listen")] = None,
    state_dir: Annotated[Path | None, _knob("state_dir")] = None,
    metrics_listen: Annotated[str | None, _knob("metrics_listen")] = None,
    health_listen: Annotated[str | None, _knob("health_listen")] = None,
    dashboard_listen: Annotated[str | None, _knob("dashboard_listen")] = None,
    dashboard_url: Annotated[str | None, _knob("dashboard_url")] = None,
    device: Annotated[str | None, _knob("device")] = None,
    compute_memory: Annotated[str | None, _knob("limits.compute_memory")] = None,
    backbone: Annotated[str | None, _knob("backbone")] = None,
    allow_module: Annotated[list[str] | None, _knob("allow_modules", note="Repeatable.")] = None,
    tls_cert: Annotated[Path | None, _knob("tls_cert")] = None,
    tls_key: Annotated[Path | None, _knob("tls_key")] = None,
    tls_ca: Annotated[Path | None, _knob("tls_ca")] = None,
    insecure: Annotated[bool | None, _knob("insecure", "--insecure")] = None,
    require_token: Annotated[bool | None, _knob("require_token", "--require-token")] = None,
    address_file: Annotated[Path | None, _knob("address_file")] = None,
    log_level: Annotated[str | None, _knob("log_level")] = None,
    log_format: Annotated[str | None, _knob("log_format")] = None,
    version: Version = False,  # noqa: ARG001 - shown before anything else
) -> None:
    """Hold a data set, run the pipeline over workers, and serve subsets."""
    if print_config:
        say_document(example_file("run.example.toml"))
        return
    from lipt.common.errors import LiptError

    try:
        _serve(
            config,
            {
                "dataset": {
                    "source": data,
                    "image_size": image_size,
                    "fingerprint": fingerprint,
                    "max_corrupt": max_corrupt,
                },
                "run": {"model": model},
                "limits": {"compute_memory": compute_memory},
                "listen": listen,
                "state_dir": state_dir,
                "metrics_listen": metrics_listen,
                "health_listen": health_listen,
                "dashboard_listen": dashboard_listen,
                "dashboard_url": dashboard_url,
                "device": device,
                "backbone": backbone,
                "allow_modules": tuple(allow_module) if allow_module else None,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "tls_ca": tls_ca,
                "insecure": insecure,
                "require_token": require_token,
                "address_file": address_file,
                "log_level": log_level,
                "log_format": log_format,
            },
        )
    except LiptError as error:
        complain("lipt-coordinator", str(error))
        raise typer.Exit(1) from None


def _serve(config: Path | None, flags: dict[str, Any]) -> None:
    import asyncio
    import logging

    from lipt.common.config.settings import load_settings
    from lipt.common.observability.exporting import exporting
    from lipt.common.observability.logs import configure_logging
    from lipt.common.process.machine import wait_passively
    from lipt.common.process.service import talking
    from lipt.coordinator.compute.children import start_server

    settings = with_own_modules(load_settings(CoordinatorSettings, config=config, flags=flags))
    configure_logging(settings.log_level, settings.log_format)
    wait_passively()
    say = logging.getLogger(__name__).info
    # Said now, as PyTorch alone takes seconds to import, and then the data is read.
    say(
        "lipt-coordinator is starting, to serve %s on %s; state in %s",
        settings.dataset.source,
        settings.listen,
        settings.state_dir,
    )
    start_server()
    with talking("importing PyTorch", say):
        from lipt.coordinator.server import serve

    with exporting("lipt-coordinator"):
        asyncio.run(serve(settings))


def main() -> None:
    """Entry point of the console script."""
    app()
