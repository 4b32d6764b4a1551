"""Instructions: what was made, where to copy it, and the commands that use it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from lipt.common.access.roles import Role
from lipt.common.network.tls import is_loopback
from lipt.trainer.cli.certificates.authority import AUTHORITY, COORDINATOR, Pair, hosts_of
from lipt.trainer.cli.certificates.folder import Folder

_PORT = 50051
# A host of the commands where nothing says which it is.
_SOME_HOST = "HOST"


def authority_lines(folder: Folder, authority: Pair) -> list[str]:
    """What an authority's files are for."""
    return [
        f"{folder.cert(AUTHORITY)}: the authority, until {_day(authority)}; every machine gets it",
        f"{folder.key(AUTHORITY)}: who has it makes certificates; it is copied nowhere",
    ]


def pair_line(folder: Folder, name: str, pair: Pair, role: Role | None = None) -> str:
    """What a certificate is for; the coordinator's has no role."""
    hosts = ", ".join(hosts_of(pair.certificate))
    said = [f"role {role}"] * bool(role) + [f"for {hosts}"] * bool(hosts)
    until = f"until {_day(pair)}"
    return f"{folder.cert(name)}, {folder.key(name)}: {', '.join([*said, until])}"


def copy_line(folder: Folder, name: str, where: str) -> str:
    """Which files go where."""
    files = " ".join(_quoted(path) for path in _files(folder, name))
    return f"To {where} copy {files} into a folder of the same name. There:"


def making_commands(folder: Folder) -> list[str]:
    """How certificates for those who connect are made."""
    where = _quoted(folder.path)
    return [f"lipt certs {role} --folder {where}" for role in (Role.WORKER, Role.TRAINER)]


def coordinator_command(folder: Folder, hosts: Sequence[str]) -> str:
    """How a coordinator is started with its certificate."""
    beyond = [host for host in hosts if not is_loopback(host)]
    everywhere = "[::]" if beyond and ":" in beyond[0] else "0.0.0.0"  # noqa: S104 - with mTLS
    listen = f"{everywhere if beyond else '127.0.0.1'}:{_PORT}"
    flags = _flags(folder, COORDINATOR)
    return f"lipt-coordinator --data digits --model resnet8 --listen {listen} {flags}"


def peer_command(folder: Folder, name: str, role: Role) -> str:
    """How a worker is started with its certificate, or a coordinator asked."""
    certificate = folder.certificate(COORDINATOR)
    address = _address([] if certificate is None else hosts_of(certificate))
    program = "lipt-worker" if role is Role.WORKER else "lipt doctor"
    return f"{program} --coordinator {address} {_flags(folder, name)}"


def _address(hosts: Sequence[str]) -> str:
    host = next((host for host in hosts if not host.startswith("*")), _SOME_HOST)
    return f"[{host}]:{_PORT}" if ":" in host else f"{host}:{_PORT}"


def _flags(folder: Folder, name: str) -> str:
    cert, key, ca = map(_quoted, _files(folder, name))
    return f"--tls-cert {cert} --tls-key {key} --tls-ca {ca}"


def _files(folder: Folder, name: str) -> tuple[Path, Path, Path]:
    return folder.cert(name), folder.key(name), folder.cert(AUTHORITY)


def _quoted(path: Path) -> str:
    """As a shell takes it."""
    return shlex.quote(str(path))


def _day(pair: Pair) -> str:
    return f"{pair.certificate.not_valid_after_utc:%Y-%m-%d}"
