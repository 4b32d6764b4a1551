"""Command line of `lipt-coordinator`: flags over LIPT_* variables over `--config FILE`, then serve.

Heavy imports wait until the flags are read, so that `--help` answers at once.
"""

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
from lipt.coordinator.settings import CoordinatorSettings, with_own_modules

app = service_app()


@app.command()
@with_flags(
    CoordinatorSettings,
    "listen state_dir metrics_listen health_listen dashboard_listen dashboard_url device backbone "
    "tls_cert tls_key tls_ca insecure require_token address_file log_level log_format",
    data="dataset.source",
    image_size="dataset.image_size",
    max_corrupt="dataset.max_corrupt",
    model="run.model",
    compute_memory="limits.compute_memory",
    allow_module="allow_modules",
)
def coordinator(
    flags: dict[str, Any],
    config: ConfigFile = None,
    print_config: PrintConfig = False,
    version: Version = False,  # noqa: ARG001 - shown before anything else
) -> None:
    """Hold a data set, run the pipeline over workers, and serve subsets."""
    if print_config:
        print_document(example_file("run.example.toml"))
        return
    with exit_on_error("lipt-coordinator"):
        _serve(config, flags)


def _serve(config: Path | None, flags: dict[str, Any]) -> None:
    import asyncio
    import logging

    from lipt.common.observability.logs import configure_logging
    from lipt.common.observability.tracing import exporting
    from lipt.common.process import wait_passively
    from lipt.coordinator.compute.children import start_server

    settings = with_own_modules(load_settings(CoordinatorSettings, config=config, flags=flags))
    configure_logging(settings.log_level, settings.log_format)
    wait_passively()
    logger = logging.getLogger(__name__)
    # Logged now: importing PyTorch takes seconds, then the data is read.
    logger.info(
        "lipt-coordinator is starting, to serve %s on %s; state in %s",
        settings.dataset.source,
        settings.listen,
        settings.state_dir,
    )
    start_server()
    from lipt.coordinator.server import serve

    with exporting("lipt-coordinator"):
        asyncio.run(serve(settings))


def main() -> None:
    app()
