"""Output of commands: JSON for scripts, lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lipt.common.text import say, say_json
from lipt.trainer.writing.jsonable import to_jsonable


def print_json(value: Any) -> None:
    """One JSON document on one line, keys in the order of the value's fields."""
    say_json(json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False))


def print_result(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """What a command has to show: the value for scripts, or the lines for people."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        say(line)
