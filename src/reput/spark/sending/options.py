"""Options of ``df.write.format("rocketmq")`` and ``df.writeStream``, validated.

The target decides the options: ``nameServer`` for brokers, ``path`` for a store folder.
``RowOptions`` apply to both. The options are rows of ``option_table``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from reput.errors import InvalidOption
from reput.format import names, namespace as namespaces
from reput.spark import option_kinds as kinds, option_table as table
from reput.spark.option_table import (
    BATCH,
    FAIL_STATUSES,
    ONEWAY,
    SKIP_ALL,
    SKIP_DERIVED,
    SKIP_NONE,
    WRITES,
    Source,
)
from reput.spark.options import LiveOptions, ServerOptions, made, take_endpoint


@dataclass(frozen=True)
class RowOptions:
    """Conversion of rows to messages."""

    topic: str | None = None
    """Topic of all messages; overrides column ``topic``."""
    ignore_read_columns: bool = False
    """Ignore the columns of reads that are not part of a message to send."""
    trusted_properties: frozenset[str] = frozenset()
    """Properties reserved for brokers that messages keep."""
    namespace: str = ""
    """Namespace of the messages to brokers; empty: no namespace."""

    def full_topic(self, topic: str) -> str:
        """Return the name of a topic on brokers."""
        return namespaces.wrap(self.namespace, topic)


@dataclass(frozen=True)
class SendOptions(ServerOptions):
    """Settings of a write to brokers. Fields as in ``option_table``."""

    rows: RowOptions = RowOptions()
    brokers: frozenset[str] | None = None
    producer_group: str = "SPARK_SINK"
    mode: str = BATCH
    batch_bytes: int = 256 * 1024
    window_count: int = 256
    timeout_ms: int = 3_000
    retry_timeout_ms: int = 180_000
    retry_count: int | None = None
    retry_interval_ms: int = 500
    fail_on: frozenset[str] = frozenset(FAIL_STATUSES)
    compress_over_bytes: int = 4096
    max_message_bytes: int = 4 * 1024 * 1024
    idempotent: bool = True
    skip_present: str = SKIP_DERIVED
    write_id: str | None = None

    @property
    def live(self) -> LiveOptions:
        """Settings of the connection."""
        shared = {entry.name: getattr(self, entry.name) for entry in fields(ServerOptions)}
        return LiveOptions(**shared, pull_timeout_ms=self.timeout_ms)


def goes_to_brokers(options: Mapping[str, str]) -> bool:
    """Return whether a write goes to brokers; otherwise it goes to a store folder.

    Raises:
        InvalidOption: ``nameServer`` and ``path`` are both missing or both set.
    """
    texts = table.texts_of(options)
    has_servers = "nameserver" in texts or "rocketmq.namesrv.addr" in texts
    if "path" in texts and has_servers:
        allowed = "path (a store folder) or nameServer (brokers), not both"
        raise InvalidOption("path", texts["path"][1], allowed)
    if "path" not in texts and not has_servers:
        raise InvalidOption(
            "nameServer", None, "host:port of a name server, to send; or path, to make a store"
        )
    return has_servers


def parse(options: Mapping[str, str]) -> SendOptions:
    """Return the options of a write to brokers.

    Raises:
        InvalidOption: A value is not allowed, or a name is unknown.
    """
    mode = table.texts_of(options).get("sendmode", ("", ""))[1]
    if mode.lower() == "transactional":
        allowed = f"{', '.join(table.SEND_MODES)}: messages in transactions are not supported yet"
        raise InvalidOption("sendMode", mode, allowed)
    values = take_endpoint(table.parse(options, WRITES, Source.BROKERS))
    if values["name_server"] is None:
        raise InvalidOption("nameServer", None, kinds.SERVERS.allowed)
    is_derived = values["idempotent"] and values["mode"] != ONEWAY
    values["skip_present"] = values["skip_present"] or (SKIP_DERIVED if is_derived else SKIP_NONE)
    values["producer_group"] = namespaces.wrap(values["namespace"] or "", values["producer_group"])
    parsed = made(SendOptions, values, rows=made(RowOptions, values))
    parsed.check()
    topic = parsed.rows.topic
    if topic is not None and not names.is_legal_topic(parsed.rows.full_topic(topic)):
        allowed = f"at most {names.TOPIC_LENGTH_MAX} characters, with the namespace in front"
        raise InvalidOption("topic", topic, allowed)
    if parsed.skip_present == SKIP_DERIVED and not parsed.idempotent:
        allowed = f"{SKIP_ALL} or {SKIP_NONE}, where idempotent=false: no key is derived"
        raise InvalidOption("skipPresent", SKIP_DERIVED, allowed)
    if parsed.skip_present != SKIP_NONE and parsed.mode == ONEWAY:
        allowed = f"{SKIP_NONE}, where sendMode=oneway: there are no replies"
        raise InvalidOption("skipPresent", parsed.skip_present, allowed)
    if parsed.write_id is not None and not parsed.idempotent:
        raise InvalidOption("writeId", parsed.write_id, "left out, where idempotent=false")
    return parsed
