import pytest

from lipt.common.access.peers import network_of, sender_of


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("somewhere", "somewhere"),
    ],
)
def test_a_peer_is_an_ipv4_address_or_an_ipv6_network(host: str, network: str) -> None:
    assert network_of(host) == network


@pytest.mark.parametrize(
    ("peer", "sender"),
    [
        ("ipv4:10.0.0.7:40123", "ipv4:10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2::9%5D:443", "ipv6:2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:443", "ipv6:fe80::/64"),
        ("unix:", "unix:"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("anybody", "anybody:"),
    ],
)
def test_grpc_s_name_of_a_connection_gives_its_sender(peer: str, sender: str) -> None:
    assert sender_of(peer) == sender
