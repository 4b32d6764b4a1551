"""`lipt certs`: a certificate authority, and certificates with roles."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, BadParameter, Option, Typer

from lipt.cli import options as shared
from lipt.cli.output import print_result
from lipt.common.access import Role
from lipt.common.terminal import CommandGroup

if TYPE_CHECKING:
    from lipt.cli.certificates import Folder, Pair

app = Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make certificates for coordinator, workers and trainers.",
)

_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class CertificateFlags:
    folder: Path = Option(
        "certs", help="Folder of the authority and of the certificates that it signs."
    )
    days: int = Option(365, min=1, max=3650, help="How long; never beyond its authority.")
    force: bool = Option(False, "--force", help="Replace the files that are there.")

    def files(self) -> Folder:
        from lipt.cli.certificates import Folder

        return Folder(self.folder)


def _hosts(of_what: str) -> Any:
    return Option(None, "--host", help=f"A name or IP address of {of_what}; repeatable.")


@app.command()
@shared.grouped
def init(
    *,
    hosts: list[str] | None = _hosts("the coordinator's machine, besides localhost"),
    target: CertificateFlags,
    authority_days: int = Option(3650, min=1, max=36500, help="How long the authority is valid."),
    json: shared.Json = False,
) -> None:
    """Make an authority, and the coordinator's certificate.

    Without --host the certificate is for this machine's name.
    """
    from lipt.cli.certificates import AUTHORITY, COORDINATOR, make_authority
    from lipt.common.access.tls import utc_now

    files = target.files()
    files.require_free([AUTHORITY, COORDINATOR], force=target.force)
    authority = make_authority(now=utc_now(), days=authority_days)
    made, lines = _coordinator(files, authority, hosts or [socket.gethostname()], target.days)
    files.write(AUTHORITY, authority)
    cert, key = files.cert(AUTHORITY), files.key(AUTHORITY)
    where = shlex.quote(str(target.folder))
    lines = [
        f"{cert}: the authority, until {_day(authority)}; every machine gets it",
        f"{key}: signs certificates; keep it here and copy it nowhere",
        *lines,
        "Make a certificate for each machine or person that connects:",
        *(f"    lipt certs {role} --folder {where}" for role in (Role.WORKER, Role.TRAINER)),
    ]
    print_result(made | {"ca": cert, "ca_key": key}, lines, as_json=json)


@app.command()
@shared.grouped
def coordinator(
    *,
    hosts: list[str] | None = _hosts("the coordinator's machine, besides localhost"),
    target: CertificateFlags,
    json: shared.Json = False,
) -> None:
    """Make the coordinator's certificate anew, for other hosts or another year.

    Without --host it is for the hosts of the one that is there.
    """
    from lipt.cli.certificates import COORDINATOR

    files = target.files()
    authority = files.authority()
    files.require_free([COORDINATOR], force=target.force)
    names = hosts or files.hosts(COORDINATOR) or [socket.gethostname()]
    made, lines = _coordinator(files, authority, names, target.days)
    print_result(made, lines, as_json=json)


def _add_peer(role: Role, may: str) -> None:
    @app.command(role.value, help=f"Make a certificate of the role {role}: it may {may}.")
    @shared.grouped
    def make(
        *,
        name: str = Argument(role.value, help="Name of the peer at the coordinator."),
        hosts: list[str] | None = _hosts("a worker whose metrics are scraped"),
        scores: bool = Option(False, "--scores", help="A worker's: it may score examples."),
        target: CertificateFlags,
        json: shared.Json = False,
    ) -> None:
        from lipt.cli.certificates import issue_client
        from lipt.common.access.tls import utc_now

        if (hosts or scores) and role is not Role.WORKER:
            raise BadParameter("--host, for metrics, and --scores are for workers.")
        files, named = target.files(), hosts or []
        authority, now = files.authority(), utc_now()
        days = target.days
        pair = issue_client(authority, name, role, hosts=named, now=now, days=days, scores=scores)
        files.require_free([name], force=target.force)
        made, lines = _written(files, name, named, pair)
        print_result(made | {"role": role, "scores": scores}, lines, as_json=json)


_add_peer(Role.WORKER, "train learners, and nothing else")
_add_peer(Role.TRAINER, "start runs, and ask for subsets and weights")
_add_peer(Role.ADMIN, "do everything")


def _coordinator(
    files: Folder, authority: Pair, hosts: Sequence[str], days: int
) -> tuple[dict[str, Any], list[str]]:
    from lipt.cli.certificates import COORDINATOR, issue_server
    from lipt.common.access.tls import utc_now

    names = list(dict.fromkeys([*hosts, *_HERE]))
    pair = issue_server(authority, names, now=utc_now(), days=days)
    return _written(files, COORDINATOR, names, pair)


def _written(
    files: Folder, name: str, hosts: Sequence[str], pair: Pair
) -> tuple[dict[str, Any], list[str]]:
    """Write a certificate; return its description, and lines on how to install and use it."""
    from lipt.cli.certificates import AUTHORITY

    files.write(name, pair)
    paths = {"cert": files.cert(name), "key": files.key(name)}
    cert, key, ca = (shlex.quote(str(path)) for path in (*paths.values(), files.cert(AUTHORITY)))
    hosted = f"for {', '.join(hosts)}, " if hosts else ""
    lines = [
        f"{cert}, {key}: {hosted}until {_day(pair)}",
        f"Copy {cert} {key} {ca} to its machine, into a folder of the same name. Give there:",
        f"    --tls-cert {cert} --tls-key {key} --tls-ca {ca}",
    ]
    return {"name": name, **paths, "hosts": hosts}, lines


def _day(pair: Pair) -> str:
    return f"{pair.certificate.not_valid_after_utc:%Y-%m-%d}"
