"""Peers: by what turns are taken, and quotas and limits counted."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lipt.coordinator.access.caller import current_caller
from lipt.coordinator.access.tokens import OWN_USER


def peer_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """One text per party: its certificate, its token, or else its connection.

    What the coordinator's own user runs beside each other shows one token, and goes by
    connections as well.
    """
    caller = current_caller()
    return context.peer() if caller == OWN_USER else caller.key
