"""Options that several commands share, each declared once.

Nothing here imports gRPC until a command runs: `--help` has to be instant.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from lipt.common.network.tls import TlsFiles
    from lipt.trainer.client.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Run = Annotated[str, typer.Option("--run", "-r", help="The id or name of a run, or latest.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The id or name of a run, or latest.")
]
Fraction = Annotated[
    float | None,
    typer.Option("--fraction", "-f", help="Share of the data set to keep, in (0, 1]."),
]
Budget = Annotated[
    int | None,
    typer.Option("--budget", "-k", help="How many examples to keep, in place of --fraction."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the strategy; repeatable."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", help="Options by one name, such as paper: see 'lipt strategies'. --option wins."
    ),
]
Proxy = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        help="What judges the examples: soup (the run's weights), ridge: and some of patches, "
        "learners, soup, initial, user, backbone, joined by +, or auto. Default: the strategy's "
        "own.",
    ),
]
Labels = Annotated[
    Literal["given", "none"],
    typer.Option(
        "--labels",
        help="Whether labels may enter the choice; none to choose what to label, by features "
        "that no label went into.",
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--image-size", help="Scale images to so many pixels a side, as lipt-coordinator does."
    ),
]
AllowModule = Annotated[
    list[str] | None, typer.Option(help="A module that --data and --model may import; repeatable.")
]


@dataclass(frozen=True)
class Coordinator:
    """The coordinator that a command talks to: where it is, and what it is shown."""

    address: Annotated[
        str,
        typer.Option(
            "--coordinator",
            envvar="LIPT_COORDINATOR",
            metavar="HOST:PORT",
            help="Where lipt-coordinator listens.",
        ),
    ] = "127.0.0.1:50051"
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", envvar="LIPT_TLS_CERT", help="This side's certificate (PEM)."),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", envvar="LIPT_TLS_KEY", help="The certificate's key (PEM)."),
    ] = None
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            envvar="LIPT_TLS_CA",
            help="The authority that certified the coordinator (PEM).",
        ),
    ] = None

    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="LIPT_TOKEN_FILE",
            help="A file with the token that the coordinator asks for; or LIPT_TOKEN with it.",
        ),
    ] = None

    def tls(self) -> TlsFiles | None:
        """The files of TLS; None for a connection in the clear.

        Raises:
            ConfigError: a file is missing, or one that belongs to it.
        """
        from lipt.common.network.tls import TlsFiles

        return TlsFiles.from_options(self.tls_cert, self.tls_key, self.tls_ca)

    def connect(self) -> Client:
        """A client of it.

        Raises:
            ConfigError: the address is not host:port, there is no token in its file, or as `tls`.
        """
        from lipt.trainer.client.client import Client

        # No flag takes the token itself: command lines are for everybody to see.
        token = os.environ.get("LIPT_TOKEN") if self.token_file is None else None
        return Client(self.address, tls=self.tls(), token=token, token_file=self.token_file)
