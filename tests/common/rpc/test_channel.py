from __future__ import annotations

import pytest

from lipt.common.errors import ConfigError
from lipt.common.rpc.channel import split_address


@pytest.mark.parametrize(
    ("address", "pair"),
    [
        ("127.0.0.1:50051", ("127.0.0.1", 50051)),
        ("[::1]:0", ("::1", 0)),
        ("head-node.cluster:1", ("head-node.cluster", 1)),
    ],
)
def test_address_is_host_and_port(address: str, pair: tuple[str, int]) -> None:
    assert split_address(address) == pair


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:port", "host:65536", "h:-1"])
def test_malformed_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ConfigError, match=r"Example: 127\.0\.0\.1:50051"):
        split_address(address)
