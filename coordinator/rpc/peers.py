"""Peers: by what quotas and limits are counted."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lipt.coordinator.rpc.callers import caller_of


def peer_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """One text per party: a certificate's name, or else a connection."""
    return caller_of(context)
