"""The validated options of a read.

Pure. ``option_table`` has the options; this module combines them.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from reput.errors import InvalidOption
from reput.format import namespace as namespaces
from reput.format.signing import Credentials, credentials_of
from reput.secret import NO_SECRET, Secret
from reput.spark import option_kinds as kinds, option_table as table
from reput.spark.option_kinds import EARLIEST, LATEST, QueueOffsets
from reput.spark.option_table import (
    COMMIT_NONE,
    COMMIT_ON_COMMIT,
    FAILFAST,
    FROM_MASTER,
    PERMISSIVE,
    READS,
    SALVAGE,
    TOOLS_GROUP,
    Source,
    Use,
)

_TOPIC_KEYS = ("topic", "topics", "subscribe", "subscribepattern", "assign")
_TOPIC_OPTIONS = "topic (or topics, subscribe), subscribePattern, assign"
DISCOVERY_INTERVAL_MS: Final = 10_000
"""Time for which a stream of brokers caches routes and topics by default, in ms."""


@dataclass(frozen=True)
class Bound:
    """Start or end of a read, per queue: an offset, a time, or a word.

    The most specific one wins: ``timestamp_ms``, then ``timestamps``, then the rest.
    """

    word: str | None = None
    """``earliest`` or ``latest``."""
    group: str | None = None
    """Consumer group whose consumer offsets are used."""
    offsets: QueueOffsets = field(default_factory=dict)
    """Queue offsets; ``EARLIEST`` and ``LATEST`` are allowed."""
    timestamps: QueueOffsets = field(default_factory=dict)
    """Store times, in ms."""
    timestamp_ms: int | None = None
    """Store time for all queues, in ms."""

    @property
    def is_whole(self) -> bool:
        """True if this bound excludes nothing."""
        return (
            self.word is not None
            and self.timestamp_ms is None
            and not self.timestamps
            and not self.offsets
            and self.group is None
        )


@dataclass(frozen=True)
class ServerOptions:
    """Name servers, and how to connect to them and to brokers. Fields as in ``option_table``."""

    name_server: str
    """``host:port``, several separated by ``;``."""
    access_key: str = ""
    secret_key: Secret = NO_SECRET
    security_token: Secret = NO_SECRET
    namespace: str = ""
    namespace_v2: str = ""
    use_tls: bool = False
    tls_trust_cert_path: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    tls_key_password: Secret = NO_SECRET

    @property
    def credentials(self) -> Credentials | None:
        """Credentials that sign requests. Raises ``InvalidOption`` if a key is missing."""
        return credentials_of(self.access_key, self.secret_key, self.security_token)

    def check(self) -> None:
        """Reject options that contradict each other. Raises ``InvalidOption``."""
        _ = self.credentials
        if self.namespace and self.namespace_v2:
            raise InvalidOption("namespace", self.namespace, "namespace or namespaceV2, not both")
        files = {
            "tls.client.trustCertPath": self.tls_trust_cert_path,
            "tls.client.certPath": self.tls_cert_path,
            "tls.client.keyPath": self.tls_key_path,
            "tls.client.keyPassword": self.tls_key_password,
        }
        for name, value in files.items():
            if value and not self.use_tls:
                raise InvalidOption("tls.enable", "false", f"true, as {name} is set")


@dataclass(frozen=True)
class LiveOptions(ServerOptions):
    """Reads from brokers, and settings of requests. Fields as in ``option_table``."""

    cluster: str | None = None
    brokers: frozenset[str] | None = None
    consumer_group: str = TOOLS_GROUP
    group: str | None = None
    commit_offsets: str = COMMIT_NONE
    read_from: str = FROM_MASTER
    discovery_interval_ms: int | None = None
    pull_batch_size: int = 32
    pull_timeout_ms: int = 10_000
    retry_timeout_ms: int = 180_000
    retry_count: int | None = None
    retry_interval_ms: int = 1_000


@dataclass(frozen=True)
class TriggerLimits:
    """Maximum and minimum sizes of a micro-batch. Fields as in ``option_table``."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True)
