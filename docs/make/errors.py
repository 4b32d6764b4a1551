"""Errors: every reason with its class and its gRPC status, linked to what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from docs.make.markdown import code, table
from lipt.common.errors import LiptError


def errors() -> str:
    """The reasons as a Markdown table, for a page in docs/api/."""
    return table(
        ("reason", "class", "gRPC status"),
        (
            (
                f"[{cls.reason}](../troubleshooting.md#{cls.reason.lower()})",
                code(cls.__name__),
                cls.code.name,
            )
            for cls in _with_a_reason(LiptError)
            if cls.__module__ == LiptError.__module__
        ),
    )


def _with_a_reason(cls: type[LiptError]) -> Iterator[type[LiptError]]:
    if "reason" in vars(cls):
        yield cls
    for below in cls.__subclasses__():
        yield from _with_a_reason(below)
