"""Errors: every reason with its class, its gRPC status and a link to what to do about it."""

from __future__ import annotations

from docs.make.markdown import code, table
from lipt.common.errors import error_class, error_classes


def errors() -> str:
    """The reasons as a Markdown table, for docs/api.md."""
    return table(
        ("reason", "class", "gRPC status", "the same call may succeed later"),
        (
            (
                f"[{cls.reason}](troubleshooting.md#{cls.reason.lower()})",
                code(cls.__name__),
                cls.code.name,
                "yes" if cls.retryable else "no",
            )
            for cls in error_classes()
            # A family has no reason of its own.
            if error_class(cls.reason) is cls
        ),
    )