class ReadOptions:
    """All options of a read. Fields as in ``option_table`` unless documented here."""

    paths: tuple[str, ...]
    """Store folders; empty if ``live`` is set."""
    live: LiveOptions | None = None
    """Settings of a read from brokers."""
    allow_live: bool = False
    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    assign: dict[str, dict[str, tuple[int, ...]]] | None = None
    start: Bound = Bound(word="earliest")
    end: Bound = Bound(word="latest")
    late_timestamp: str = "error"
    start_physical_offset: int | None = None
    end_physical_offset: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = 128 * 1024 * 1024
    fail_on_data_loss: bool = True
    include_headers: bool = True
    raw_properties: bool = False
    tags: frozenset[str] | None = None
    sql92: str | None = None
    keys: frozenset[str] | None = None
    unique_keys: frozenset[str] | None = None
    include_body: bool = True
    columns: tuple[str, ...] | None = None
    decompress: bool = True
    charset: str | None = None
    isolation: str = "committed"
    include_system_topics: bool = True
    include_retry: bool = True
    include_dlq: bool = True
    resolve_topics: bool = False
    mode: str = FAILFAST
    corrupt_column: str | None = None
    """Name of the column with the error of a row; None: no such column."""
    check_crc: bool = True
    view: str = "messages"
    scan: str = "auto"
    pushdown: bool = False
    broker: str = ""
    """Value of column ``broker``; empty: from the store's own tables."""
    trigger: TriggerLimits = TriggerLimits()

    @property
    def namespace(self) -> str:
        """Namespace that topics in options and rows leave out; empty without one."""
        return "" if self.live is None else self.live.namespace

    @property
    def replaced_columns(self) -> frozenset[str]:
        """Columns whose values are not the stored ones, which predicates cannot select by."""
        resolved = {"topic", "queue_id"} if self.resolve_topics else set()
        return frozenset(resolved | ({"topic"} if self.namespace else set()))

    @property
    def selects_topics(self) -> bool:
        """True if topics are selected by any option."""
        return self.topics is not None or self.topic_pattern is not None or self.assign is not None

    def by_broker(self) -> Iterator[tuple[str, Mapping[str, Mapping[str, Any]]]]:
        """Yield the options by topic and broker: (name, topic -> broker -> queues)."""
        yield "assign", self.assign or {}
        for which, bound in (("starting", self.start), ("ending", self.end)):
            yield f"{which}Offsets", bound.offsets
            yield f"{which}OffsetsByTimestamp", bound.timestamps


Made = TypeVar("Made")
Value = TypeVar("Value")


def made(kind: type[Made], values: Mapping[str, Any], **more: Any) -> Made:
    """Return a dataclass from the values of its fields; missing ones have their defaults."""
    known = [attribute.name for attribute in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in known if values.get(name) is not None} | more)


