"""The header of the PROXY protocol, with the bytes of HAProxy's specification."""

import contextlib
import ipaddress
import socket

import pytest

from reput.errors import NotAProxyHeader
from reput.remoting import proxy_header
from reput.remoting.proxy_header import ProxySource

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
FRAME = b"\0\0\0\x10rest"

FOUR = socket.inet_aton("192.168.0.1") + socket.inet_aton("192.168.0.11") + b"\xdc\x04\x01\xbb"
SIX = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::9")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + b"\x12\x67\x2a\x9f"
)
MAPPED = socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.9") * 2 + bytes(4)


def binary(command: int, family: int, content: bytes = b"", *, size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return SIGNATURE + bytes([command, family]) + length.to_bytes(2, "big") + content


GOOD = {
    "text 4": (
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
        ProxySource("192.168.0.1", 56324),
    ),
    "text 4, longest": (
        b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
        ProxySource("255.255.255.255", 65535),
    ),
    "text 6": (
        b"PROXY TCP6 2001:DB8::9 2001:db8:0:0:0:0:0:1 0 10911\r\n",
        ProxySource("2001:db8::9", 0),
    ),
    "text 6, longest": (
        b"PROXY TCP6 " + b":".join([b"ffff"] * 8) + b" " + b":".join([b"ffff"] * 8)
        + b" 65535 65535\r\n",
        ProxySource(":".join(["ffff"] * 8), 65535),
    ),
    "text unknown": (b"PROXY UNKNOWN\r\n", None),
    "text unknown, longest": (
        b"PROXY UNKNOWN " + b":".join([b"ffff"] * 8) + b" " + b":".join([b"ffff"] * 8)
        + b" 65535 65535\r\n",
        None,
    ),
    "binary 4": (binary(0x21, 0x11, FOUR), ProxySource("192.168.0.1", 56324)),
    "binary 6": (binary(0x21, 0x21, SIX), ProxySource("2001:db8::9", 0x1267)),
    "binary 6, mapped": (binary(0x21, 0x21, MAPPED), ProxySource("::ffff:c000:209", 0)),
    "binary with TLVs": (
        binary(0x21, 0x11, FOUR + b"\x04\0\x03abc" + b"\x03\0\x04wron"),
        ProxySource("192.168.0.1", 56324),
    ),
    "binary, longest": (binary(0x21, 0x11, FOUR + bytes(508)), ProxySource("192.168.0.1", 56324)),
    "binary local": (binary(0x20, 0x00), None),
    "binary local with addresses": (binary(0x20, 0x11, FOUR), None),
    "binary local with a family that is not defined": (binary(0x20, 0xFF, b"abc"), None),
    "binary unspecified": (binary(0x21, 0x00), None),
    "binary unspecified with bytes": (binary(0x21, 0x00, b"whatever"), None),
    "binary datagram": (binary(0x21, 0x12, FOUR), None),
    "binary unix": (binary(0x21, 0x31, bytes(216)), None),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_headers_at_each_length(name: str) -> None:
    header, source = GOOD[name]
    for size in range(len(header)):
        assert proxy_header.decode(header[:size]) is None
    for data in (header, header + FRAME, header + header):
        got = proxy_header.decode(data)
        assert got is not None
        assert got.size == len(header)
        if name == "binary 6, mapped":
            assert got.source is not None
            assert got.source.address in ("::ffff:c000:209", "::ffff:192.0.2.9")
        else:
            assert got.source == source


def test_the_longest_lines_have_the_lengths_of_the_specification() -> None:
    lengths = [len(GOOD[f"text {name}, longest"][0]) for name in ("4", "6", "unknown")]
    assert lengths == [56, 104, 107]


@pytest.mark.parametrize(
    "data",
    [
        FRAME,
        b"\x16\x03\x01\x02",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXZ",
        b"proxy TCP4 ",
        b"PROXY\tTCP4 ",
        b"PROXY \r\n",
        b"PROXY  TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY TCP5 192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY tcp4 192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443 \r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443 1\r\n",
        b"PROXY TCP4 192.168.0.01 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 192.168.0.256 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 192.168.1 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 localhost 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.999 56324 443\r\n",
        b"PROXY TCP4 2001:db8::9 2001:db8::1 56324 443\r\n",
        b"PROXY TCP6 192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY TCP6 fe80::1%eth0 fe80::2 56324 443\r\n",
        b"PROXY TCP6 2001::db8::9 2001:db8::1 56324 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 65536 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 1 65536\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 056 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 -1 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 +1 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r" + bytes(61),
        b"PROXY TCP4 192.168.0.\xb9 192.168.0.11 56324 443\r\n",
        b"PROXY UNKNOWN " + bytes(92) + b"\r\n",
        SIGNATURE[:11] + b"\r",
        binary(0x11, 0x11, FOUR),
        binary(0x31, 0x11, FOUR),
        binary(0x22, 0x11, FOUR),
        binary(0x2F, 0x00),
        binary(0x21, 0x41, FOUR),
        binary(0x21, 0x13, FOUR),
        binary(0x21, 0x11, FOUR[:11]),
        binary(0x21, 0x21, SIX[:35]),
        binary(0x21, 0x31, bytes(215)),
        binary(0x21, 0x11, size=0),
        binary(0x21, 0x11, FOUR + bytes(509)),
        binary(0x21, 0x11, size=0xFFFF),
        binary(0x20, 0x00, size=0xFFFF),
    ],
)
def test_what_is_no_header(data: bytes) -> None:
    with pytest.raises(NotAProxyHeader):
        proxy_header.decode(data)
    # Refused at the byte that shows it: no length of the beginning passes for a header.
    for size in range(len(data)):
        try:
            assert proxy_header.decode(data[:size]) is None
        except NotAProxyHeader:
            break


@pytest.mark.parametrize("name", GOOD)
def test_a_changed_header_is_refused_or_has_another_content(name: str) -> None:
    header, _ = GOOD[name]
    for position in range(len(header)):
        for value in (0, 0x0A, 0x0D, 0x20, 0x30, 0xFF, header[position] ^ 1):
            data = header[:position] + bytes([value]) + header[position + 1 :] + FRAME
            with contextlib.suppress(NotAProxyHeader):
                got = proxy_header.decode(data)
                assert got is None or 15 <= got.size <= 536
                if got is not None and got.source is not None:
                    ipaddress.ip_address(got.source.address)
                    assert 0 <= got.source.port <= 65_535
