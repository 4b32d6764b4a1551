"""`lipt doctor`: what is installed here, and whether a coordinator can be used from here."""

from __future__ import annotations

import typer

from lipt.trainer.cli.options import (
    DEFAULT_COORDINATOR,
    Coordinator,
    Json,
    TlsCa,
    TlsCert,
    TlsKey,
)


def examine(
    *,
    json: Json = False,
    coordinator: Coordinator = DEFAULT_COORDINATOR,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Examine this installation and its way to the coordinator.

    The status is 1 when something is broken; every complaint has its remedy.
    """
    from lipt.common.network.tls import TlsFiles
    from lipt.trainer.cli.checks import check_line
    from lipt.trainer.cli.examination import installed_versions, local_checks, remote_checks
    from lipt.trainer.cli.output import print_json

    tls = TlsFiles.from_options(tls_cert, tls_key, tls_ca)
    versions = installed_versions()
    checks = []
    # Importing torch takes seconds: what is known is said before the rest is found out.
    for step in (local_checks(versions), remote_checks(coordinator, tls, versions)):
        for check in step:
            checks.append(check)
            if not json:
                typer.echo(check_line(check))
    healthy = all(check.ok is not False for check in checks)
    if json:
        print_json(
            {
                "healthy": healthy,
                "coordinator": coordinator,
                "versions": versions,
                "checks": checks,
            }
        )
    if not healthy:
        raise typer.Exit(1)
