"""Flags: command options generated from settings."""

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

from lipt.common.config.knobs import field_of, option_help
from lipt.common.config.run_config import merge
from lipt.common.terminal import SHORT_HELP, print_error

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
    from lipt.common.errors import LiptError  # noqa: PLC0415 - it imports gRPC

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
