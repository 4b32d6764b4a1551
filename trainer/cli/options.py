"""Options that several commands share, each declared once, and checks of the paths they name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

if TYPE_CHECKING:
    from lipt.common.network.tls import TlsFiles
    from lipt.trainer.client.client import Client
    from lipt.trainer.main_training import Recipe

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Run = Annotated[
    str,
    typer.Option(
        "--run", "-r", help="The id or name of a run, or latest, the newest that is ready."
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The id or name of a run, or latest, the newest.")
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
Model = Annotated[str, typer.Option(help="resnet8, resnet18, torchvision:NAME, ...")]
Device = Annotated[str, typer.Option(help="Where to train: auto, cpu, cuda or cuda:N.")]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--image-size", help="Scale images to so many pixels a side, as lipt-coordinator does."
    ),
]
AllowModule = Annotated[
    list[str] | None,
    typer.Option(
        help="Another module that may be imported; those that --data, --test and --model name may "
        "without it. Repeatable."
    ),
]


def modules_of(allowed: Sequence[str] | None, *specs: str | None) -> tuple[str, ...]:
    """The modules that a command may import: those allowed, and those that its own flags name."""
    from lipt.common.imports import modules_of as named_by

    named = (module for spec in specs if spec is not None for module in named_by(spec))
    return (*(allowed or ()), *named)


def _shared(flag: str, help: str, **more: Any) -> Any:  # noqa: A002 - as typer calls it
    return typer.Option(
        flag, envvar=f"LIPT_{flag[2:].replace('-', '_').upper()}", help=help, **more
    )


@dataclass(frozen=True)
class Coordinator:
    """The address of the coordinator, and credentials for it."""

    address: Annotated[
        str, _shared("--coordinator", "Where lipt-coordinator listens.", metavar="HOST:PORT")
    ] = "127.0.0.1:50051"
    tls_cert: Annotated[Path | None, _shared("--tls-cert", "This side's certificate (PEM).")] = None
    tls_key: Annotated[Path | None, _shared("--tls-key", "The certificate's key (PEM).")] = None
    tls_ca: Annotated[
        Path | None, _shared("--tls-ca", "The authority that certified the coordinator (PEM).")
    ] = None
    token_file: Annotated[
        Path | None,
        _shared(
            "--token-file",
            "A file with the token that the coordinator asks for; or LIPT_TOKEN with it.",
        ),
    ] = None
    wait: Annotated[
        float,
        _shared(
            "--wait",
            "How long to wait for a coordinator that does not answer yet, as one that starts.",
            metavar="SECONDS",
            min=0,
        ),
    ] = 0.0

    def tls(self) -> TlsFiles | None:
        """The files of TLS; None for a connection in the clear."""
        from lipt.common.network.tls import TlsFiles

        return TlsFiles.from_options(self.tls_cert, self.tls_key, self.tls_ca)

    def connect(self) -> Client:
        """A client of it, which answers where it is to be waited for."""
        from lipt.trainer.cli.display.output import run_talking
        from lipt.trainer.client.client import Client

        # No flag takes the token itself: command lines are for everybody to see.
        token = os.environ.get("LIPT_TOKEN") if self.token_file is None else None
        client = Client(self.address, tls=self.tls(), token=token, token_file=self.token_file)

        def wait(tell: Callable[[str], None]) -> None:
            tell(f"waiting for the coordinator at {self.address}")
            client.reach(self.wait)

        try:
            if self.wait:
                run_talking(wait)
        except BaseException:
            client.close()
            raise
        return client

    def is_named(self, context: typer.Context) -> bool:
        """Whether flags or variables say anything of the coordinator."""
        names = (field.name for field in dataclasses.fields(self))
        sources = (context.get_parameter_source(name) for name in names)
        return any(source is not None and source.name != "DEFAULT" for source in sources)


@dataclass(frozen=True)
class Training:
    """The recipe of main training and its length."""

    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the subset, the largest of several (200)."),
    ] = None
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps of a training, in place of --epochs.")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the recipe, e.g. learning_rate=0.05."
        ),
    ] = None

    def recipe(self, *, soft_labels: float = 0.0) -> Recipe:
        """The recipe; a mistake in it is a usage error."""
        from lipt.common.config.values import validate
        from lipt.trainer.cli.overrides import collect_overrides, refusing_as_usage
        from lipt.trainer.main_training import Recipe

        with refusing_as_usage():
            given = {"epochs": self.epochs, "steps": self.steps, "soft_labels": soft_labels or None}
            return validate(Recipe, collect_overrides(given, self.settings or [], None))


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer, which takes an option for each field of its parameters' dataclasses."""
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _options_of(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    # Typer reads a command's options from these.
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    return run


def _options_of(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def require_place(path: Path) -> None:
    """Check that there can be a file of this name."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a directory. Name a file in it.")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is not a directory. Make it first.")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} cannot be written to. Name another place.")


def require_replaceable(*paths: Path | None) -> None:
    """Check that files can be written, each in place of the one of its name."""
    for path in filter(None, paths):
        require_place(path)
        if path.exists() and not path.is_file():
            raise typer.BadParameter(f"{path} is not a regular file. Name another.")


def require_apart(paths: Mapping[str, Path | None]) -> None:
    """Check that no file is named twice, where one would overwrite the other."""
    taken: dict[Path, str] = {}
    for flag, path in paths.items():
        other = flag if path is None else taken.setdefault(path.resolve(), flag)
        if other != flag:
            raise typer.BadParameter(
                f"{other} and {flag} are both {path}. Give each a file of its own."
            )
