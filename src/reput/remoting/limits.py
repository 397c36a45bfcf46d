"""Limits of connections, their bytes and their replies, on all ports."""

from reput.format.codes import ResponseCode
from reput.limits import KIB, MIB, declare

# --- connections -----------------------------------------------------------------------------

CONNECTIONS = declare(
    "connections", "connections", 10_000, option="reputConnectionsMax", scope="server"
)
CONNECTIONS_PER_ADDRESS = declare(
    "connections_per_address",
    "connections from one address",
    5_000,
    option="reputConnectionsPerAddressMax",
    scope="address",
)
UNFINISHED_FRAME_MS = declare(
    "unfinished_frame_ms",
    "time from the first to the last byte of a frame",
    120_000,
    "ms",
    scope="connection",
)
UNFINISHED_BYTES = declare(
    "unfinished_bytes",
    "bytes of incomplete frames and TLS handshakes, of all connections",
    128 * MIB,
    "bytes",
    option="reputUnfinishedBytesMax",
    scope="server",
)
UNFINISHED_BYTES_PER_ADDRESS = declare(
    "unfinished_bytes_per_address",
    "bytes of incomplete frames and TLS handshakes, of one address",
    64 * MIB,
    "bytes",
    option="reputUnfinishedBytesPerAddressMax",
    scope="address",
)
UNREAD_BYTES = declare(
    "unread_bytes",
    "unread and half-made replies, of all connections",
    128 * MIB,
    "bytes",
    option="reputUnreadBytesMax",
    scope="server",
    response_code=ResponseCode.SYSTEM_BUSY,
)
UNREAD_BYTES_PER_ADDRESS = declare(
    "unread_bytes_per_address",
    "unread and half-made replies, of one address",
    64 * MIB,
    "bytes",
    option="reputUnreadBytesPerAddressMax",
    scope="address",
    response_code=ResponseCode.SYSTEM_BUSY,
)
UNREAD_BYTES_PER_CONNECTION = declare(
    "unread_bytes_per_connection",
    "unread replies of a connection, before another one",
    8 * MIB,
    "bytes",
    scope="connection",
)
UNREAD_NOTICE_BYTES = declare(
    "unread_notice_bytes",
    "unread bytes of a connection, before a request or notice is sent to the client",
    MIB,
    "bytes",
    scope="connection",
    response_code=ResponseCode.SYSTEM_BUSY,
)
TLS_HANDSHAKE_MS = declare(
    "tls_handshake_ms",
    "time from the first byte to the end of a TLS handshake",
    10_000,
    "ms",
    scope="connection",
)
TLS_HANDSHAKE_BYTES = declare(
    "tls_handshake_bytes", "bytes of a TLS handshake", 64 * KIB, "bytes", scope="connection"
)
PROXY_HEADER_MS = declare(
    "proxy_header_ms",
    "time from the first byte to the end of a PROXY header",
    10_000,
    "ms",
    scope="connection",
)
PROXY_HEADER_BYTES = declare(
    "proxy_header_bytes", "bytes of a PROXY header", 536, "bytes", scope="connection"
)
PUSHED_BYTES = declare(
    "pushed_bytes",
    "messages and replies sent to clients that have not responded yet",
    64 * MIB,
    "bytes",
    scope="server",
    response_code=ResponseCode.SYSTEM_BUSY,
)

# --- replies ---------------------------------------------------------------------------------

REPLY_BYTES = declare("reply_bytes", "body of a reply", 16 * MIB - 64 * KIB, "bytes")

# --- metrics over HTTP -----------------------------------------------------------------------

HTTP_CONNECTIONS = declare(
    "http_connections",
    "connections to the port of /metrics and /health",
    64,
    scope="server",
)
HTTP_REQUEST_BYTES = declare("http_request_bytes", "request over HTTP", 8 * KIB, "bytes")
HTTP_REQUEST_MS = declare("http_request_ms", "time for a request over HTTP to arrive", 5_000, "ms")

# --- HTTP/2 and gRPC -------------------------------------------------------------------------

GRPC_WORKED_ON_BYTES = declare(
    "grpc_worked_on_bytes",
    "messages of unanswered gRPC calls; further ones wait",
    64 * MIB,
    "bytes",
    scope="server",
)
GRPC_WORKED_ON_BYTES_PER_ADDRESS = declare(
    "grpc_worked_on_bytes_per_address",
    "messages of unanswered gRPC calls of one address; further ones wait",
    32 * MIB,
    "bytes",
    scope="address",
)
GRPC_WORKED_ON_BYTES_PER_CONNECTION = declare(
    "grpc_worked_on_bytes_per_connection",
    "messages of unanswered gRPC calls of a connection; further ones wait",
    16 * MIB,
    "bytes",
    scope="connection",
)
