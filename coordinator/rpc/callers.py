"""Callers: by what turns are taken and counted."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lipt.coordinator.access.caller import current_caller
from lipt.coordinator.access.tokens import OWN_USER


def turn_key(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """One text per party that takes turns: its certificate, its token, or else its connection.

    What the coordinator's own user runs beside each other shows one token, and goes by
    connections as well.
    """
    caller = current_caller()
    return context.peer() if caller == OWN_USER else caller.key
