"""Proving: what a call shows of who makes it."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lipt.common.access.tokens import WORKER_SECRET
from lipt.coordinator.access.caller import current_caller
from lipt.coordinator.access.worker_identity import Evidence


def shown_by(context: grpc.aio.ServicerContext[Any, Any]) -> Evidence:
    """The caller behind a call, and the worker's secret in its metadata, if there is one."""
    metadata = context.invocation_metadata() or ()
    secret = next((value for key, value in metadata if key == WORKER_SECRET), "")
    return Evidence(current_caller(), secret if isinstance(secret, str) else "")
