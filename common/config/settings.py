"""Process settings: a TOML file, overridden by LIPT_* variables, then by generated flags."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, Field, ValidationError

from lipt.common.config.environment import read_variables, variables_of
from lipt.common.config.knobs import field_of, option_help
from lipt.common.config.run_config import SettingsGroup, merge
from lipt.common.terminal import SHORT_HELP, print_error

# Errors import gRPC, so they are imported on use: `--help` stays fast.

SectionT = TypeVar("SectionT", bound=SettingsGroup)

# Settings of both services.
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    Field(description="Messages of this level and above are logged."),
]
LogFormat = Annotated[
    Literal["text", "json"],
    Field(
        description="Form of log lines: `text`, or `json` for an object a line, with the ids of "
        "its run and its assignment."
    ),
]
MetricsAddress = Annotated[
    str | None,
    Field(
        description="Address of Prometheus metrics, at /metrics; https where there are TLS files. "
        "Default: none are served."
    ),
]
TlsKey = Annotated[Path | None, Field(description="PEM file of the certificate's key.")]

# Types that typer parses; settings parse the text of others.
_OWN = (bool, int, float, Path)

ConfigFile = Annotated[
    Path | None,
    typer.Option(help="TOML file with any setting; --print-config prints one with all."),
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print every setting as a file for --config, and end."),
]


def example_file(name: str) -> str:
    return files("lipt.deploy").joinpath(name).read_text(encoding="utf-8")


def load_settings(
    model: type[SectionT], *, config: Path | None, flags: Mapping[str, Any]
) -> SectionT:
    from lipt.common.config.values import explain
    from lipt.common.errors import ConfigError

    variables = read_variables(model, os.environ)
    layers = merge(read_toml(config) if config else {}, variables)
    try:
        return model.model_validate(merge(layers, flags))
    except ValidationError as error:
        raise ConfigError(f"{_where(error, model, config)}{explain(error, model)}") from None


def _where(error: ValidationError, model: type[BaseModel], config: Path | None) -> str:
    refused = {".".join(map(str, item["loc"])) for item in error.errors(include_url=False)}
    named = [name for name, setting in variables_of(model).items() if setting in refused]
    sources = [name for name in named if name in os.environ] or ([str(config)] if config else [])
    return f"{', '.join(sources)}: " if sources else ""


def read_toml(path: Path) -> dict[str, Any]:
    from lipt.common.errors import ConfigError
    from lipt.common.nested import parse_toml

    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    # Other content raises a ValueError, for TOML and for UTF-8.
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--config {path} cannot be read as TOML: {error}. A service's "
            "--print-config prints a file."
        ) from None


def service_app() -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=SHORT_HELP,
    )


@contextmanager
def exit_on_error(program: str) -> Iterator[None]:
    """End the program with the message of a LiPT error."""
    from lipt.common.errors import LiptError

    try:
        yield
    except LiptError as error:
        print_error(program, str(error))
        raise typer.Exit(1) from None


def with_flags(
    model: type[BaseModel], names: str, /, **renamed: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each of these settings; `flags` gets those that were given.

    `flags` is nested like the settings. `names` are settings, separated by spaces; `renamed` maps
    other flag names to dotted settings.
    """
    paths = {name: name for name in names.split()} | renamed

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        parameters = [each for name, each in own.parameters.items() if name != "flags"]
        parameters += [_parameter(model, flag, path) for flag, path in paths.items()]

        @wraps(command)
        def run(**given: Any) -> None:
            flags: dict[str, Any] = {}
            for flag, path in paths.items():
                value = given.pop(flag)
                if value is None or value == []:
                    continue
                for name in reversed(path.split(".")):
                    value = {name: value}
                flags = merge(flags, value)
            command(**given, flags=flags)

        run.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[each.replace(kind=each.KEYWORD_ONLY) for each in parameters]
        )
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameter(model: type[BaseModel], flag: str, path: str) -> inspect.Parameter:
    kind: Any = field_of(model, path).annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is tuple:
        kind = list[str]
    elif kind not in _OWN:
        kind = str
    # A switch has no --no-... form.
    words = (f"--{flag.replace('_', '-')}",) if kind is bool else ()
    note = "Repeatable." if kind == list[str] else ""
    option = typer.Option(*words, help=option_help(model, path, note=note))
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(
        flag, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
