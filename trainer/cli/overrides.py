"""Settings from the command line: `--set`, flags and a file, merged so that each is given once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from lipt.common.config.run_config import merge
from lipt.common.config.settings import read_toml
from lipt.common.errors import ConfigError, LiptError


def parse_assignment(text: str) -> tuple[str, Any]:
    """`a.b=1` as ("a.b", 1)."""
    name, separator, value = text.partition("=")
    parts = name.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(f"{text!r} is not NAME=VALUE. Example: learners.learning_rate=0.05")
    return name.strip(), _parse_value(value.strip())


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """A strategy's options by name, their values as text, as the wire has them."""
    options: dict[str, str] = {}
    for text in texts:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or not name:
            raise ConfigError(f"--option {text!r} is not NAME=VALUE. 'lipt strategies' lists them.")
        if name in options:
            raise ConfigError(
                f"--option {name} was given twice: {options[name]!r} and {value!r}. Drop one."
            )
        options[name] = value
    return options


def parse_names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError(f"{text!r} names nothing: give at least one name, e.g. craig,grand")
    return names


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        *groups, leaf = name.split(".")
        level = nested
        for group in groups:
            level = level.setdefault(group, {})
            if not isinstance(level, dict):
                raise ConfigError(
                    f"{name}: {group} was given a value, so it is no group. Drop one."
                )
        if leaf in level:
            raise ConfigError(f"{name} is a group, and settings in it were given, too. Drop one.")
        level[leaf] = value
    return nested


def collect_overrides(
    flags: Mapping[str, Any], assignments: Sequence[str], config: Path | None
) -> dict[str, Any]:
    """Settings by name, nested as in `RunConfig`, from flags, `--set` and a file."""
    given = {name: value for name, value in flags.items() if value is not None}
    for text in assignments:
        name, value = parse_assignment(text)
        if name in given:
            raise ConfigError(f"{name} was given twice: {given[name]!r} and {value!r}. Drop one.")
        given[name] = value
    return merge(_run_table(config) if config else {}, nest(given))


def _run_table(config: Path) -> dict[str, Any]:
    table = read_toml(config).get("run")
    if not isinstance(table, dict):
        raise ConfigError(
            f"{config} has no [run] table. Put the run's settings under [run], [run.learners] "
            "and so on; `lipt-coordinator --print-config` shows all of them."
        )
    return table


@contextmanager
def refusing_as_usage() -> Iterator[None]:
    """Turns an error about what was typed into a usage error (status 2)."""
    try:
        yield
    except LiptError as error:
        raise typer.BadParameter(str(error)) from None
