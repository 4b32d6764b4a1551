"""`lipt doctor`: what is installed here, and whether a coordinator can be used from here."""

from __future__ import annotations

from typing import Annotated

import typer

from lipt.common.text import say
from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json
from lipt.trainer.cli.display.output import print_json


@grouped
def examine(
    *,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Import torch, which takes seconds, whatever can be told without."
        ),
    ] = False,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Examine this installation, and whether the coordinator can be used from here.

    The status is 1 when something is broken; every complaint has its remedy.
    """
    from lipt.trainer.cli.doctor.checks import check_line
    from lipt.trainer.cli.doctor.examination import installed_versions, local_checks, remote_checks

    versions = installed_versions()
    checks = []
    # What is known is said before the rest is found out.
    for step in (local_checks(versions, thorough=thorough), remote_checks(coordinator, versions)):
        for check in step:
            checks.append(check)
            if not json:
                say(check_line(check))
    healthy = all(check.ok is not False for check in checks)
    if json:
        print_json(
            {
                "healthy": healthy,
                "coordinator": coordinator.address,
                "versions": versions,
                "checks": checks,
            }
        )
    if not healthy:
        raise typer.Exit(1)
