"""Address: the name of data in parts, `scheme:path?option=value&option=value`.

Values are percent-decoded after lists are split: a comma in a column's name is `%2C`, as in
`csv:people.csv?label=grade&drop=id,given%2Cname`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import quote, unquote

from lipt.common.errors import ConfigError
from lipt.common.text import did_you_mean

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

# The system's limit on paths, and room for the options of a wide table.
_LONGEST_PART, _LONGEST_ADDRESS, _LONGEST_NAME = 255, 4096, 2**18


def at_home(path: str) -> str:
    """A path with the home directory in place of `~`; that of an unknown user stays."""
    return os.path.expanduser(path)  # noqa: PTH111 - which raises for unknown users


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


def quoted_names(names: Sequence[str]) -> str:
    """A list as an option's value."""
    return ",".join(quote(name, safe="") for name in names)


@dataclass(frozen=True)
class Address:
    """A source's scheme, path and options; data in memory has options alone.

    Attributes:
        source: what messages call the data.
        values: of options, as they are written.
        path: a URL, or local with the home directory in place of `~`.
    """

    source: str
    values: Mapping[str, str]
    scheme: str = ""
    path: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str, default: str = "") -> str:
        return unquote(self.values[name]) if name in self.values else default

    def names(self, name: str) -> tuple[str, ...]:
        """The comma-separated parts of a list; empty without the option."""
        return tuple(unquote(part) for part in self.values.get(name, "").split(",") if part)

    def number(self, name: str, default: int, *, minimum: int = 1, maximum: int) -> int:
        text = self.text(name, str(default))
        if not text.isascii() or not text.isdigit() or not minimum <= int(text) <= maximum:
            raise ConfigError(
                f"{self.source}: {name}={text} is not a whole number in {minimum}..{maximum}. "
                f"Write {name}={default}, which is the default, or leave it out."
            )
        return int(text)

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """One of several words; the first is the default."""
        text = self.text(name, choices[0])
        if text not in choices:
            raise ConfigError(
                f"{self.source}: {name}={text} is none of {', '.join(choices)}. Write one of them."
            )
        return text

    @classmethod
    def parse(cls, source: str, known: Collection[str] = ()) -> Self:
        """The parts of a name; `known` options, without any of which `?` belongs to the path.

        A `?` also belongs to the path of an existing file.
        """
        _require_name(source)
        scheme, _, path = source.partition(":")
        place, _, query = path.partition("?")
        if not known or os.path.lexists(path):
            place, query = path, ""
        values: dict[str, str] = {}
        for part in query.split("&") if query else ():
            name, _, value = part.partition("=")
            if name not in known:
                raise ConfigError(
                    f"{source}: there is no option {name!r}.{did_you_mean(name, known)} There are: "
                    f"{', '.join(known)}."
                )
            if not value or name in values:
                raise ConfigError(
                    f"{source}: the option {name} needs one value. Write {name}=VALUE, once."
                )
            values[name] = value
        return cls(source, values, scheme, place if is_url(place) else at_home(place))

    def adding(self, **values: str) -> Self:
        return replace(self, values={**self.values, **values})

    def __str__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.scheme}:{self.path}{'?' if query else ''}{query}"


def _require_name(source: str) -> None:
    """Refuse a name that no system takes, before it gets into a message whole."""
    address = source.partition("?")[0]
    try:
        can_be_a_path = b"\0" not in os.fsencode(unquote(source, errors="surrogateescape"))
    except UnicodeEncodeError:
        can_be_a_path = False
    if not can_be_a_path:
        raise ConfigError(
            f"the data's name {source!r:.80} has a character that no file's name has, such as NUL. "
            "Leave it out."
        )
    # Braces stand for many names, and a server may have longer ones.
    is_path = "{" not in address and "://" not in address
    parts = (address.partition(":")[2] or address).split("/")
    longest = max(len(os.fsencode(part)) for part in parts)
    if is_path and longest > _LONGEST_PART:
        raise ConfigError(
            f"the data's name {source!r:.60} has a part of {longest} bytes; a file's or a "
            f"directory's name has at most {_LONGEST_PART}. Shorten it."
        )
    if len(address) > _LONGEST_ADDRESS or len(source) > _LONGEST_NAME:
        raise ConfigError(
            f"the data's name {source!r:.60} has {len(address)} characters and {len(source)} with "
            f"its options; at most {_LONGEST_ADDRESS} and {_LONGEST_NAME} are taken. Shorten it."
        )
