"""Query: what a source's name says after its path, `csv:PATH?label=grade&drop=id,name`.

Values are percent-decoded, each part of a list on its own: a comma in a column's name is `%2C`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lipt.common.errors import ConfigError


@dataclass(frozen=True)
class Query:
    """The options of one source; each is asked for by a name that it may have."""

    source: str
    values: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str, default: str) -> str:
        """An option's value."""
        return unquote(self.values[name]) if name in self.values else default

    def names(self, name: str) -> tuple[str, ...]:
        """The parts of a list between commas; none where it is left out."""
        return tuple(unquote(part) for part in self.values.get(name, "").split(",") if part)

    def number(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        """A whole number."""
        text = self.text(name, str(default))
        if not text.isascii() or not text.isdigit() or not minimum <= int(text) <= maximum:
            raise ConfigError(
                f"{self.source}: {name}={text} is not a whole number in {minimum}..{maximum}. "
                f"Write {name}={default}, which is the default, or leave it out."
            )
        return int(text)

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """One of some words, the first by default."""
        text = self.text(name, choices[0])
        if text not in choices:
            raise ConfigError(
                f"{self.source}: {name}={text} is none of {', '.join(choices)}. Write one of them."
            )
        return text


def split_query(source: str, path: Path, options: Collection[str]) -> tuple[Path, Query]:
    """The path and the options of a source."""
    before, query = read_query(source, str(path), options)
    return Path(before), query


def read_query(source: str, text: str, options: Collection[str]) -> tuple[str, Query]:
    """As `split_query`, of what need not be a path."""
    before, _, query = text.partition("?")
    values: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if name not in options:
            raise ConfigError(
                f"{source}: there is no option {name!r}.{did_you_mean(name, options)} There are: "
                f"{', '.join(options)}."
            )
        if not equals or not value or name in values:
            raise ConfigError(
                f"{source}: the option {name} needs one value. Write {name}=VALUE, once."
            )
        values[name] = value
    return before, Query(source, values)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A sentence that names what is meant perhaps, after a space; empty where nothing is close."""
    close = difflib.get_close_matches(name.lower(), [other.lower() for other in known], n=3)
    meant = [other for other in known if other.lower() in close]
    return f" Did you mean {' or '.join(meant)}?" if meant else ""
