from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.errors import ConfigError
from lipt.common.network.tls import (
    TlsFiles,
    is_loopback,
    require_deliberate_exposure,
    split_address,
)

TLS = TlsFiles(cert=Path("c.pem"), key=Path("k.pem"))


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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_this_machine_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "head-node", "localhost.evil.org"])
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)


def test_listening_beyond_this_machine_has_to_be_deliberate() -> None:
    with pytest.raises(ConfigError, match=r"--tls-cert.*--insecure"):
        require_deliberate_exposure("0.0.0.0:50051", None, insecure=False)
    with pytest.raises(ConfigError, match="there is no TLS"):
        require_deliberate_exposure("[::]:9464", TlsFiles(ca=Path("a.pem")), insecure=False)
    require_deliberate_exposure("0.0.0.0:50051", None, insecure=True)
    require_deliberate_exposure("0.0.0.0:50051", TLS, insecure=False)
    require_deliberate_exposure("127.0.0.1:50051", None, insecure=False)
