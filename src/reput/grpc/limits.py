"""Limits of the clients of gRPC, of HTTP/2 and of a proxy."""

from reput.limits import KIB, MIB, declare

# --- HTTP/2 and gRPC -------------------------------------------------------------------------

PROTOBUF_FIELDS = declare("protobuf_fields", "fields in a message of a gRPC call", 30_000)
HTTP2_PREFACE_MS = declare(
    "http2_preface_ms",
    "time for the first frames of an HTTP/2 connection to arrive",
    10_000,
    "ms",
    scope="connection",
)
HTTP2_STREAMS = declare("http2_streams", "open calls of a connection", 20_000, scope="connection")
HTTP2_HEADER_BYTES = declare(
    "http2_header_bytes",
    "headers of a call, and their header block, which is compressed",
    16 * KIB,
    "bytes",
)
HTTP2_HEADER_FIELDS = declare("http2_header_fields", "headers of a call", 128)
HTTP2_CONTINUATIONS = declare("http2_continuations", "CONTINUATION frames of a header block", 8)
HTTP2_CONTROL_FRAMES = declare(
    "http2_control_frames",
    "PING and GOAWAY frames in a second, without a call or data in between",
    100,
    scope="connection",
)
HTTP2_SETTINGS = declare("http2_settings", "SETTINGS frames in a second", 20, scope="connection")
HTTP2_EMPTY_FRAMES = declare(
    "http2_empty_frames",
    "frames without data in a second, such as WINDOW_UPDATE, without a call or data in between",
    10_000,
    scope="connection",
)
HTTP2_RESETS = declare(
    "http2_resets",
    "calls that are reset within a second of their begin, in a second",
    500,
    scope="connection",
)
HTTP2_KEPT_BYTES = declare(
    "http2_kept_bytes",
    "bytes of open calls and incomplete messages of a connection",
    64 * MIB,
    "bytes",
    scope="connection",
)
HTTP2_UNSENT_BYTES = declare(
    "http2_unsent_bytes",
    "replies of a connection that its windows do not allow to send, before another call",
    8 * MIB,
    "bytes",
    scope="connection",
)
HTTP2_STALLED_MS = declare(
    "http2_stalled_ms", "time in which a call reads nothing of its reply", 60_000, "ms"
)
GRPC_MESSAGE_BYTES = declare("grpc_message_bytes", "message of a gRPC call", 16 * MIB, "bytes")
GRPC_INFLATED_BYTES = declare(
    "grpc_inflated_bytes",
    "compressed message of a gRPC call, after decompression",
    8 * MIB,
    "bytes",
)
GRPC_WAITING = declare(
    "grpc_waiting",
    "calls of a connection that wait for their turn, before more of it is read",
    128,
    scope="connection",
)
GRPC_WAITING_BYTES = declare(
    "grpc_waiting_bytes",
    "calls of a connection that wait for their turn, before more of it is read",
    4 * MIB,
    "bytes",
    scope="connection",
)
GRPC_SETTINGS_TOPICS = declare(
    "grpc_settings_topics", "topics, or subscriptions, in the settings of a gRPC client", 1_000
)
GRPC_SETTINGS_BYTES = declare(
    "grpc_settings_bytes", "texts in the settings of a gRPC client", 256 * KIB, "bytes"
)
GRPC_CLIENTS = declare("grpc_clients", "clients of gRPC, by their ids", 20_000, scope="server")
GRPC_RENEWED = declare(
    "grpc_renewed",
    "messages of a client whose invisible time is renewed; further ones are not",
    20_000,
    scope="connection",
)
GRPC_TRANSACTIONS = declare(
    "grpc_transactions",
    "open transactions whose half messages are remembered; the oldest make room, and are searched",
    20_000,
    scope="server",
)
PROXY_KNOWN = declare(
    "proxy_known",
    "topics, and groups, that a proxy knows at once; the oldest make room",
    20_000,
    scope="server",
)
GRPC_STREAM_MESSAGES = declare(
    "grpc_stream_messages", "messages of a gRPC call in a second, to methods that take many", 1_000
)
GRPC_REQUEST_MS = declare(
    "grpc_request_ms", "time from the first to the last byte of a gRPC request", 120_000, "ms"
)
