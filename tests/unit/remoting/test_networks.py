"""Lists of networks in settings."""

import socket

import pytest

from reput.errors import InvalidOption
from reput.format.ip_address import parse_address
from reput.remoting import networks


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [
        ("", "192.0.2.1", False),
        ("10.0.0.0/24,10.1.0.7", "10.0.0.255", True),
        ("10.0.0.0/24, 10.1.0.7", "10.1.0.7", True),
        ("10.0.0.0/24", "10.0.1.0", False),
        ("10.0.0.0/24", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.0/120", "10.0.0.1", True),
        ("::ffff:10.0.0.0/120", "10.0.1.1", False),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("::/0", "10.0.0.1", False),
        ("fd00::/8,fe80::/10", "fe80::1%eth0", True),
        ("fd00:0:0:0::2", "fd00::2", True),
    ],
)
def test_hosts_of_networks(text: str, host: str, expected: bool) -> None:
    listed = networks.parse(text, "key")
    assert networks.contain(listed, host) is expected
    assert networks.contain(listed, parse_address(host).packed) is expected
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if "%" not in host and "ffff" not in host:
        assert networks.contain(listed, socket.inet_pton(family, host)) is expected


@pytest.mark.parametrize(
    "text", ["10.0.0.1/24", "10.0.0.0/33", "localhost", "10.0.0.*", "fe80::/x"]
)
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"key.*networks separated by commas"):
        networks.parse(text, "key")
