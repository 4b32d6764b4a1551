from __future__ import annotations

from contextvars import copy_context
from typing import Any, cast

import pytest

from lipt.common.access.roles import Role
from lipt.coordinator.access.caller import Caller, note_caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.rpc.limits import peer_of

PEER = "ipv4:10.0.0.7:40123"


class Context:
    """Of a call, what is known of its connection."""

    def peer(self) -> str:
        return PEER


def key_of(caller: Caller) -> str:
    note_caller(caller)
    return peer_of(cast("Any", Context()))


@pytest.mark.parametrize(
    ("caller", "key"),
    [
        (Caller("certificate:ab12", "box-7", frozenset({Role.WORKER})), "certificate:ab12"),
        (Caller("token:61486203", "the token box-3", frozenset({Role.ADMIN})), "token:61486203"),
        (OWN_USER, PEER),
    ],
)
def test_a_party_is_a_certificate_a_token_or_a_connection(caller: Caller, key: str) -> None:
    assert copy_context().run(key_of, caller) == key
