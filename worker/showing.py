"""Showing: every call of a worker shows its secret, as metadata, in one place."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.rpc.status import with_metadata


def showing(channel: grpc.Channel, secret: Callable[[], str]) -> grpc.Channel:
    """The channel, on which each call shows what `secret` says then; nothing while it is empty."""

    def entries() -> tuple[tuple[str, str], ...]:
        shown = secret()
        return ((WORKER_SECRET, shown),) if shown else ()

    return with_metadata(channel, entries)
