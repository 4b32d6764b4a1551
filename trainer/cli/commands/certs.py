"""`lipt certs`: an authority of one's own, and certificates with roles, for who has none."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.common.access.roles import Role
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.cli.options import Json

if TYPE_CHECKING:
    from lipt.trainer.cli.certificates import Folder, Pair

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
_PORT = 50051


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

    files = certificates.Folder(folder)
    files.require_free([certificates.AUTHORITY, certificates.COORDINATOR], force=force)
    authority = certificates.make_authority(now=utc_now(), days=authority_days)
    made, lines = _coordinator(files, authority, hosts or [socket.gethostname()], days)
    files.write(certificates.AUTHORITY, authority)
    cert, key = files.cert(certificates.AUTHORITY), files.key(certificates.AUTHORITY)
    where = shlex.quote(str(folder))
    lines = [
        f"{cert}: the authority, until {_day(authority)}; every machine gets it",
        f"{key}: who has it makes certificates; it is copied nowhere",
        *lines,
        "Make certificates for who connects, one for each machine or person:",
        *(f"    lipt certs {role} --folder {where}" for role in (Role.WORKER, Role.TRAINER)),
    ]
    for role in (Role.WORKER, Role.TRAINER):
        command = _peer_command(files, role, role)
        lines += _use(files, role, f"a {role}'s machine", command)
        made["commands"].append(command)
    print_result(made | {"ca": cert, "ca_key": key}, lines, as_json=json)


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
    from lipt.trainer.cli import certificates

    files = certificates.Folder(folder)
    authority = files.authority()
    files.require_free([certificates.COORDINATOR], force=force)
    names = hosts or files.hosts(certificates.COORDINATOR) or [socket.gethostname()]
    made, lines = _coordinator(files, authority, names, days)
    print_result(made, lines, as_json=json)


def _add_peer(role: Role, may: str) -> None:
    def make(
        *,
        name: Name = role.value,
        hosts: MetricsHosts = None,
        folder: FolderOption = Path("certs"),
        days: Days = 365,
        force: Force = False,
        json: Json = False,
    ) -> None:
        from lipt.common.network.tls import utc_now
        from lipt.trainer.cli import certificates

        if hosts and role is not Role.WORKER:
            raise typer.BadParameter(
                f"a {role} serves nothing, and a worker only its metrics.", param_hint="--host"
            )
        files, named = certificates.Folder(folder), hosts or []
        authority, now = files.authority(), utc_now()
        pair = certificates.issue_client(authority, name, role, hosts=named, now=now, days=days)
        files.require_free([name], force=force)
        files.write(name, pair)
        command = _peer_command(files, name, role)
        made = {"name": name, "cert": files.cert(name), "key": files.key(name), "role": role}
        hosted = f"for {', '.join(named)}, " if named else ""
        lines = [
            f"{files.cert(name)}, {files.key(name)}: role {role}, {hosted}until {_day(pair)}",
            *_use(files, name, f"the {role}'s machine", command),
        ]
        print_result(made | {"hosts": named, "commands": [command]}, lines, as_json=json)

    app.command(role.value, help=f"Make a certificate of the role {role}: it may {may}.")(make)


_add_peer(Role.WORKER, "train learners, and nothing else")
_add_peer(Role.TRAINER, "start runs, and ask for subsets and weights")
_add_peer(Role.ADMIN, "do everything")


def _coordinator(
    files: Folder, authority: Pair, hosts: Sequence[str], days: int
) -> tuple[dict[str, Any], list[str]]:
    from lipt.common.network.tls import is_loopback, utc_now
    from lipt.trainer.cli import certificates

    name = certificates.COORDINATOR
    names = list(dict.fromkeys([*hosts, *_HERE]))
    pair = certificates.issue_server(authority, names, now=utc_now(), days=days)
    files.write(name, pair)
    beyond = [host for host in names if not is_loopback(host)]
    everywhere = "[::]" if beyond and ":" in beyond[0] else "0.0.0.0"  # noqa: S104 - with mTLS
    listen = f"{everywhere if beyond else '127.0.0.1'}:{_PORT}"
    start = "lipt-coordinator --data digits --model resnet8"
    command = f"{start} --listen {listen} {_flags(files, name)}"
    made = {"name": name, "cert": files.cert(name), "key": files.key(name), "hosts": names}
    lines = [
        f"{files.cert(name)}, {files.key(name)}: for {', '.join(names)}, until {_day(pair)}",
        *_use(files, name, "the coordinator's machine", command),
    ]
    return made | {"commands": [command]}, lines


def _peer_command(files: Folder, name: str, role: Role) -> str:
    from lipt.trainer.cli.certificates import COORDINATOR

    hosts = files.hosts(COORDINATOR)
    host = next((host for host in hosts if not host.startswith("*")), "HOST")
    address = f"[{host}]:{_PORT}" if ":" in host else f"{host}:{_PORT}"
    program = "lipt-worker" if role is Role.WORKER else "lipt doctor"
    return f"{program} --coordinator {address} {_flags(files, name)}"


def _use(files: Folder, name: str, where: str, command: str) -> list[str]:
    paths = " ".join(_paths(files, name))
    return [f"To {where} copy {paths} into a folder of the same name. There:", f"    {command}"]


def _flags(files: Folder, name: str) -> str:
    cert, key, ca = _paths(files, name)
    return f"--tls-cert {cert} --tls-key {key} --tls-ca {ca}"


def _paths(files: Folder, name: str) -> list[str]:
    from lipt.trainer.cli.certificates import AUTHORITY

    paths = (files.cert(name), files.key(name), files.cert(AUTHORITY))
    return [shlex.quote(str(path)) for path in paths]


def _day(pair: Pair) -> str:
    return f"{pair.certificate.not_valid_after_utc:%Y-%m-%d}"
