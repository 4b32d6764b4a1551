"""The options that every command shares, and the client that they ask for.

Nothing here imports gRPC until a command runs: `--help` has to be instant.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lipt.trainer.client import Client

DEFAULT_COORDINATOR = "127.0.0.1:50051"

Coordinator = Annotated[
    str,
    typer.Option(
        "--coordinator",
        envvar="LIPT_COORDINATOR",
        metavar="HOST:PORT",
        help="Where lipt-coordinator listens.",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", envvar="LIPT_TLS_CERT", help="This side's certificate (PEM)."),
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", envvar="LIPT_TLS_KEY", help="The certificate's key (PEM)."),
]
TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", envvar="LIPT_TLS_CA", help="Who signs the coordinator (PEM)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Run = Annotated[str, typer.Option("--run", "-r", help="A run's id or name, or latest.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id or name, or latest.")]


def connect(coordinator: str, cert: Path | None, key: Path | None, ca: Path | None) -> Client:
    """The client that the connection's options ask for.

    Raises:
        ConfigError: the address is not host:port, or a file is missing.
    """
    from lipt.common.network.tls import TlsFiles
    from lipt.trainer.client import Client

    return Client(coordinator, tls=TlsFiles.from_options(cert, key, ca))
