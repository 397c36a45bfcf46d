"""Messages, enums and methods of the 5.x clients' service.

Made by ``scripts/grpc_messages.py`` from ``grpc/wire/proto``; not to be edited. Tables are for
``reput.grpc.wire.protobuf``.
"""

import enum
from typing import NamedTuple

from reput.grpc.wire import protobuf
from reput.grpc.wire.protobuf import MessageField, MessageTable


class TransactionResolution(enum.IntEnum):
    """Values of ``TransactionResolution``."""

    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(enum.IntEnum):
    """Values of ``TransactionSource``."""

    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2


class Permission(enum.IntEnum):
    """Values of ``Permission``."""

    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(enum.IntEnum):
    """Values of ``FilterType``."""

    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class AddressScheme(enum.IntEnum):
    """Values of ``AddressScheme``."""

    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3


class MessageType(enum.IntEnum):
    """Values of ``MessageType``."""

    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class DigestType(enum.IntEnum):
    """Values of ``DigestType``."""

    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class ClientType(enum.IntEnum):
    """Values of ``ClientType``."""

    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class Encoding(enum.IntEnum):
    """Values of ``Encoding``."""

    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class Code(enum.IntEnum):
    """Values of ``Code``."""

    CODE_UNSPECIFIED = 0
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    INVALID_CLIENT_PROPERTIES = 40021
    UNAUTHORIZED = 40100
    PAYMENT_REQUIRED = 40200
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43100
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    VERSION_UNSUPPORTED = 50501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50502
    FAILED_TO_CONSUME_MESSAGE = 60000


class Language(enum.IntEnum):
    """Values of ``Language``."""

    LANGUAGE_UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12


class LiteSubscriptionAction(enum.IntEnum):
    """Values of ``LiteSubscriptionAction``."""

    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3


class QueryOffsetPolicy(enum.IntEnum):
    """Values of ``QueryOffsetPolicy``."""

    BEGINNING = 0
    END = 1
    TIMESTAMP = 2


class Policy(enum.IntEnum):
    """Values of ``Policy``."""

    LAST = 0
    MIN = 1
    MAX = 2


class Method(NamedTuple):
    """A method of the service."""

    name: str
    request: MessageTable
    reply: MessageTable
    is_request_stream: bool = False
    is_reply_stream: bool = False


