"""`lipt certs`: an authority of one's own, and certificates with roles, for who has none."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.common.access.roles import Role
from lipt.trainer.cli.arguments.options import Json
from lipt.trainer.cli.display.output import print_result

if TYPE_CHECKING:
    from lipt.trainer.cli.certificates.folder import Folder

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make certificates for coordinator, workers and trainers, where nobody else does.",
)

FolderOption = Annotated[
    Path, typer.Option("--folder", help="Where the authority is, and what it signs goes.")
]
Days = Annotated[
    int, typer.Option(min=1, max=3650, help="How long it counts; never beyond its authority.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the files that are there.")]
Name = Annotated[str, typer.Argument(help="What the coordinator is to call it.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="A name or IP address that peers reach the coordinator by; repeatable. "
        "localhost, 127.0.0.1 and ::1 are added.",
    ),
]
MetricsHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host", help="A name or IP address that its metrics are scraped at; repeatable."
    ),
]

_HERE = ("localhost", "127.0.0.1", "::1")
_INDENT = "    "


@app.command()
def init(
    *,
    hosts: Hosts = None,
    folder: FolderOption = Path("certs"),
    days: Days = 365,
    authority_days: Annotated[
        int, typer.Option(min=1, max=36500, help="How long the authority counts.")
    ] = 3650,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make an authority, and the coordinator's certificate.

    Without --host the certificate is for this machine's name.
    """
    from lipt.common.network.tls import utc_now
    from lipt.trainer.cli.certificates import instructions
    from lipt.trainer.cli.certificates.authority import (
        AUTHORITY,
        COORDINATOR,
        issue_server,
        make_authority,
    )
    from lipt.trainer.cli.certificates.folder import Folder

    files, now = Folder(folder), utc_now()
    files.require_free([AUTHORITY, COORDINATOR], force=force)
    authority = make_authority(now=now, days=authority_days)
    names = _with_here(hosts or [socket.gethostname()])
    pair = issue_server(authority, names, now=now, days=days)
    files.write(AUTHORITY, authority)
    files.write(COORDINATOR, pair)
    start = instructions.coordinator_command(files, names)
    peers = {
        role: instructions.peer_command(files, role, role) for role in (Role.WORKER, Role.TRAINER)
    }
    lines = [
        *instructions.authority_lines(files, authority),
        instructions.pair_line(files, COORDINATOR, pair),
        instructions.copy_line(files, COORDINATOR, "the coordinator's machine"),
        f"{_INDENT}{start}",
        "Make certificates for who connects, one for each machine or person:",
        *(f"{_INDENT}{command}" for command in instructions.making_commands(files)),
    ]
    for role, command in peers.items():
        lines.append(instructions.copy_line(files, role, f"a {role}'s machine"))
        lines.append(f"{_INDENT}{command}")
    made = {"ca": files.cert(AUTHORITY), "ca_key": files.key(AUTHORITY), "hosts": names}
    made["commands"] = [start, *peers.values()]
    print_result(_files(files, COORDINATOR) | made, lines, as_json=json)


@app.command()
def coordinator(
    *,
    hosts: Hosts = None,
    folder: FolderOption = Path("certs"),
    days: Days = 365,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make the coordinator's certificate anew, for other hosts or another year.

    Without --host it is for the hosts of the one that is there.
    """
    from lipt.common.network.tls import utc_now
    from lipt.trainer.cli.certificates import instructions
    from lipt.trainer.cli.certificates.authority import COORDINATOR, hosts_of, issue_server
    from lipt.trainer.cli.certificates.folder import Folder

    files = Folder(folder)
    authority = files.authority()
    files.require_free([COORDINATOR], force=force)
    before = files.certificate(COORDINATOR)
    names = _with_here(hosts or (before and hosts_of(before)) or [socket.gethostname()])
    pair = issue_server(authority, names, now=utc_now(), days=days)
    files.write(COORDINATOR, pair)
    command = instructions.coordinator_command(files, names)
    lines = [
        instructions.pair_line(files, COORDINATOR, pair),
        instructions.copy_line(files, COORDINATOR, "the coordinator's machine"),
        f"{_INDENT}{command}",
    ]
    made = {"hosts": names, "commands": [command]}
    print_result(_files(files, COORDINATOR) | made, lines, as_json=json)


@app.command()
def worker(
    *,
    name: Name = "worker",
    hosts: MetricsHosts = None,
    folder: FolderOption = Path("certs"),
    days: Days = 365,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a worker's certificate: it may train learners, and nothing else."""
    _make(Role.WORKER, name, hosts or (), folder, days, force=force, as_json=json)


@app.command()
def trainer(
    *,
    name: Name = "trainer",
    folder: FolderOption = Path("certs"),
    days: Days = 365,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a trainer's certificate: it may start runs, and ask for subsets and weights."""
    _make(Role.TRAINER, name, (), folder, days, force=force, as_json=json)


@app.command()
def admin(
    *,
    name: Name = "admin",
    folder: FolderOption = Path("certs"),
    days: Days = 365,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make an admin's certificate: it may do everything."""
    _make(Role.ADMIN, name, (), folder, days, force=force, as_json=json)


def _make(
    role: Role,
    name: str,
    hosts: Sequence[str],
    folder: Path,
    days: int,
    *,
    force: bool,
    as_json: bool,
) -> None:
    from lipt.common.network.tls import utc_now
    from lipt.trainer.cli.certificates import instructions
    from lipt.trainer.cli.certificates.authority import issue_client
    from lipt.trainer.cli.certificates.folder import Folder

    files = Folder(folder)
    authority = files.authority()
    pair = issue_client(authority, name, role, hosts=hosts, now=utc_now(), days=days)
    files.require_free([name], force=force)
    files.write(name, pair)
    command = instructions.peer_command(files, name, role)
    lines = [
        instructions.pair_line(files, name, pair, role),
        instructions.copy_line(files, name, f"the {role}'s machine"),
        f"{_INDENT}{command}",
    ]
    made = {"role": role, "hosts": hosts, "commands": [command]}
    print_result(_files(files, name) | made, lines, as_json=as_json)


def _files(files: Folder, name: str) -> dict[str, Any]:
    return {"name": name, "cert": files.cert(name), "key": files.key(name)}


def _with_here(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*hosts, *_HERE]))