def texts_of_values(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as the texts that Spark would pass, without options that are None.

    Lists of names are joined, other lists and dicts are JSON.
    """
    return {name: _text(value) for name, value in options.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return str(value)


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read of stores or brokers.

    ``check_batch`` and ``parse_stream`` reject options of the other kind of read: a data source
    gets its options before it knows its kind.

    Raises:
        InvalidOption: A value is not allowed, two options exclude each other, ``path`` and
            ``nameServer`` are both missing, or a name is unknown.
    """
    return _parse(options, READS)


def parse_stream(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a stream, which starts at the latest messages by default.

    Raises:
        InvalidOption: As ``parse``, or an option is not supported by streams.
    """
    parsed = _parse(options, Use.READ_STREAM, start_offsets="latest")
    live = parsed.live
    if live is not None and live.commit_offsets == COMMIT_ON_COMMIT and live.group is None:
        raise InvalidOption("commitOffsets", COMMIT_ON_COMMIT, "together with group")
    is_given = "commitoffsets" in table.texts_of(options)
    if live is not None and live.group is not None and not is_given:
        raise InvalidOption(
            "group",
            live.group,
            "together with commitOffsets=onCommit, or none; startingOffsets=group:NAME begins "
            "where a group is",
        )
    if parsed.view != "messages":
        raise InvalidOption("view", parsed.view, "messages: the other views are for batch reads")
    if parsed.scan == "log":
        raise InvalidOption("scan", parsed.scan, "consumequeue or auto: a stream follows queues")
    return parsed


def _parse(options: Mapping[str, str], uses: Use, **defaults: str) -> ReadOptions:
    texts = table.texts_of(options)
    is_live = "nameserver" in texts or "rocketmq.namesrv.addr" in texts
    source = Source.BROKERS if is_live else Source.FOLDER
    values = take_endpoint(table.parse(options, uses, source, **defaults))
    _check_topics(texts)
    if values["key"] is not None and values["key_in"] is not None:
        raise InvalidOption("key", values["key"], "key or keyIn, not both")
    keys = values["key_in"] if values["key"] is None else frozenset((values["key"],))
    parsed = made(
        ReadOptions,
        values,
        paths=() if is_live else _paths(values, texts),
        live=made(LiveOptions, values) if is_live else None,
        start=_bound(values, "start"),
        end=_bound({"end_offsets": ("latest", None, {}), **values}, "end"),
        keys=keys,
        corrupt_column=(
            values["corrupt_column"] if values["mode"] in (PERMISSIVE, SALVAGE) else None
        ),
        trigger=_trigger(values),
    )
    if parsed.live is not None:
        parsed.live.check()
        parsed = _with_full_names(parsed, parsed.live)
    _check_ranges(parsed)
    return parsed


def take_endpoint(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of options, with the namespace that the name servers' address may have."""
    of_endpoint, name_server = namespaces.of_endpoint(values.get("name_server") or "")
    if not of_endpoint:
        return values
    namespace = values["namespace"] or of_endpoint
    return {**values, "name_server": name_server, "namespace": namespace}


def _with_full_names(options: ReadOptions, live: LiveOptions) -> ReadOptions:
    """Return options whose topics and groups have the namespace, as on brokers."""
    if not live.namespace:
        return options

    def full(name: str) -> str:
        return namespaces.wrap(live.namespace, name)

    def full_topics(option: str, table: Mapping[str, Value]) -> dict[str, Value]:
        by_topic = {full(topic): value for topic, value in table.items()}
        if len(by_topic) < len(table):
            raise InvalidOption(
                option, ", ".join(table), "each topic once, with or without its namespace"
            )
        return by_topic

    def full_bound(end: str, bound: Bound) -> Bound:
        return dataclasses.replace(
            bound,
            group=bound.group and full(bound.group),
            offsets=full_topics(f"{end}Offsets", bound.offsets),
            timestamps=full_topics(f"{end}OffsetsByTimestamp", bound.timestamps),
        )

    # Every broker has the group of tools, which belongs to no namespace.
    group = live.consumer_group
    return dataclasses.replace(
        options,
        live=dataclasses.replace(
            live,
            consumer_group=group if group == TOOLS_GROUP else full(group),
            group=live.group and full(live.group),
        ),
        topics=None if options.topics is None else frozenset(map(full, options.topics)),
        assign=None if options.assign is None else full_topics("assign", options.assign),
        start=full_bound("starting", options.start),
        end=full_bound("ending", options.end),
    )


def check_batch(options: ReadOptions) -> None:
    """Reject options of streams. Raises ``InvalidOption``."""
    numbers = kinds.numbers_of(options.start.offsets)
    if options.start.word == "latest" or LATEST in numbers:
        raise InvalidOption(
            "startingOffsets",
            LATEST if LATEST in numbers else "latest",
            f"earliest, group:NAME or JSON with offsets from 0, or {EARLIEST} for earliest: a "
            "batch that starts at the latest reads nothing",
        )
    for row in table.OPTIONS:
        holder = options.live if row.sources is Source.BROKERS else options.trigger
        if row.uses is Use.READ_STREAM and holder is not None:
            value = getattr(holder, row.field)
            if value != getattr(type(holder), row.field):
                raise InvalidOption(row.name, value, row.elsewhere)


def _paths(values: Mapping[str, Any], texts: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    path, paths = values["path"], values["paths"]
    if paths is not None and "path" in texts:
        raise InvalidOption("paths", texts["paths"][1], kinds.PATHS.allowed)
    if paths is None and path is None:
        allowed = "the store folder: .load('/path/to/store') or its URI; or nameServer for brokers"
        if not texts:
            allowed += ". CREATE TABLE loses all options, CREATE TEMPORARY VIEW keeps them"
        raise InvalidOption("path", texts.get("path", ("", None))[1], allowed)
    locations: tuple[str, ...] = paths or path
    return locations


def _check_topics(texts: Mapping[str, tuple[str, str]]) -> None:
    given = [texts[key][1] for key in _TOPIC_KEYS if key in texts]
    if len(given) > 1:
        value = " and ".join(given)
        raise InvalidOption("subscribe", value, f"one of {_TOPIC_OPTIONS}, not two of them")


def _bound(values: Mapping[str, Any], end: str) -> Bound:
    """Return the start or end of a read."""
    word, group, offsets = values[f"{end}_offsets"]
    times, time_ms = values.get(f"{end}_timestamps"), values.get(f"{end}_timestamp_ms")
    return Bound(word, group, offsets, times or {}, time_ms)


def _trigger(values: Mapping[str, Any]) -> TriggerLimits:
    limits = made(TriggerLimits, values)
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        raise InvalidOption(
            "minOffsetsPerTrigger",
            limits.min_offsets,
            f"at most maxOffsetsPerTrigger, {limits.max_offsets}",
        )
    return limits


def _check_ranges(options: ReadOptions) -> None:
    pairs: tuple[tuple[str, int | None, int | None], ...] = (
        ("endingPhysicalOffset", options.start_physical_offset, options.end_physical_offset),
        ("endingTimestamp", options.start.timestamp_ms, options.end.timestamp_ms),
    )
    for name, low, high in pairs:
        if low is not None and high is not None and high < low:
            raise InvalidOption(name, high, f"at least the start, {low}")
    selects_messages = (
        any((options.keys, options.unique_keys, options.tags, options.sql92))
        or not (options.start.is_whole and options.end.is_whole)
        or (options.start_physical_offset, options.end_physical_offset) != (None, None)
    )
    if options.view != "messages" and selects_messages:
        raise InvalidOption(
            "view", options.view, "messages, together with key, uniqKey, tags, sql92 and bounds"
        )
