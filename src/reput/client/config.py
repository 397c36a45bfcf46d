"""Settings of clients, with RocketMQ's names and defaults.

``reput.config`` reads them from properties (``sendMsgTimeout``, ``pullBatchSize``); programs can
also make them directly: ``ProducerConfig(send_timeout_ms=1000)``.
"""

import enum
import os
import re
import ssl
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeVar

from reput import config
from reput.config import Keys, Range
from reput.errors import InvalidOption
from reput.format import names, namespace as namespaces
from reput.format.signing import Credentials, Signer, credentials_of
from reput.remoting import tls_settings
from reput.remoting.tls_settings import TlsSettings
from reput.secret import NO_SECRET, Secret

DEFAULT_INSTANCE_NAME = "DEFAULT"
NAMESRV_VARIABLE = "NAMESRV_ADDR"
"""Environment variable of the name servers."""
DEFAULT_PORT = 9876
"""Default port of name servers."""

Milliseconds = Annotated[int, Range(1)]
Count = Annotated[int, Range(1)]
ByteCount = Annotated[int, Range(1)]


class MessageModel(enum.StrEnum):
    """Delivery of a message to the members of a group."""

    CLUSTERING = "CLUSTERING"
    """One member of the group gets each message."""
    BROADCASTING = "BROADCASTING"
    """Each member gets each message."""