FILTER_EXPRESSION = MessageTable(
    "FilterExpression",
    MessageField(1, "type", "enum"),
    MessageField(2, "expression", "string"),
)
EXPONENTIAL_BACKOFF = MessageTable(
    "ExponentialBackoff",
    MessageField(1, "initial", "message", protobuf.DURATION),
    MessageField(2, "max", "message", protobuf.DURATION),
    MessageField(3, "multiplier", "float"),
)
CUSTOMIZED_BACKOFF = MessageTable(
    "CustomizedBackoff",
    MessageField(1, "next", "message", protobuf.DURATION, label="repeated"),
)
RETRY_POLICY = MessageTable(
    "RetryPolicy",
    MessageField(1, "max_attempts", "int32"),
    MessageField(2, "exponential_backoff", "message", EXPONENTIAL_BACKOFF, oneof="strategy"),
    MessageField(3, "customized_backoff", "message", CUSTOMIZED_BACKOFF, oneof="strategy"),
)
RESOURCE = MessageTable(
    "Resource",
    MessageField(1, "resource_namespace", "string"),
    MessageField(2, "name", "string"),
)
SUBSCRIPTION_ENTRY = MessageTable(
    "SubscriptionEntry",
    MessageField(1, "topic", "message", RESOURCE),
    MessageField(2, "expression", "message", FILTER_EXPRESSION),
)
ADDRESS = MessageTable(
    "Address",
    MessageField(1, "host", "string"),
    MessageField(2, "port", "int32"),
)
ENDPOINTS = MessageTable(
    "Endpoints",
    MessageField(1, "scheme", "enum"),
    MessageField(2, "addresses", "message", ADDRESS, label="repeated"),
)
BROKER = MessageTable(
    "Broker",
    MessageField(1, "name", "string"),
    MessageField(2, "id", "int32"),
    MessageField(3, "endpoints", "message", ENDPOINTS),
)
MESSAGE_QUEUE = MessageTable(
    "MessageQueue",
    MessageField(1, "topic", "message", RESOURCE),
    MessageField(2, "id", "int32"),
    MessageField(3, "permission", "enum"),
    MessageField(4, "broker", "message", BROKER),
    MessageField(5, "accept_message_types", "enum", label="repeated"),
)
DIGEST = MessageTable(
    "Digest",
    MessageField(1, "type", "enum"),
    MessageField(2, "checksum", "string"),
)
DEAD_LETTER_QUEUE = MessageTable(
    "DeadLetterQueue",
    MessageField(1, "topic", "string"),
    MessageField(2, "message_id", "string"),
)
SYSTEM_PROPERTIES = MessageTable(
    "SystemProperties",
    MessageField(1, "tag", "string", label="optional"),
    MessageField(2, "keys", "string", label="repeated"),
    MessageField(3, "message_id", "string"),
    MessageField(4, "body_digest", "message", DIGEST),
    MessageField(5, "body_encoding", "enum"),
    MessageField(6, "message_type", "enum"),
    MessageField(7, "born_timestamp", "message", protobuf.TIMESTAMP),
    MessageField(8, "born_host", "string"),
    MessageField(9, "store_timestamp", "message", protobuf.TIMESTAMP, label="optional"),
    MessageField(10, "store_host", "string"),
    MessageField(11, "delivery_timestamp", "message", protobuf.TIMESTAMP, label="optional"),
    MessageField(12, "receipt_handle", "string", label="optional"),
    MessageField(13, "queue_id", "int32"),
    MessageField(14, "queue_offset", "int64", label="optional"),
    MessageField(15, "invisible_duration", "message", protobuf.DURATION, label="optional"),
    MessageField(16, "delivery_attempt", "int32", label="optional"),
    MessageField(17, "message_group", "string", label="optional"),
    MessageField(18, "trace_context", "string", label="optional"),
    MessageField(
        19,
        "orphaned_transaction_recovery_duration",
        "message",
        protobuf.DURATION,
        label="optional",
    ),
    MessageField(20, "dead_letter_queue", "message", DEAD_LETTER_QUEUE, label="optional"),
    MessageField(21, "lite_topic", "string", label="optional"),
    MessageField(22, "priority", "int32", label="optional"),
)
MESSAGE = MessageTable(
    "Message",
    MessageField(1, "topic", "message", RESOURCE),
    MessageField(2, "user_properties", "string", label="map"),
    MessageField(3, "system_properties", "message", SYSTEM_PROPERTIES),
    MessageField(4, "body", "bytes"),
)
ASSIGNMENT = MessageTable(
    "Assignment",
    MessageField(1, "message_queue", "message", MESSAGE_QUEUE),
)
STATUS = MessageTable(
    "Status",
    MessageField(1, "code", "enum"),
    MessageField(2, "message", "string"),
)
UA = MessageTable(
    "UA",
    MessageField(1, "language", "enum"),
    MessageField(2, "version", "string"),
    MessageField(3, "platform", "string"),
    MessageField(4, "hostname", "string"),
)
PUBLISHING = MessageTable(
    "Publishing",
    MessageField(1, "topics", "message", RESOURCE, label="repeated"),
    MessageField(2, "max_body_size", "int32"),
    MessageField(3, "validate_message_type", "bool"),
)
SUBSCRIPTION = MessageTable(
    "Subscription",
    MessageField(1, "group", "message", RESOURCE, label="optional"),
    MessageField(2, "subscriptions", "message", SUBSCRIPTION_ENTRY, label="repeated"),
    MessageField(3, "fifo", "bool", label="optional"),
    MessageField(4, "receive_batch_size", "int32", label="optional"),
    MessageField(5, "long_polling_timeout", "message", protobuf.DURATION, label="optional"),
    MessageField(6, "lite_subscription_quota", "int32", label="optional"),
    MessageField(7, "max_lite_topic_size", "int32", label="optional"),
)
METRIC = MessageTable(
    "Metric",
    MessageField(1, "on", "bool"),
    MessageField(2, "endpoints", "message", ENDPOINTS, label="optional"),
)
SETTINGS = MessageTable(
    "Settings",
    MessageField(1, "client_type", "enum", label="optional"),
    MessageField(2, "access_point", "message", ENDPOINTS, label="optional"),
    MessageField(3, "backoff_policy", "message", RETRY_POLICY, label="optional"),
    MessageField(4, "request_timeout", "message", protobuf.DURATION, label="optional"),
    MessageField(5, "publishing", "message", PUBLISHING, oneof="pub_sub"),
    MessageField(6, "subscription", "message", SUBSCRIPTION, oneof="pub_sub"),
    MessageField(7, "user_agent", "message", UA),
    MessageField(8, "metric", "message", METRIC),
    MessageField(9, "client_properties", "string", label="map"),
)
OFFSET_OPTION = MessageTable(
    "OffsetOption",
    MessageField(1, "policy", "enum", oneof="offset_type"),
    MessageField(2, "offset", "int64", oneof="offset_type"),
    MessageField(3, "tail_n", "int64", oneof="offset_type"),
    MessageField(4, "timestamp", "int64", oneof="offset_type"),
)
QUERY_ROUTE_REQUEST = MessageTable(
    "QueryRouteRequest",
    MessageField(1, "topic", "message", RESOURCE),
    MessageField(2, "endpoints", "message", ENDPOINTS),
)
QUERY_ROUTE_RESPONSE = MessageTable(
    "QueryRouteResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "message_queues", "message", MESSAGE_QUEUE, label="repeated"),
)
SEND_MESSAGE_REQUEST = MessageTable(
    "SendMessageRequest",
    MessageField(1, "messages", "message", MESSAGE, label="repeated"),
)
SEND_RESULT_ENTRY = MessageTable(
    "SendResultEntry",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "message_id", "string"),
    MessageField(3, "transaction_id", "string"),
    MessageField(4, "offset", "int64"),
    MessageField(5, "recall_handle", "string"),
)
SEND_MESSAGE_RESPONSE = MessageTable(
    "SendMessageResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "entries", "message", SEND_RESULT_ENTRY, label="repeated"),
)
QUERY_ASSIGNMENT_REQUEST = MessageTable(
    "QueryAssignmentRequest",
    MessageField(1, "topic", "message", RESOURCE),
    MessageField(2, "group", "message", RESOURCE),
    MessageField(3, "endpoints", "message", ENDPOINTS),
)
QUERY_ASSIGNMENT_RESPONSE = MessageTable(
    "QueryAssignmentResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "assignments", "message", ASSIGNMENT, label="repeated"),
)
RECEIVE_MESSAGE_REQUEST = MessageTable(
    "ReceiveMessageRequest",
    MessageField(1, "group", "message", RESOURCE),
    MessageField(2, "message_queue", "message", MESSAGE_QUEUE),
    MessageField(3, "filter_expression", "message", FILTER_EXPRESSION),
    MessageField(4, "batch_size", "int32"),
    MessageField(5, "invisible_duration", "message", protobuf.DURATION, label="optional"),
    MessageField(6, "auto_renew", "bool"),
    MessageField(7, "long_polling_timeout", "message", protobuf.DURATION, label="optional"),
    MessageField(8, "attempt_id", "string", label="optional"),
)
RECEIVE_MESSAGE_RESPONSE = MessageTable(
    "ReceiveMessageResponse",
    MessageField(1, "status", "message", STATUS, oneof="content"),
    MessageField(2, "message", "message", MESSAGE, oneof="content"),
    MessageField(3, "delivery_timestamp", "message", protobuf.TIMESTAMP, oneof="content"),
)
ACK_MESSAGE_ENTRY = MessageTable(
    "AckMessageEntry",
    MessageField(1, "message_id", "string"),
    MessageField(2, "receipt_handle", "string"),
    MessageField(3, "lite_topic", "string", label="optional"),
)
ACK_MESSAGE_REQUEST = MessageTable(
    "AckMessageRequest",
    MessageField(1, "group", "message", RESOURCE),
    MessageField(2, "topic", "message", RESOURCE),
    MessageField(3, "entries", "message", ACK_MESSAGE_ENTRY, label="repeated"),
)
ACK_MESSAGE_RESULT_ENTRY = MessageTable(
    "AckMessageResultEntry",
    MessageField(1, "message_id", "string"),
    MessageField(2, "receipt_handle", "string"),
    MessageField(3, "status", "message", STATUS),
)
ACK_MESSAGE_RESPONSE = MessageTable(
    "AckMessageResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "entries", "message", ACK_MESSAGE_RESULT_ENTRY, label="repeated"),
)
FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE_REQUEST = MessageTable(
    "ForwardMessageToDeadLetterQueueRequest",
    MessageField(1, "group", "message", RESOURCE),
    MessageField(2, "topic", "message", RESOURCE),
    MessageField(3, "receipt_handle", "string"),
    MessageField(4, "message_id", "string"),
    MessageField(5, "delivery_attempt", "int32"),
    MessageField(6, "max_delivery_attempts", "int32"),
    MessageField(7, "lite_topic", "string", label="optional"),
)
FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE_RESPONSE = MessageTable(
    "ForwardMessageToDeadLetterQueueResponse",
    MessageField(1, "status", "message", STATUS),
)
HEARTBEAT_REQUEST = MessageTable(
    "HeartbeatRequest",
    MessageField(1, "group", "message", RESOURCE, label="optional"),
    MessageField(2, "client_type", "enum"),
)
HEARTBEAT_RESPONSE = MessageTable(
    "HeartbeatResponse",
    MessageField(1, "status", "message", STATUS),
)
END_TRANSACTION_REQUEST = MessageTable(
    "EndTransactionRequest",
    MessageField(1, "topic", "message", RESOURCE),
    MessageField(2, "message_id", "string"),
    MessageField(3, "transaction_id", "string"),
    MessageField(4, "resolution", "enum"),
    MessageField(5, "source", "enum"),
    MessageField(6, "trace_context", "string"),
)
END_TRANSACTION_RESPONSE = MessageTable(
    "EndTransactionResponse",
    MessageField(1, "status", "message", STATUS),
)
PRINT_THREAD_STACK_TRACE_COMMAND = MessageTable(
    "PrintThreadStackTraceCommand",
    MessageField(1, "nonce", "string"),
)
RECONNECT_ENDPOINTS_COMMAND = MessageTable(
    "ReconnectEndpointsCommand",
    MessageField(1, "nonce", "string"),
)
THREAD_STACK_TRACE = MessageTable(
    "ThreadStackTrace",
    MessageField(1, "nonce", "string"),
    MessageField(2, "thread_stack_trace", "string", label="optional"),
)
VERIFY_MESSAGE_COMMAND = MessageTable(
    "VerifyMessageCommand",
    MessageField(1, "nonce", "string"),
    MessageField(2, "message", "message", MESSAGE),
)
VERIFY_MESSAGE_RESULT = MessageTable(
    "VerifyMessageResult",
    MessageField(1, "nonce", "string"),
)
RECOVER_ORPHANED_TRANSACTION_COMMAND = MessageTable(
    "RecoverOrphanedTransactionCommand",
    MessageField(1, "message", "message", MESSAGE),
    MessageField(2, "transaction_id", "string"),
)
NOTIFY_UNSUBSCRIBE_LITE_COMMAND = MessageTable(
    "NotifyUnsubscribeLiteCommand",
    MessageField(1, "lite_topic", "string"),
)
TELEMETRY_COMMAND = MessageTable(
    "TelemetryCommand",
    MessageField(1, "status", "message", STATUS, label="optional"),
    MessageField(2, "settings", "message", SETTINGS, oneof="command"),
    MessageField(3, "thread_stack_trace", "message", THREAD_STACK_TRACE, oneof="command"),
    MessageField(4, "verify_message_result", "message", VERIFY_MESSAGE_RESULT, oneof="command"),
    MessageField(
        5,
        "recover_orphaned_transaction_command",
        "message",
        RECOVER_ORPHANED_TRANSACTION_COMMAND,
        oneof="command",
    ),
    MessageField(
        6,
        "print_thread_stack_trace_command",
        "message",
        PRINT_THREAD_STACK_TRACE_COMMAND,
        oneof="command",
    ),
    MessageField(7, "verify_message_command", "message", VERIFY_MESSAGE_COMMAND, oneof="command"),
    MessageField(
        8,
        "reconnect_endpoints_command",
        "message",
        RECONNECT_ENDPOINTS_COMMAND,
        oneof="command",
    ),
    MessageField(
        9,
        "notify_unsubscribe_lite_command",
        "message",
        NOTIFY_UNSUBSCRIBE_LITE_COMMAND,
        oneof="command",
    ),
)
NOTIFY_CLIENT_TERMINATION_REQUEST = MessageTable(
    "NotifyClientTerminationRequest",
    MessageField(1, "group", "message", RESOURCE, label="optional"),
)
NOTIFY_CLIENT_TERMINATION_RESPONSE = MessageTable(
    "NotifyClientTerminationResponse",
    MessageField(1, "status", "message", STATUS),
)
CHANGE_INVISIBLE_DURATION_REQUEST = MessageTable(
    "ChangeInvisibleDurationRequest",
    MessageField(1, "group", "message", RESOURCE),
    MessageField(2, "topic", "message", RESOURCE),
    MessageField(3, "receipt_handle", "string"),
    MessageField(4, "invisible_duration", "message", protobuf.DURATION),
    MessageField(5, "message_id", "string"),
    MessageField(6, "lite_topic", "string", label="optional"),
    MessageField(7, "suspend", "bool", label="optional"),
)
CHANGE_INVISIBLE_DURATION_RESPONSE = MessageTable(
    "ChangeInvisibleDurationResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "receipt_handle", "string"),
)
PULL_MESSAGE_REQUEST = MessageTable(
    "PullMessageRequest",
    MessageField(1, "group", "message", RESOURCE),
    MessageField(2, "message_queue", "message", MESSAGE_QUEUE),
    MessageField(3, "offset", "int64"),
    MessageField(4, "batch_size", "int32"),
    MessageField(5, "filter_expression", "message", FILTER_EXPRESSION),
    MessageField(6, "long_polling_timeout", "message", protobuf.DURATION),
)
PULL_MESSAGE_RESPONSE = MessageTable(
    "PullMessageResponse",
    MessageField(1, "status", "message", STATUS, oneof="content"),
    MessageField(2, "message", "message", MESSAGE, oneof="content"),
    MessageField(3, "next_offset", "int64", oneof="content"),
)
UPDATE_OFFSET_REQUEST = MessageTable(
    "UpdateOffsetRequest",
    MessageField(1, "group", "message", RESOURCE),
    MessageField(2, "message_queue", "message", MESSAGE_QUEUE),
    MessageField(3, "offset", "int64"),
)
UPDATE_OFFSET_RESPONSE = MessageTable(
    "UpdateOffsetResponse",
    MessageField(1, "status", "message", STATUS),
)
GET_OFFSET_REQUEST = MessageTable(
    "GetOffsetRequest",
    MessageField(1, "group", "message", RESOURCE),
    MessageField(2, "message_queue", "message", MESSAGE_QUEUE),
)
GET_OFFSET_RESPONSE = MessageTable(
    "GetOffsetResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "offset", "int64"),
)
QUERY_OFFSET_REQUEST = MessageTable(
    "QueryOffsetRequest",
    MessageField(1, "message_queue", "message", MESSAGE_QUEUE),
    MessageField(2, "query_offset_policy", "enum"),
    MessageField(3, "timestamp", "message", protobuf.TIMESTAMP, label="optional"),
)
QUERY_OFFSET_RESPONSE = MessageTable(
    "QueryOffsetResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "offset", "int64"),
)
RECALL_MESSAGE_REQUEST = MessageTable(
    "RecallMessageRequest",
    MessageField(1, "topic", "message", RESOURCE),
    MessageField(2, "recall_handle", "string"),
)
RECALL_MESSAGE_RESPONSE = MessageTable(
    "RecallMessageResponse",
    MessageField(1, "status", "message", STATUS),
    MessageField(2, "message_id", "string"),
)
SYNC_LITE_SUBSCRIPTION_REQUEST = MessageTable(
    "SyncLiteSubscriptionRequest",
    MessageField(1, "action", "enum"),
    MessageField(2, "topic", "message", RESOURCE),
    MessageField(3, "group", "message", RESOURCE),
    MessageField(4, "lite_topic_set", "string", label="repeated"),
    MessageField(5, "version", "int64", label="optional"),
    MessageField(6, "offset_option", "message", OFFSET_OPTION, label="optional"),
)
SYNC_LITE_SUBSCRIPTION_RESPONSE = MessageTable(
    "SyncLiteSubscriptionResponse",
    MessageField(1, "status", "message", STATUS),
)
TABLES = {
    table.name: table
    for table in (
        FILTER_EXPRESSION,
        RETRY_POLICY,
        EXPONENTIAL_BACKOFF,
        CUSTOMIZED_BACKOFF,
        RESOURCE,
        SUBSCRIPTION_ENTRY,
        ADDRESS,
        ENDPOINTS,
        BROKER,
        MESSAGE_QUEUE,
        DIGEST,
        SYSTEM_PROPERTIES,
        DEAD_LETTER_QUEUE,
        MESSAGE,
        ASSIGNMENT,
        STATUS,
        UA,
        SETTINGS,
        PUBLISHING,
        SUBSCRIPTION,
        METRIC,
        OFFSET_OPTION,
        QUERY_ROUTE_REQUEST,
        QUERY_ROUTE_RESPONSE,
        SEND_MESSAGE_REQUEST,
        SEND_RESULT_ENTRY,
        SEND_MESSAGE_RESPONSE,
        QUERY_ASSIGNMENT_REQUEST,
        QUERY_ASSIGNMENT_RESPONSE,
        RECEIVE_MESSAGE_REQUEST,
        RECEIVE_MESSAGE_RESPONSE,
        ACK_MESSAGE_ENTRY,
        ACK_MESSAGE_REQUEST,
        ACK_MESSAGE_RESULT_ENTRY,
        ACK_MESSAGE_RESPONSE,
        FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE_REQUEST,
        FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE_RESPONSE,
        HEARTBEAT_REQUEST,
        HEARTBEAT_RESPONSE,
        END_TRANSACTION_REQUEST,
        END_TRANSACTION_RESPONSE,
        PRINT_THREAD_STACK_TRACE_COMMAND,
        RECONNECT_ENDPOINTS_COMMAND,
        THREAD_STACK_TRACE,
        VERIFY_MESSAGE_COMMAND,
        VERIFY_MESSAGE_RESULT,
        RECOVER_ORPHANED_TRANSACTION_COMMAND,
        NOTIFY_UNSUBSCRIBE_LITE_COMMAND,
        TELEMETRY_COMMAND,
        NOTIFY_CLIENT_TERMINATION_REQUEST,
        NOTIFY_CLIENT_TERMINATION_RESPONSE,
        CHANGE_INVISIBLE_DURATION_REQUEST,
        CHANGE_INVISIBLE_DURATION_RESPONSE,
        PULL_MESSAGE_REQUEST,
        PULL_MESSAGE_RESPONSE,
        UPDATE_OFFSET_REQUEST,
        UPDATE_OFFSET_RESPONSE,
        GET_OFFSET_REQUEST,
        GET_OFFSET_RESPONSE,
        QUERY_OFFSET_REQUEST,
        QUERY_OFFSET_RESPONSE,
        RECALL_MESSAGE_REQUEST,
        RECALL_MESSAGE_RESPONSE,
        SYNC_LITE_SUBSCRIPTION_REQUEST,
        SYNC_LITE_SUBSCRIPTION_RESPONSE,
    )
}
"""Tables by name of the message."""

