"""Callers: who asks, as far as turns are taken and counted by it."""

from __future__ import annotations

from typing import Any

import grpc.aio

_NAME = "x509_common_name"


def caller_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The name in the peer's certificate, where it had to show one; else its connection."""
    names = context.auth_context().get(_NAME)
    if names:
        return f"certificate {b' '.join(names).decode(errors='replace')}"
    return context.peer()