class ConsumeFromWhere(enum.StrEnum):
    """Start position of a group in a queue without a consumer offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings shared by producers, consumers and admin clients."""

    namesrv_addr: str
    """Name servers: ``host:port;host:port``."""
    instance_name: str = DEFAULT_INSTANCE_NAME
    """Clients of one loop with equal name servers and instance name share connections and client
    id."""
    client_ip: str = ""
    """Start of the client id; detected if empty."""
    unit_name: str = ""
    """Suffix of the client id; none if empty."""
    namespace: str = ""
    """Prefix of topics and groups, separated by ``%``; none if empty. It is also set by the address
    ``http://MQ_INST_1_b.host:port`` of name servers."""
    namespace_v2: str = ""
    """Namespace in separate fields of each request, ``ns`` and ``nsd`` (5.x); names stay as they
    are. RocketMQ's brokers ignore it. Not together with ``namespace``."""
    poll_name_server_ms: Milliseconds = 30_000
    """Interval of route refreshes, in ms."""
    heartbeat_ms: Milliseconds = 30_000
    """Interval of heartbeats, in ms; brokers drop a client after 120 s without one."""
    persist_offsets_ms: Milliseconds = 5_000
    """Interval at which consumers commit their consumer offsets, in ms."""
    request_timeout_ms: Milliseconds = 3_000
    """Timeout of requests other than sends and pulls, in ms."""
    use_tls: bool = False
    """Use TLS for connections to name servers and brokers."""
    tls_client_trust_cert_path: str = ""
    """PEM file with the authorities that may issue the servers' certificates; empty: any
    certificate is accepted, as in RocketMQ's test mode."""
    tls_client_cert_path: str = ""
    """PEM file with the client's certificate."""
    tls_client_key_path: str = ""
    """PEM file with its private key."""
    tls_client_key_password: str = field(default="", repr=False)
    """Password of that key, if it is encrypted."""
    enable_trace: bool = False
    """Trace sends and consumption as messages of ``trace_topic``."""
    trace_topic: str = names.TRACE_TOPIC
    """Topic of traces."""
    access_key: str = ""
    """Account or user whose secret key signs all requests; empty: they are not signed."""
    secret_key: Secret = NO_SECRET
    """Secret key of the access key."""
    security_token: Secret = NO_SECRET
    """Token of a temporary access key."""

    keys: ClassVar[Keys] = Keys(
        renamed={
            "clientIP": "clientIp",
            "pollNameServerInterval": "pollNameServerMs",
            "heartbeatBrokerInterval": "heartbeatMs",
            "persistConsumerOffsetInterval": "persistOffsetsMs",
            "mqClientApiTimeout": "requestTimeoutMs",
            "useTLS": "useTls",
            "tls.enable": "useTls",
            "tls.client.trustCertPath": "tlsClientTrustCertPath",
            "tls.client.certPath": "tlsClientCertPath",
            "tls.client.keyPath": "tlsClientKeyPath",
            "tls.client.keyPassword": "tlsClientKeyPassword",
        }
    )

    def __post_init__(self) -> None:
        """Validate all values."""
        config.check_ranges(self)
        for name in ("secret_key", "security_token"):  # a plain text would be shown by repr
            object.__setattr__(self, name, Secret(getattr(self, name)))
        _ = self.credentials
        of_endpoint, addresses = namespaces.of_endpoint(self.namesrv_addr)
        object.__setattr__(self, "namesrv_addr", addresses)
        object.__setattr__(self, "namespace", self.namespace or of_endpoint)
        if self.namespace and self.namespace_v2:
            raise InvalidOption("namespace", self.namespace, "namespace or namespaceV2, not both")
        name_servers(self.namesrv_addr)
        if not names.is_legal_topic(self.trace_topic):
            raise InvalidOption("traceTopic", self.trace_topic, "the name of a topic")
        if not self.instance_name:
            raise InvalidOption("instanceName", self.instance_name, "a name that is not empty")
        paths = self.tls_client_trust_cert_path, self.tls_client_cert_path, self.tls_client_key_path
        if any(paths) and not self.use_tls:
            raise InvalidOption("useTLS", "false", "true, as paths of certificates are set")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the certificates of connections; None without TLS.

        Raises:
            InvalidOption: A file cannot be used.
        """
        if not self.use_tls:
            return None
        return tls_settings.client_context(
            TlsSettings(
                tls_client_trust_cert_path=self.tls_client_trust_cert_path,
                tls_client_cert_path=self.tls_client_cert_path,
                tls_client_key_path=self.tls_client_key_path,
                tls_client_key_password=self.tls_client_key_password,
            )
        )

    @property
    def credentials(self) -> Credentials | None:
        """Credentials that sign requests; None: requests are not signed."""
        return credentials_of(self.access_key, self.secret_key, self.security_token)

    def request_fields(self) -> dict[str, str]:
        """Return the fields that all requests get: those of the namespace."""
        return {"nsd": "true", "ns": self.namespace_v2} if self.namespace_v2 else {}

    def signer(self) -> Signer | None:
        """Return a signer with the credentials; None without them."""
        credentials = self.credentials
        return None if credentials is None else Signer(credentials)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of producers."""

    send_timeout_ms: Milliseconds = 3_000
    """Timeout of a send including its retries, in ms."""
    retry_times_when_send_failed: Annotated[int, Range(0)] = 2
    """Number of retries, on other brokers if there are any. Unless 0, busy brokers are retried in
    addition until the timeout.
    """
    retry_backoff_ms: Annotated[int, Range(0)] = 100
    """First pause between attempts once each broker has failed, in ms; doubled up to 1 s. Brokers
    that cannot be reached, as while they restart, are retried until the timeout. 0: three attempts
    without pauses, as in Java."""
    retry_another_broker_when_not_store_ok: bool = False
    """Retry if the message is stored but was not flushed or replicated in time."""
    compress_body_over_bytes: Annotated[int, Range(0)] = 4096
    """Size above which bodies are compressed, in bytes; batches never are."""
    compress_level: Annotated[int, Range(0, 9)] = 5
    """Compression level of zlib."""
    max_message_bytes: ByteCount = 4 * 1024 * 1024
    """Maximum size of a message's or batch's body, in bytes; brokers have their own limit."""
    create_topic_key: str = "TBW102"
    """Topic whose route is used for topics that do not exist yet."""
    default_topic_queue_nums: Count = 4
    """Maximum number of queues of an auto-created topic."""
    send_latency_fault_enable: bool = False
    """Avoid slow brokers for a while."""
    window_count: Count = 256
    """Number of messages that ``send_many`` keeps in flight."""

    keys: ClassVar[Keys] = Keys(
        renamed={
            "sendMsgTimeout": "sendTimeoutMs",
            "compressMsgBodyOverHowmuch": "compressBodyOverBytes",
            "retryAnotherBrokerWhenNotStoreOK": "retryAnotherBrokerWhenNotStoreOk",
            "maxMessageSize": "maxMessageBytes",
        }
    )

    def __post_init__(self) -> None:
        """Validate all numbers."""
        config.check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of consumers."""

    message_model: MessageModel = MessageModel.CLUSTERING
    """Delivery of a message to one member of the group (``CLUSTERING``) or to each
    (``BROADCASTING``)."""
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    """Start position in a queue without a consumer offset: ``LAST_OFFSET``, ``FIRST_OFFSET`` or
    ``TIMESTAMP``. Brokers let a group begin at the first message of a young queue even with
    ``LAST_OFFSET``."""
    consume_timestamp_ms: Annotated[int, Range(0, config.JAVA_LONG_MAX)] = 0
    """Start time for ``TIMESTAMP``, in ms since the epoch; 0: half an hour before the start."""
    pull_batch_size: Annotated[int, Range(1, 1024)] = 32
    """Maximum number of messages per pull."""
    pull_interval_ms: Annotated[int, Range(0)] = 0
    """Pause between two pulls of a queue, in ms."""
    consume_message_batch_max_size: Annotated[int, Range(1, 1024)] = 1
    """Maximum number of messages per call of the listener."""
    consume_concurrency: Annotated[int, Range(1, 1000)] = 20
    """Maximum number of concurrent calls of the listener; orderly consumers have one per queue."""
    pull_threshold_for_queue: Annotated[int, Range(1, 65535)] = 1000
    """Number of cached messages of a queue at which pulling pauses."""
    pull_threshold_size_for_queue: Annotated[int, Range(1, 1024)] = 100
    """Size of cached bodies of a queue at which pulling pauses, in MiB."""
    consume_concurrently_max_span: Annotated[int, Range(1, 65535)] = 2000
    """Span of cached queue offsets at which pulling pauses."""
    max_reconsume_times: Annotated[int, Range(-1)] = -1
    """Number of retries before the dead-letter topic; -1: 16, or unlimited for orderly
    consumers."""
    suspend_current_queue_time_ms: Annotated[int, Range(10, 30_000)] = 1_000
    """Pause of an orderly queue after a failure, in ms."""
    consume_timeout_min: Count = 15
    """Time in minutes after which a message that is still being consumed is sent back."""
    broker_suspend_ms: Milliseconds = 15_000
    """Time for which a broker holds a pull that finds no message, in ms."""
    pull_timeout_ms: Milliseconds = 30_000
    """Timeout of a pull, in ms; greater than ``broker_suspend_ms``."""
    pop_invisible_ms: Milliseconds = 60_000
    """Invisible time of popped messages, in ms; extended while a listener holds them."""
    pop_batch_size: Annotated[int, Range(1, 32)] = 32
    """Maximum number of messages per pop."""
    pop_threshold_for_queue: Annotated[int, Range(1, 1024)] = 96
    """Number of unacknowledged messages of a broker or queue at which popping pauses."""

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
        """Validate all numbers and their combinations; take the texts of enums for their values."""
        model = _member("messageModel", self.message_model, MessageModel)
        where = _member("consumeFromWhere", self.consume_from_where, ConsumeFromWhere)
        object.__setattr__(self, "message_model", model)
        object.__setattr__(self, "consume_from_where", where)
        config.check_ranges(self)
        if self.pull_timeout_ms <= self.broker_suspend_ms:
            allowed = f"more than brokerSuspendMs, {self.broker_suspend_ms}"
            raise InvalidOption("pullTimeoutMs", self.pull_timeout_ms, allowed)


E = TypeVar("E", bound=enum.StrEnum)
_MEANT: dict[str, enum.StrEnum] = {
    "earliest": ConsumeFromWhere.FIRST_OFFSET,
    "beginning": ConsumeFromWhere.FIRST_OFFSET,
    "first": ConsumeFromWhere.FIRST_OFFSET,
    "latest": ConsumeFromWhere.LAST_OFFSET,
    "end": ConsumeFromWhere.LAST_OFFSET,
    "last": ConsumeFromWhere.LAST_OFFSET,
    "broadcast": MessageModel.BROADCASTING,
    "cluster": MessageModel.CLUSTERING,
}
"""Words of other systems, in small letters, and the members that are probably meant."""


def _member(name: str, value: object, members: type[E]) -> E:
    """Return the member of an enum with this value or name. Raises ``InvalidOption``."""
    if isinstance(value, members):
        return value
    for member in members:
        if value in (member.value, member.name):
            return member
    allowed = ", ".join(f"{members.__name__}.{member.name}" for member in members)
    meant = _MEANT.get(value.lower()) if isinstance(value, str) else None
    if isinstance(meant, members):
        allowed += f"; did you mean {members.__name__}.{meant.name}?"
    raise InvalidOption(name, value, allowed)


_OTHER_SEPARATORS = re.compile(r"[;,|\s]+")


def name_servers(text: str) -> tuple[str, ...]:
    """Return the addresses in ``host:port;host:port``, each with a port.

    Raises:
        InvalidOption: The list is empty, a port is not a number from 1 to 65535, or the addresses
            are separated by something else.
    """
    allowed = "host:port, several separated by ;"
    addresses = []
    for word in (word.strip() for word in text.split(";")):
        if not word:
            continue
        if _OTHER_SEPARATORS.search(word):
            meant = ";".join(filter(None, _OTHER_SEPARATORS.split(text)))
            raise InvalidOption("namesrvAddr", text, f"{allowed}; did you mean {meant!r}?")
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
    """Return the configuration of a client, from its name servers or a whole configuration.

    Without either, the name servers are those of the environment, as in RocketMQ's clients.

    Raises:
        InvalidOption: Both were given, or an address is invalid or missing.
    """
    if client is not None and namesrv is not None:
        raise InvalidOption("namesrv", namesrv, "nothing, where client= is given as well")
    if client is None and namesrv is None:
        namesrv = os.environ.get(NAMESRV_VARIABLE)
        if not namesrv:
            allowed = f"host:port of a name server, or client=, or {NAMESRV_VARIABLE} is set"
            raise InvalidOption("namesrv", namesrv, allowed)
    return client or ClientConfig(namesrv_addr=namesrv or "")
