from __future__ import annotations

from typing import Any, cast

import pytest

from lipt.coordinator.rpc.callers import caller_of


class Peer:
    """Of a call, what is known of who makes it."""

    def __init__(self, names: tuple[bytes, ...] = ()) -> None:
        self._names = names

    def peer(self) -> str:
        return "ipv4:10.0.0.7:40123"

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"x509_common_name": self._names} if self._names else {}


@pytest.mark.parametrize(
    ("names", "caller"),
    [
        ((), "ipv4:10.0.0.7:40123"),
        ((b"box-7",), "certificate box-7"),
        ((b"\xff\n",), "certificate \ufffd\n"),
    ],
)
def test_a_caller_is_its_certificate_or_else_its_connection(
    names: tuple[bytes, ...], caller: str
) -> None:
    assert caller_of(cast("Any", Peer(names))) == caller
