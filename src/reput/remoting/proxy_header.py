"""The header of the PROXY protocol: who the client of a proxy is, before all other bytes.

    version 1   PROXY TCP4 192.0.2.9 10.0.0.1 4711 10911 CR LF    at most 107 bytes
    version 2   SIGNATURE, version and command, family and protocol, size; addresses, TLVs

The specification is HAProxy's, ``proxy-protocol.txt``. What the header says besides the source is
ignored: the destination, and TLVs with their checksum.
"""

import ipaddress
import re
from typing import NamedTuple

from reput.errors import NotAProxyHeader
from reput.remoting import limits

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""First bytes of version 2."""

_TEXT = b"PROXY "
_TEXT_BYTES_MAX = 107
_FIXED_BYTES = len(SIGNATURE) + 4
_END = b"\r\n"
_PORT = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
_PORT_MAX = 65_535
_LOCAL, _PROXY = 0, 1
_STREAM = 1
_KINDS_MAX = 2
"""Largest defined protocol: unspecified, stream, datagram."""
_INET, _INET6, _UNIX = 1, 2, 3
_ADDRESS_BYTES = {_INET: 4, _INET6: 16, _UNIX: 108}
_PORTS_BYTES = {_INET: 4, _INET6: 4}


class ProxySource(NamedTuple):
    """The client of the proxy."""

    address: str
    port: int


class ProxyHeader(NamedTuple):
    """The PROXY header of a connection."""

    size: int
    """Size of the header in bytes."""
    source: ProxySource | None
    """Source address; None if the proxy is the client or does not know it, and the peer is used."""


def decode(data: bytes) -> ProxyHeader | None:
    """Return the header that bytes begin with; None if it is incomplete.

    Raises:
        NotAProxyHeader: They do not begin with a header.
    """
    if data[:1] == SIGNATURE[:1]:
        return _decode_binary(data)
    return _decode_text(data)


def _decode_text(data: bytes) -> ProxyHeader | None:
    if data[: len(_TEXT)] != _TEXT[: len(data)]:
        raise NotAProxyHeader(f"the connection begins with {data[:16]!r}")
    end = data.find(_END, 0, _TEXT_BYTES_MAX)
    if end < 0:
        if len(data) >= _TEXT_BYTES_MAX or b"\n" in data:
            raise NotAProxyHeader(
                f"no CR LF ends the line, which has at most {_TEXT_BYTES_MAX} bytes"
            )
        return None
    line = data[:end]
    words = line.decode("latin-1").split(" ")
    size = end + len(_END)
    if words[1] == "UNKNOWN":
        return ProxyHeader(size, None)
    source = _source_of(words[1], words[2:])
    if source is None:
        raise NotAProxyHeader(f"the line is {line!r}")
    return ProxyHeader(size, source)


def _source_of(family: str, words: list[str]) -> ProxySource | None:
    """Return the client of a line; None if the line is wrong."""
    if len(words) != 4:
        return None
    *addresses, port, other_port = words
    if not (_is_port(port) and _is_port(other_port)):
        return None
    parse = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}.get(family)
    if parse is None or any("%" in text for text in addresses):
        return None
    try:
        source, _ = map(parse, addresses)
    except ValueError:
        return None
    return ProxySource(str(source), int(port))


def _is_port(text: str) -> bool:
    return _PORT.fullmatch(text) is not None and int(text) <= _PORT_MAX


def _decode_binary(data: bytes) -> ProxyHeader | None:
    if data[: len(SIGNATURE)] != SIGNATURE[: len(data)]:
        raise NotAProxyHeader(f"the connection begins with {data[:16]!r}")
    if len(data) < _FIXED_BYTES:
        return None
    version, command = divmod(data[12], 16)
    family, kind = divmod(data[13], 16)
    size = _FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if version != 2 or command not in (_LOCAL, _PROXY):
        raise NotAProxyHeader(f"version {version}, command {command}; allowed: version 2, 0 or 1")
    if size > limits.PROXY_HEADER_BYTES.maximum:
        raise NotAProxyHeader(str(limits.PROXY_HEADER_BYTES.exceeded(size)))
    if command == _PROXY and (family > _UNIX or kind > _KINDS_MAX):
        raise NotAProxyHeader(f"family {family}, protocol {kind}: they are not defined")
    address_bytes = _ADDRESS_BYTES.get(family, 0)
    port_position = _FIXED_BYTES + 2 * address_bytes
    if command == _PROXY and kind and size < port_position + _PORTS_BYTES.get(family, 0):
        raise NotAProxyHeader(f"{size} bytes do not have the addresses of family {family}")
    if len(data) < size:
        return None
    if command == _LOCAL or kind != _STREAM or family not in _PORTS_BYTES:
        return ProxyHeader(size, None)
    source = ipaddress.ip_address(data[_FIXED_BYTES : _FIXED_BYTES + address_bytes])
    port = int.from_bytes(data[port_position : port_position + 2], "big")
    return ProxyHeader(size, ProxySource(str(source), port))
