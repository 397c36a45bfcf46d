"""The fields of a request or its trailers: checked, and as a mapping. Pure. RFC 9113, 8.2 and 8.3.

A request with fields that HTTP/2 does not allow is *malformed*: its stream is reset.
"""

import re
from collections.abc import Sequence

from reput.errors import Http2Error
from reput.grpc import limits
from reput.grpc.http2.frames import ErrorCode
from reput.grpc.http2.hpack import Field

Headers = dict[bytes, bytes]
"""Value by name, in lower case; values of equal names are joined by commas."""

_LIMIT = limits.HTTP2_HEADER_BYTES
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_OF_CONNECTIONS = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_WRONG_IN_VALUES = (b"\0", b"\r", b"\n ", b" \n", b"\n\t", b"\t\n")
_NAMES_MAX = 1024
_good_names = set(_PSEUDO)
"""Names that were checked before; a process sees few different ones."""


def _malformed(reason: str) -> Http2Error:
    return Http2Error(ErrorCode.PROTOCOL_ERROR, f"malformed request: {reason}")


def of_request(fields: Sequence[Field]) -> Headers:
    """Return the headers of a request.

    Raises:
        Http2Error: They are malformed.
    """
    headers = dict(fields)
    if len(headers) != len(fields):
        headers = _joined(fields)
    count = 0  # of pseudo-headers, which are the first ones
    for name, _ in fields:
        if name[:1] != b":":
            break
        count += 1
    if b":method" not in headers or b":scheme" not in headers or not headers.get(b":path"):
        raise _malformed(":method, :scheme or :path is missing")
    if count != 3 + (b":authority" in headers):
        raise _malformed("a pseudo-header is repeated, unknown, or after another header")
    _check(headers)
    return headers


def of_trailers(fields: Sequence[Field]) -> Headers:
    """Return the headers at the end of a request. Raises as ``of_request``."""
    headers = _joined(fields)
    if any(name[:1] == b":" for name in headers):
        raise _malformed("a pseudo-header in trailers")
    _check(headers)
    return headers


def _joined(fields: Sequence[Field]) -> Headers:
    headers: Headers = {}
    for name, value in fields:
        if name in headers:
            if name[:1] == b":":
                raise _malformed(f"{name.decode('latin-1')} is repeated")
            value = headers[name] + (b"; " if name == b"cookie" else b",") + value
        headers[name] = value
    return headers


def _check(headers: Headers) -> None:
    if not _good_names.issuperset(headers):
        for name in headers:
            if name not in _good_names:
                _check_name(name)
    if headers.get(b"te", b"trailers") != b"trailers":
        raise _malformed("te is not trailers")
    values = b"\n".join((b"", *headers.values(), b""))
    if len(values) > _LIMIT.maximum:  # the names are limited by the table and the block
        raise Http2Error(
            ErrorCode.ENHANCE_YOUR_CALM, str(_LIMIT.exceeded(len(values))), limit=_LIMIT.name
        )
    if values.count(b"\n") != len(headers) + 1 or any(map(values.__contains__, _WRONG_IN_VALUES)):
        raise _malformed("a value contains NUL, CR or LF, or begins or ends with a space")


def _check_name(name: bytes) -> None:
    if name in _OF_CONNECTIONS:
        raise _malformed(f"{name.decode()} is not allowed in HTTP/2")
    if not _NAME.fullmatch(name):
        raise _malformed(f"name {name[:50]!r}; allowed: lower-case letters, digits, dashes")
    if len(_good_names) < _NAMES_MAX and len(name) <= 64:
        _good_names.add(name)
