"""The settings of clients, under RocketMQ's defaults.

Read with ``reput.config`` from properties under RocketMQ's names (``sendMsgTimeout``,
``pullBatchSize``), or made directly: ``ProducerConfig(send_timeout_ms=1000)``.
"""

import enum
from dataclasses import dataclass
from typing import Annotated, ClassVar

from reput import config
from reput.config import Keys, Range
from reput.errors import InvalidOption
from reput.format import names

DEFAULT_INSTANCE_NAME = "DEFAULT"
DEFAULT_PORT = 9876
"""Of a name server whose address names none."""

Milliseconds = Annotated[int, Range(1)]
Count = Annotated[int, Range(1)]
ByteCount = Annotated[int, Range(1)]


class MessageModel(enum.StrEnum):
    """Who of a group gets a message."""

    CLUSTERING = "CLUSTERING"
    """One member of the group."""
    BROADCASTING = "BROADCASTING"
    """Each member."""


class ConsumeFromWhere(enum.StrEnum):
    """Where a group begins in a queue that it has no consumer offset in."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What producers, consumers and admin clients have in common."""

    namesrv_addr: str
    """Name servers: ``host:port;host:port``."""
    instance_name: str = DEFAULT_INSTANCE_NAME
    """Clients of one loop, name servers and instance name share connections and a client id."""
    client_ip: str = ""
    """What the client id begins with; found out when empty."""
    unit_name: str = ""
    """Ends the client id when not empty."""
    namespace: str = ""
    """Put before topics and groups, with a ``%`` between, unless empty."""
    poll_name_server_ms: Milliseconds = 30_000
    """How often the routes of topics in use are asked for again."""
    heartbeat_ms: Milliseconds = 30_000
    """How often brokers are told who is here; they forget a client after 120 s."""
    persist_offsets_ms: Milliseconds = 5_000
    """How often consumers send their consumer offsets."""
    request_timeout_ms: Milliseconds = 3_000
    """How long a name server or broker may take to answer what is neither a send nor a pull."""
    enable_trace: bool = False
    """Write down what is sent and consumed, as messages of ``trace_topic``."""
    trace_topic: str = names.TRACE_TOPIC

    keys: ClassVar[Keys] = Keys(
        renamed={
            "clientIP": "clientIp",
            "pollNameServerInterval": "pollNameServerMs",
            "heartbeatBrokerInterval": "heartbeatMs",
            "persistConsumerOffsetInterval": "persistOffsetsMs",
            "mqClientApiTimeout": "requestTimeoutMs",
        }
    )

    def __post_init__(self) -> None:
        """Check every value."""
        config.check_ranges(self)
        name_servers(self.namesrv_addr)
        if not names.is_legal_topic(self.trace_topic):
            raise InvalidOption("traceTopic", self.trace_topic, "the name of a topic")
        if not self.instance_name:
            raise InvalidOption("instanceName", self.instance_name, "a name that is not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How messages are sent."""

    send_timeout_ms: Milliseconds = 3_000
    """For a send with all its attempts."""
    retry_times_when_send_failed: Annotated[int, Range(0)] = 2
    """Further attempts, on other brokers where there are any. Unless 0, brokers that are busy are
    asked again besides, until the time is over."""
    retry_another_broker_when_not_store_ok: bool = False
    """Try again when the message is stored, but not flushed or replicated in time."""
    compress_body_over_bytes: Annotated[int, Range(0)] = 4096
    """Longer bodies are sent compressed, unless in a batch."""
    compress_level: Annotated[int, Range(0, 9)] = 5
    """Of zlib."""
    max_message_bytes: ByteCount = 4 * 1024 * 1024
    """Longest body of a message, and of a batch as a whole; the broker has a limit of its own."""
    create_topic_key: str = "TBW102"
    """The topic whose route is taken for topics that do not exist yet."""
    default_topic_queue_nums: Count = 4
    """Most queues that such a topic is created with."""
    send_latency_fault_enable: bool = False
    """Avoid brokers for a while that answered late."""
    window_count: Count = 256
    """Messages that ``send_many`` has in flight at a time."""

    keys: ClassVar[Keys] = Keys(
        renamed={
            "sendMsgTimeout": "sendTimeoutMs",
            "compressMsgBodyOverHowmuch": "compressBodyOverBytes",
            "retryAnotherBrokerWhenNotStoreOK": "retryAnotherBrokerWhenNotStoreOk",
            "maxMessageSize": "maxMessageBytes",
        }
    )

    def __post_init__(self) -> None:
        """Check every number."""
        config.check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How messages are pulled and consumed."""

    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: Annotated[int, Range(0, config.JAVA_LONG_MAX)] = 0
    """For ``TIMESTAMP``; ms since the epoch, 0: half an hour before the start."""
    pull_batch_size: Annotated[int, Range(1, 1024)] = 32
    """Most messages of a pull."""
    pull_interval_ms: Annotated[int, Range(0)] = 0
    """Pause between two pulls of a queue."""
    consume_message_batch_max_size: Annotated[int, Range(1, 1024)] = 1
    """Most messages of one call of the listener."""
    consume_concurrency: Annotated[int, Range(1, 1000)] = 20
    """Calls of the listener at a time, of a consumer that is not orderly."""
    pull_threshold_for_queue: Annotated[int, Range(1, 65535)] = 1000
    """Messages of one queue in memory, before pulling waits."""
    pull_threshold_size_for_queue: Annotated[int, Range(1, 1024)] = 100
    """The same in MiB of bodies."""
    consume_concurrently_max_span: Annotated[int, Range(1, 65535)] = 2000
    """Between first and last message of a queue in memory, before pulling waits."""
    max_reconsume_times: Annotated[int, Range(-1)] = -1
    """Retries before the dead-letter topic; -1: 16, or for ever when orderly."""
    suspend_current_queue_time_ms: Annotated[int, Range(10, 30_000)] = 1_000
    """How long an orderly listener's queue rests after a failure."""
    consume_timeout_min: Count = 15
    """After this many minutes a message that is still being consumed is sent back."""
    broker_suspend_ms: Milliseconds = 15_000
    """How long a broker holds a pull that finds nothing."""
    pull_timeout_ms: Milliseconds = 30_000
    """How long a pull may take, more than the broker holds it."""
    pop_invisible_ms: Milliseconds = 60_000
    """How long nobody else sees what was popped, unless it is held on."""
    pop_batch_size: Annotated[int, Range(1, 32)] = 32
    """Most messages of a pop."""
    pop_threshold_for_queue: Annotated[int, Range(1, 1024)] = 96
    """Messages popped from one broker, or queue, in memory, before popping waits."""

    keys: ClassVar[Keys] = Keys(
        renamed={
            "suspendCurrentQueueTimeMillis": "suspendCurrentQueueTimeMs",
            "consumeTimeout": "consumeTimeoutMin",
            "pullInterval": "pullIntervalMs",
            "brokerSuspendMaxTimeMillis": "brokerSuspendMs",
            "consumerTimeoutMillisWhenSuspend": "pullTimeoutMs",
            "popBatchNums": "popBatchSize",
            "popInvisibleTime": "popInvisibleMs",
        }
    )

    def __post_init__(self) -> None:
        """Check every number, and those that depend on each other."""
        config.check_ranges(self)
        if self.pull_timeout_ms <= self.broker_suspend_ms:
            allowed = f"more than brokerSuspendMs, {self.broker_suspend_ms}"
            raise InvalidOption("pullTimeoutMs", self.pull_timeout_ms, allowed)


def name_servers(text: str) -> tuple[str, ...]:
    """Return the addresses in ``host:port;host:port``, each with a port.

    Raises:
        InvalidOption: There is none, or a port is no number from 1 to 65535.
    """
    allowed = "host:port, several separated by ;"
    addresses = []
    for word in (word.strip() for word in text.split(";")):
        if not word:
            continue
        host, colon, port = word.rpartition(":")
        if not colon or (word.startswith("[") and word.endswith("]")):
            host, port = word, str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidOption("namesrvAddr", text, allowed)
        addresses.append(f"{host}:{port}")
    if not addresses:
        raise InvalidOption("namesrvAddr", text, allowed)
    return tuple(addresses)


def client_config(namesrv: str | None, client: ClientConfig | None) -> ClientConfig:
    """Return the one that a client was made with: by its name servers, or whole.

    Raises:
        InvalidOption: Both, or none of them were given, or an address is wrong.
    """
    if client is not None and namesrv is not None:
        raise InvalidOption("namesrv", namesrv, "nothing, where client= is given as well")
    if client is None and namesrv is None:
        raise InvalidOption("namesrv", namesrv, "host:port of a name server, or client= instead")
    return client or ClientConfig(namesrv_addr=namesrv or "")