SERVICE = "apache.rocketmq.v2.MessagingService"
"""Name of the service in paths."""
METHODS = {
    method.name: method
    for method in (
        Method("QueryRoute", QUERY_ROUTE_REQUEST, QUERY_ROUTE_RESPONSE),
        Method("Heartbeat", HEARTBEAT_REQUEST, HEARTBEAT_RESPONSE),
        Method("SendMessage", SEND_MESSAGE_REQUEST, SEND_MESSAGE_RESPONSE),
        Method("QueryAssignment", QUERY_ASSIGNMENT_REQUEST, QUERY_ASSIGNMENT_RESPONSE),
        Method(
            "ReceiveMessage",
            RECEIVE_MESSAGE_REQUEST,
            RECEIVE_MESSAGE_RESPONSE,
            is_reply_stream=True,
        ),
        Method("AckMessage", ACK_MESSAGE_REQUEST, ACK_MESSAGE_RESPONSE),
        Method(
            "ForwardMessageToDeadLetterQueue",
            FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE_REQUEST,
            FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE_RESPONSE,
        ),
        Method("PullMessage", PULL_MESSAGE_REQUEST, PULL_MESSAGE_RESPONSE, is_reply_stream=True),
        Method("UpdateOffset", UPDATE_OFFSET_REQUEST, UPDATE_OFFSET_RESPONSE),
        Method("GetOffset", GET_OFFSET_REQUEST, GET_OFFSET_RESPONSE),
        Method("QueryOffset", QUERY_OFFSET_REQUEST, QUERY_OFFSET_RESPONSE),
        Method("EndTransaction", END_TRANSACTION_REQUEST, END_TRANSACTION_RESPONSE),
        Method(
            "Telemetry",
            TELEMETRY_COMMAND,
            TELEMETRY_COMMAND,
            is_request_stream=True,
            is_reply_stream=True,
        ),
        Method(
            "NotifyClientTermination",
            NOTIFY_CLIENT_TERMINATION_REQUEST,
            NOTIFY_CLIENT_TERMINATION_RESPONSE,
        ),
        Method(
            "ChangeInvisibleDuration",
            CHANGE_INVISIBLE_DURATION_REQUEST,
            CHANGE_INVISIBLE_DURATION_RESPONSE,
        ),
        Method("RecallMessage", RECALL_MESSAGE_REQUEST, RECALL_MESSAGE_RESPONSE),
        Method(
            "SyncLiteSubscription",
            SYNC_LITE_SUBSCRIPTION_REQUEST,
            SYNC_LITE_SUBSCRIPTION_RESPONSE,
        ),
    )
}
"""Methods by name."""
