"""Flags: the options of a command, made from the settings that they set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lipt.common.config.knobs import option_help
from lipt.common.terminal import SHORT_HELP, complain

# Types that typer reads by itself; it passes on the text of all others.
_OWN = (bool, int, float, Path)

ConfigFile = Annotated[
    Path | None,
    typer.Option(help="TOML file with any setting; --print-config prints one with all."),
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print every setting as a file for --config, and end."),
]


def service_app() -> typer.Typer:
    """The command line of a service, without its command."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=SHORT_HELP,
    )


@contextmanager
def refusing(program: str) -> Iterator[None]:
    """End the program with the sentence of an error of this package."""
    from lipt.common.errors import LiptError  # noqa: PLC0415 - it imports gRPC

    try:
        yield
    except LiptError as error:
        complain(program, str(error))
        raise typer.Exit(1) from None


def with_flags(
    model: type[BaseModel], names: str, /, **renamed: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each of these settings, and their values as its `flags`.

    `flags` is nested as the settings are; what was not given is None. `names` are settings whose
    flags are named like them, separated by spaces; `renamed` has the dotted settings of others.
    """
    settings = dict.fromkeys(names.split())
    paths = {flag: flag for flag in settings} | renamed

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kept = [parameter for name, parameter in own.parameters.items() if name != "flags"]
        made = [_parameter(model, flag, path) for flag, path in paths.items()]

        @wraps(command)
        def told(**given: Any) -> None:
            flags: dict[str, Any] = {}
            for flag, path in paths.items():
                value, (*sections, leaf) = given.pop(flag), path.split(".")
                within = flags
                for section in sections:
                    within = within.setdefault(section, {})
                within[leaf] = (tuple(value) or None) if isinstance(value, list) else value
            command(**given, flags=flags)

        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*kept, *made)
        ]
        told.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        told.__annotations__ = {each.name: each.annotation for each in parameters}
        return told

    return decorate


def _parameter(model: type[BaseModel], flag: str, path: str) -> inspect.Parameter:
    kind = _kind(_field(model, path))
    several = kind == list[str]
    words = (f"--{flag.replace('_', '-')}",) if kind is bool else ()
    option = typer.Option(
        *words, help=option_help(model, path, note="Repeatable." if several else "")
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(
        flag, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _field(model: type[BaseModel], path: str) -> FieldInfo:
    *sections, leaf = path.split(".")
    for section in sections:
        model = model.model_fields[section].annotation  # type: ignore[assignment]
    return model.model_fields[leaf]


def _kind(field: FieldInfo) -> Any:
    kind = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is tuple:
        return list[str]
    return kind if kind in _OWN else str
