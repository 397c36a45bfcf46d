"""Limits of what codecs read, in requests, replies and registrations."""

from reput.format.codes import ResponseCode
from reput.limits import KIB, MIB, declare

# --- text and JSON ---------------------------------------------------------------------------

BODY_BYTES = declare("body_bytes", "JSON body of a request", 4 * MIB, "bytes")
LENIENT_JSON_BYTES = declare(
    "lenient_json_bytes",
    "body of a request in fastjson's dialect, which is not standard JSON",
    128 * KIB,
    "bytes",
)
LENIENT_REPLY_BYTES = declare(
    "lenient_reply_bytes",
    "body of a reply in fastjson's dialect, which is not standard JSON",
    32 * MIB,
    "bytes",
)
LENIENT_CLIENT_BYTES = declare(
    "lenient_client_bytes",
    "the same, of a reply that producers, consumers and the proxy wait for",
    512 * KIB,
    "bytes",
)
HEADER_FIELDS = declare("header_fields", "fields in a header", 1_000)
HEADER_BYTES = declare("header_bytes", "header of a request", 256 * KIB, "bytes")

# --- topics and groups -----------------------------------------------------------------------

TOPIC_QUEUES = declare("topic_queues", "queues of a topic", 65_535)

# --- heartbeats and subscriptions ------------------------------------------------------------

FILTER_BYTES = declare(
    "filter_bytes",
    "SQL92 filter",
    16 * KIB,
    "bytes",
    response_code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
)
FILTER_NODES = declare(
    "filter_nodes",
    "tokens of an SQL92 filter, without the values of lists",
    1_200,
    response_code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
)

# --- registrations and routes ----------------------------------------------------------------

REGISTRATION_BYTES = declare(
    "registration_bytes", "registration after decompression", 64 * MIB, "bytes"
)
REGISTRATION_PART_BYTES = declare(
    "registration_part_bytes",
    "one topic, the filter servers or the version in a registration",
    16 * KIB,
    "bytes",
)
REGISTRATION_TOPICS = declare("registration_topics", "topics in a registration", 250_000)

ROUTE_QUEUES = declare(
    "route_queues", "queues of a topic on all its brokers, in the reply of a name server", 200_000
)

# --- acknowledgements ------------------------------------------------------------------------

ACK_SPAN = declare(
    "ack_span",
    "distance from the start of a checkpoint to its last acknowledged message",
    64 * KIB,
    "messages",
)
ACK_MESSAGES = declare("ack_messages", "acknowledged messages of a checkpoint", 64)
