"""`lipt certs`: an authority of one's own, and certificates with roles, for who has none."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.common.access.roles import Role
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.options import Json

if TYPE_CHECKING:
    from lipt.trainer.cli.certificates import Folder

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
    from lipt.trainer.cli import certificates

    files, now = certificates.Folder(folder), utc_now()
    files.require_free([certificates.AUTHORITY, certificates.COORDINATOR], force=force)
    authority = certificates.make_authority(now=now, days=authority_days)
    names = _with_here(hosts or [socket.gethostname()])
    pair = certificates.issue_server(authority, names, now=now, days=days)
    files.write(certificates.AUTHORITY, authority)
    files.write(certificates.COORDINATOR, pair)
    start = certificates.coordinator_command(files, names)
    peers = {
        role: certificates.peer_command(files, role, role) for role in (Role.WORKER, Role.TRAINER)
    }
    lines = [
        *certificates.authority_lines(files, authority),
        certificates.pair_line(files, certificates.COORDINATOR, pair),
        certificates.copy_line(files, certificates.COORDINATOR, "the coordinator's machine"),
        f"{_INDENT}{start}",
        "Make certificates for who connects, one for each machine or person:",
        *(f"{_INDENT}{command}" for command in certificates.making_commands(files)),
    ]
    for role, command in peers.items():
        lines.append(certificates.copy_line(files, role, f"a {role}'s machine"))
        lines.append(f"{_INDENT}{command}")
    made = {
        "ca": files.cert(certificates.AUTHORITY),
        "ca_key": files.key(certificates.AUTHORITY),
        "hosts": names,
    }
    made["commands"] = [start, *peers.values()]
    print_result(_files(files, certificates.COORDINATOR) | made, lines, as_json=json)


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
    from lipt.trainer.cli import certificates

    files = certificates.Folder(folder)
    authority = files.authority()
    files.require_free([certificates.COORDINATOR], force=force)
    before = files.certificate(certificates.COORDINATOR)
    names = _with_here(
        hosts or (before and certificates.hosts_of(before)) or [socket.gethostname()]
    )
    pair = certificates.issue_server(authority, names, now=utc_now(), days=days)
    files.write(certificates.COORDINATOR, pair)
    command = certificates.coordinator_command(files, names)
    lines = [
        certificates.pair_line(files, certificates.COORDINATOR, pair),
        certificates.copy_line(files, certificates.COORDINATOR, "the coordinator's machine"),
        f"{_INDENT}{command}",
    ]
    made = {"hosts": names, "commands": [command]}
    print_result(_files(files, certificates.COORDINATOR) | made, lines, as_json=json)


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
    from lipt.trainer.cli import certificates

    files = certificates.Folder(folder)
    authority = files.authority()
    pair = certificates.issue_client(authority, name, role, hosts=hosts, now=utc_now(), days=days)
    files.require_free([name], force=force)
    files.write(name, pair)
    command = certificates.peer_command(files, name, role)
    lines = [
        certificates.pair_line(files, name, pair, role),
        certificates.copy_line(files, name, f"the {role}'s machine"),
        f"{_INDENT}{command}",
    ]
    made = {"role": role, "hosts": hosts, "commands": [command]}
    print_result(_files(files, name) | made, lines, as_json=as_json)


def _files(files: Folder, name: str) -> dict[str, Any]:
    return {"name": name, "cert": files.cert(name), "key": files.key(name)}


def _with_here(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*hosts, *_HERE]))
