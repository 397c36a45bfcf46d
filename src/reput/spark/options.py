"""The options of ``format("rocketmq")``: what they are called, what they may be, what they mean.

Pure: text in, ``ReadOptions`` out. Every refusal names the option, its value and what is allowed.
Names are compared without case, as Spark does. Reference: docs/reference/spark-options.md.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reput.errors import InvalidOption
from reput.format import names

EARLIEST: Final = -2
LATEST: Final = -1

PERMISSIVE = "PERMISSIVE"
DROPMALFORMED = "DROPMALFORMED"
FAILFAST = "FAILFAST"
SALVAGE = "SALVAGE"
MODES = (PERMISSIVE, DROPMALFORMED, FAILFAST, SALVAGE)

VIEWS = (
    "messages",
    "consumequeue",
    "index",
    "files",
    "gaps",
    "offsets",
    "topics",
    "checkpoint",
)
ISOLATIONS = ("committed", "half", "all")
SCANS = ("auto", "log", "consumequeue")
DECOMPRESS = ("auto", "none")

TOOLS_GROUP = "TOOLS_CONSUMER"
"""A group that every broker has: nothing has to be made for it, and nobody's offsets are its."""
COMMIT_NONE = "none"
COMMIT_ON_COMMIT = "onCommit"
COMMITS = (COMMIT_NONE, COMMIT_ON_COMMIT)
FROM_MASTER = "master"
FROM_SLAVE = "slave"
DISCOVERY_INTERVAL_MS: Final = 10_000
"""How long a stream of brokers goes by the routes and topics that it has been told."""

QueueOffsets = dict[str, dict[str, dict[int, int]]]
"""topic -> broker -> queue id -> number, as the JSON options have it."""


@dataclass(frozen=True)
class Bound:
    """One end of what to read, per queue: an offset, a time, or a word.

    The most specific that is set wins: ``timestamp_ms``, then ``timestamps``, then the rest.
    """

    word: str | None = None
    """``earliest`` or ``latest``."""
    group: str | None = None
    """From where this consumer group would read on."""
    offsets: QueueOffsets = field(default_factory=dict)
    """Queue offsets; ``EARLIEST`` and ``LATEST`` count."""
    timestamps: QueueOffsets = field(default_factory=dict)
    """Store times, ms."""
    timestamp_ms: int | None = None
    """One store time for all queues, ms."""

    @property
    def is_whole(self) -> bool:
        """Whether this bound leaves nothing out."""
        return (
            self.word is not None
            and self.timestamp_ms is None
            and not self.timestamps
            and not self.offsets
            and self.group is None
        )


@dataclass(frozen=True)
class LiveOptions:
    """Where brokers are, and how they are asked."""

    name_server: str
    """``host:port``, several separated by ``;``."""
    cluster: str | None = None
    """Only the brokers of this cluster."""
    brokers: frozenset[str] | None = None
    """Only the brokers of these names."""
    consumer_group: str = TOOLS_GROUP
    """In whose name messages are pulled."""
    group: str | None = None
    """Whose consumer offsets a stream moves."""
    commit_offsets: str = COMMIT_NONE
    read_from: str = FROM_MASTER
    """Who is asked first, of those that are there."""
    discovery_interval_ms: int | None = None
    """How often a stream looks for new topics and queues; None if nothing was said."""
    pull_batch_size: int = 32
    """Most messages a pull asks for; brokers have a limit of their own, usually 32."""
    pull_timeout_ms: int = 10_000
    """How long any answer may take."""
    retry_count: int = 3
    """How often a request is made again that got no answer, or a no that may pass."""
    retry_interval_ms: int = 1_000


@dataclass(frozen=True)
class TriggerLimits:
    """How much a micro-batch of a stream may, and should, hold."""

    max_offsets: int | None = None
    """Most messages."""
    max_bytes: int | None = None
    """Most bytes of log."""
    min_offsets: int | None = None
    """Fewest messages, until ``max_delay_ms`` is over."""
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True)
class ReadOptions:
    """Everything a read was told."""

    paths: tuple[str, ...]
    """Store folders; none where ``live`` is set."""
    live: LiveOptions | None = None
    """Read from brokers."""
    allow_live: bool = False
    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    assign: dict[str, dict[str, tuple[int, ...]]] | None = None
    start: Bound = Bound(word="earliest")
    end: Bound = Bound(word="latest")
    late_timestamp: str = "error"
    """When no message is as late as a starting timestamp: ``error`` or ``latest``."""
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
    """Name of the column that says what is wrong with a row; None leaves it out."""
    check_crc: bool = True
    view: str = "messages"
    scan: str = "auto"
    pushdown: bool = False
    """Whether predicates that Spark offers are taken."""
    broker: str = ""
    """Name to show in column ``broker``; empty: what the store's own tables tell."""
    trigger: TriggerLimits = TriggerLimits()
    """Of a stream."""

    @property
    def selects_topics(self) -> bool:
        """Whether topics were named one way or the other."""
        return self.topics is not None or self.topic_pattern is not None or self.assign is not None

    def by_broker(self) -> Iterator[tuple[str, Mapping[str, Mapping[str, Any]]]]:
        """Yield the options that are set by topic and broker: (name, topic -> broker -> queues)."""
        yield "assign", self.assign or {}
        for which, bound in (("starting", self.start), ("ending", self.end)):
            yield f"{which}Offsets", bound.offsets
            yield f"{which}OffsetsByTimestamp", bound.timestamps


CORRUPT_COLUMN = "_corrupt_record"
HIDDEN = "(hidden)"
"""Stands for a secret wherever options are shown."""

_SECRET_NAME = re.compile(r"secret|password|token|credential|access.?key", re.IGNORECASE)
_NAME_SERVER = ("nameServer", "rocketmq.namesrv.addr")
_LIVE_ONLY = (
    "cluster",
    "consumerGroup",
    "group",
    "commitOffsets",
    "readFrom",
    "discoveryIntervalMs",
    "pullBatchSize",
    "pullTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_STORE_ONLY = (
    "path",
    "paths",
    "allowLive",
    "startingPhysicalOffset",
    "endingPhysicalOffset",
    "columnNameOfCorruptRecord",
    "view",
    "scan",
)
_NOT_YET = {
    "accessKey": "left out: access control is not supported yet; use a broker without it",
    "secretKey": "left out: access control is not supported yet; use a broker without it",
    "securityToken": "left out: access control is not supported yet; use a broker without it",
    "tls.enable": "left out: TLS is not supported yet; brokers speak plain text on the same port",
    "namespace": "left out: topics have their full names, namespace%topic",
    "vipChannel": "left out: brokers are asked on the port that name servers tell",
    "suspendTimeout": "left out: pulls do not wait for messages, triggers look for them",
}

_STREAM_ONLY = {
    "maxOffsetsPerTrigger": "max_offsets",
    "maxBytesPerTrigger": "max_bytes",
    "minOffsetsPerTrigger": "min_offsets",
    "maxTriggerDelay": "max_delay_ms",
}
_VIEWS_INSTEAD = {
    "delay": f"topic={names.SCHEDULE_TOPIC}; resolveTopics=true shows where messages are going",
    "half": f"topic={names.HALF_TOPIC}; resolveTopics=true shows where messages are going",
    "dlq": f"subscribePattern={names.DLQ_PREFIX}.*",
}
_BATCH_ONLY = (
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("startingPhysicalOffset", "endingPhysicalOffset"),
)
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_TOPIC_OPTIONS = "topic (or topics, subscribe), subscribePattern, assign"


class Texts:
    """The options as text, without regard to case, remembering which were looked at."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): (name, str(value)) for name, value in options.items()}
        self._known: dict[str, str] = {}

    def text(self, *names: str) -> str | None:
        """Return the value that is set under one of these names."""
        self._known |= {name.lower(): name for name in names}
        given = [name for name in names if name.lower() in self._texts]
        if len(given) > 1:
            other = f"one of {', '.join(names)}, not {' and '.join(given)}"
            raise InvalidOption(given[1], self._texts[given[1].lower()][1], other)
        return self._texts[given[0].lower()][1].strip() if given else None

    def is_given(self, name: str) -> bool:
        """Whether it is set, without taking it for one that is known."""
        return name.lower() in self._texts

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidOption(name, text, "true or false")
        return text.lower() == "true"

    def number(self, name: str, least: int = 0) -> int | None:
        """Return a whole number of at most 63 bits."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?\d{1,19}", text) or not least <= int(text) < 1 << 63:
            raise InvalidOption(name, text, f"a whole number from {least} to {(1 << 63) - 1}")
        return int(text)

    def bounded(self, name: str, least: int, most: int, default: int) -> int:
        """Return a whole number within bounds."""
        number = self.number(name, least)
        if number is None:
            return default
        if number > most:
            raise InvalidOption(name, number, f"a whole number from {least} to {most}")
        return number

    def size(self, name: str, default: int) -> int:
        """Return a number of bytes, at least 1."""
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)b?", text.lower())
        if not match or int(match[1]) == 0:
            raise InvalidOption(name, text, "a size such as 67108864, 64k, 128m or 1g")
        return int(match[1]) << (10 * " kmgt".index(match[2] or " "))

    def duration_ms(self, name: str, default: int) -> int:
        """Return a duration in ms."""
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h|d)", text.lower())
        if not match:
            raise InvalidOption(name, text, "a duration such as 500ms, 30s, 15m or 1h")
        return int(match[1]) * _DURATION_MS[match[2]]

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of some words, in the letters of ``allowed``."""
        text = self.text(name)
        if text is None:
            return default
        for value in allowed:
            if value.lower() == text.lower():
                return value
        raise InvalidOption(name, text, ", ".join(allowed))

    def words(self, *names: str, separator: str = ",") -> frozenset[str] | None:
        """Return the words between separators, at least one."""
        text = self.text(*names)
        if text is None:
            return None
        words = frozenset(word.strip() for word in text.split(separator) if word.strip())
        if not words:
            raise InvalidOption(names[0], text, f"names separated by {separator!r}")
        return words

    def refuse_unknown(self) -> None:
        """Raise ``InvalidOption`` if there are options that nobody has looked at."""
        for key, (name, value) in self._texts.items():
            if key not in self._known:
                known = ", ".join(sorted(self._known.values(), key=str.lower))
                shown = HIDDEN if _SECRET_NAME.search(name) else value
                raise InvalidOption(name, shown, f"one of {known}")


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read of stores, or of brokers.

    What only a batch or only a stream can do is for ``check_batch`` and ``parse_stream`` to refuse:
    a data source gets its options before it is told which of them it is.

    Raises:
        InvalidOption: A value is not allowed, two options exclude each other, neither ``path`` nor
            ``nameServer`` is there, or a name is not known.
    """
    return _parse(Texts(options), "earliest")


def parse_stream(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a stream, which starts at the latest where nothing is said.

    Raises:
        InvalidOption: As ``parse``, and where a stream cannot do what is asked for.
    """
    texts = Texts(options)
    for name in _BATCH_ONLY:
        if texts.is_given(name):
            raise InvalidOption(
                name,
                texts.text(name),
                "left out: a stream has no end, and starts at offsets of queues or at times",
            )
    parsed = _parse(texts, "latest")
    live = parsed.live
    if live is not None and live.commit_offsets == COMMIT_ON_COMMIT and live.group is None:
        raise InvalidOption("commitOffsets", COMMIT_ON_COMMIT, "together with group")
    if live is not None and live.group is not None and not texts.is_given("commitOffsets"):
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


def _parse(texts: Texts, start: str) -> ReadOptions:
    live = _live(texts)
    view = (texts.text("view") or "").lower()
    if view in _VIEWS_INSTEAD:
        raise InvalidOption("view", view, f"messages, with {_VIEWS_INSTEAD[view]}")
    topics, pattern, assign = _topics(texts)
    mode_given = texts.text("mode") is not None
    mode = texts.choice("mode", MODES, FAILFAST)
    corrupt = texts.text("columnNameOfCorruptRecord")
    shows_damage = mode in (PERMISSIVE, SALVAGE) and mode_given
    parsed = ReadOptions(
        paths=_paths(texts) if live is None else (),
        live=live,
        allow_live=texts.flag("allowLive", False),
        topics=topics,
        topic_pattern=pattern,
        assign=assign,
        start=_bound(texts, "starting", start),
        end=_bound(texts, "ending", "latest"),
        late_timestamp=texts.choice(
            "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
        ),
        start_physical_offset=texts.number("startingPhysicalOffset"),
        end_physical_offset=texts.number("endingPhysicalOffset"),
        min_partitions=texts.number("minPartitions", 1),
        max_records_per_partition=texts.number("maxRecordsPerPartition", 1),
        max_bytes_per_partition=texts.size("maxBytesPerPartition", 128 * 1024 * 1024),
        fail_on_data_loss=texts.flag("failOnDataLoss", True),
        include_headers=texts.flag("includeHeaders", True),
        raw_properties=texts.flag("rawProperties", False),
        tags=_tags(texts),
        sql92=texts.text("sql92"),
        keys=_keys(texts),
        unique_keys=texts.words("uniqKey"),
        include_body=texts.flag("includeBody", True),
        columns=_columns(texts),
        decompress=texts.choice("decompress", DECOMPRESS, "auto") == "auto",
        charset=_charset(texts),
        isolation=texts.choice("readIsolation", ISOLATIONS, "committed"),
        include_system_topics=texts.flag("includeSystemTopics", True),
        include_retry=texts.flag("includeRetry", True),
        include_dlq=texts.flag("includeDlq", True),
        resolve_topics=texts.flag("resolveTopics", False),
        mode=mode,
        corrupt_column=(corrupt or CORRUPT_COLUMN) if shows_damage else None,
        check_crc=texts.flag("checkCrc", True),
        view=texts.choice("view", VIEWS, "messages"),
        scan=texts.choice("scan", SCANS, "auto"),
        pushdown=texts.flag("pushdown", False),
        broker=(texts.text("broker") or "") if live is None else "",
        trigger=_trigger(texts),
    )
    texts.refuse_unknown()
    _check_ranges(parsed)
    return parsed


def check_batch(options: ReadOptions) -> None:
    """Refuse what only a stream can do. Raises ``InvalidOption``."""
    numbers = [n for queues in _queues_of(options.start.offsets) for n in queues.values()]
    if options.start.word == "latest" or LATEST in numbers:
        raise InvalidOption(
            "startingOffsets",
            LATEST if LATEST in numbers else "latest",
            f"earliest, group:NAME or JSON with offsets from 0, or {EARLIEST} for earliest: a "
            "batch that starts at the latest reads nothing",
        )
    for name, field_name in _STREAM_ONLY.items():
        value = getattr(options.trigger, field_name)
        if value != getattr(TriggerLimits, field_name):
            raise InvalidOption(name, value, "left out in a batch read, which is one batch")
    live = options.live
    if live is not None and live.discovery_interval_ms is not None:
        raise InvalidOption(
            "discoveryIntervalMs",
            live.discovery_interval_ms,
            "left out in a batch read, which looks once",
        )
    if live is not None and live.commit_offsets != COMMIT_NONE:
        raise InvalidOption(
            "commitOffsets",
            live.commit_offsets,
            "none in a batch read: a batch does not tell its source that it went well, so there "
            "is no time at which offsets could be committed",
        )
    if live is not None and live.group is not None:
        raise InvalidOption(
            "group",
            live.group,
            "left out in a batch read, which commits no offsets; startingOffsets=group:NAME begins "
            "where a group is",
        )


def refuse_not_yet(texts: Texts) -> None:
    """Raise ``InvalidOption`` for options of connections that we do not have."""
    for name, allowed in _NOT_YET.items():
        if texts.is_given(name):
            value = HIDDEN if _SECRET_NAME.search(name) else texts.text(name)
            raise InvalidOption(name, value, allowed)


def name_servers(texts: Texts) -> str | None:
    """Return ``host:port``, several separated by ``;``, None if none are set."""
    text = texts.text(*_NAME_SERVER)
    if text is None:
        return None
    servers = ";".join(re.findall(r"[^\s;,]+", text))
    if not servers:
        raise InvalidOption(_NAME_SERVER[0], text, "host:port, several separated by ;")
    return servers


def _live(texts: Texts) -> LiveOptions | None:
    """Return the options of brokers, None if none are to be read."""
    refuse_not_yet(texts)
    servers = name_servers(texts)
    if servers is None:
        for name in _LIVE_ONLY:
            if (value := texts.text(name)) is not None:
                raise InvalidOption(name, value, "left out, unless nameServer is set")
        return None
    for name in _STORE_ONLY:
        if texts.is_given(name) and (name, texts.text(name)) != ("view", "messages"):
            allowed = "left out, where nameServer is set: it is about store folders"
            raise InvalidOption(name, texts.text(name), allowed)
    mode = texts.text("mode")
    if mode is not None and mode.upper() != FAILFAST:
        raise InvalidOption("mode", mode, f"{FAILFAST}, where nameServer is set")
    return LiveOptions(
        name_server=servers,
        cluster=texts.text("cluster") or None,
        brokers=texts.words("broker"),
        consumer_group=texts.text("consumerGroup") or TOOLS_GROUP,
        group=texts.text("group") or None,
        commit_offsets=texts.choice("commitOffsets", COMMITS, COMMIT_NONE),
        read_from=texts.choice("readFrom", (FROM_MASTER, FROM_SLAVE), FROM_MASTER),
        discovery_interval_ms=texts.number("discoveryIntervalMs", 1),
        pull_batch_size=texts.bounded("pullBatchSize", 1, 1 << 16, 32),
        pull_timeout_ms=texts.bounded("pullTimeoutMs", 1, 1 << 31, 10_000),
        retry_count=texts.bounded("fetchOffset.numRetries", 0, 1 << 16, 3),
        retry_interval_ms=texts.bounded("fetchOffset.retryIntervalMs", 0, 1 << 31, 1_000),
    )


def _paths(texts: Texts) -> tuple[str, ...]:
    text = texts.text("path")
    several = texts.text("paths")
    if several is not None:
        try:
            found = json.loads(several)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            found = None
        if text is not None or not found:
            raise InvalidOption("paths", several, "a JSON array of store folders, without path")
        return tuple(found)
    parts = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if not parts:
        raise InvalidOption(
            "path",
            text,
            "the store folder: .load('/path/to/store') or its URI; or nameServer to read brokers",
        )
    return parts


def _topics(
    texts: Texts,
) -> tuple[frozenset[str] | None, str | None, dict[str, dict[str, tuple[int, ...]]] | None]:
    topics = texts.words("topic", "topics", "subscribe")
    pattern = texts.text("subscribePattern")
    assign_text = texts.text("assign")
    named = ",".join(sorted(topics)) if topics is not None else None
    given = [one for one in (named, pattern, assign_text) if one is not None]
    if len(given) > 1:
        value = " and ".join(given)
        raise InvalidOption("subscribe", value, f"one of {_TOPIC_OPTIONS}, not two of them")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidOption(
                "subscribePattern", pattern, f"a regular expression ({error})"
            ) from None
    assign = None
    if assign_text is not None:
        shape = 'JSON {"topic": {"broker": [queue id, ...]}}'
        table = _json("assign", assign_text, shape)
        assign = {
            topic: {
                broker: tuple(_whole("assign", assign_text, one, shape) for one in queues)
                for broker, queues in _object("assign", assign_text, brokers, shape).items()
                if isinstance(queues, list) or _refuse("assign", assign_text, shape)
            }
            for topic, brokers in table.items()
        }
    return topics, pattern, assign


def _bound(texts: Texts, which: str, default: str) -> Bound:
    """Return one end of a read; ``default`` is where it is of which nothing is said."""
    name = f"{which}Offsets"
    text = texts.text(name)
    # An end before everything is never meant; a start behind everything is, by streams.
    words = ("earliest", "latest") if which == "starting" else ("latest",)
    timestamp = texts.number(f"{which}Timestamp")
    by_timestamp = texts.text(f"{name}ByTimestamp")
    timestamps = _queue_offsets(f"{name}ByTimestamp", by_timestamp, 0) if by_timestamp else {}
    word = default if text is None else words[0]
    group = None
    offsets: QueueOffsets = {}
    if text is not None and text.startswith("{"):
        offsets = _queue_offsets(name, text, EARLIEST)
        numbers = [number for queues in _queues_of(offsets) for number in queues.values()]
        if which == "ending" and EARLIEST in numbers:
            raise InvalidOption(name, text, f"offsets from 0, or {LATEST} for latest")
    elif text is not None and text.startswith("group:"):
        group = text.removeprefix("group:")
        if not group:
            raise InvalidOption(name, text, "group:NAME")
    elif text is not None and text.lower() in words:
        word = text.lower()
    elif text is not None:
        shape = 'group:NAME or JSON {"topic": {"broker": {"0": 23}}}'
        raise InvalidOption(name, text, f"{', '.join(words)}, {shape}")
    return Bound(word, group, offsets, timestamps, timestamp)


def _queues_of(offsets: QueueOffsets) -> list[dict[int, int]]:
    return [queues for brokers in offsets.values() for queues in brokers.values()]


def _trigger(texts: Texts) -> TriggerLimits:
    limits = TriggerLimits(
        max_offsets=texts.number("maxOffsetsPerTrigger", 1),
        max_bytes=texts.size("maxBytesPerTrigger", 0) or None,
        min_offsets=texts.number("minOffsetsPerTrigger", 1),
        max_delay_ms=texts.duration_ms("maxTriggerDelay", TriggerLimits.max_delay_ms),
    )
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        raise InvalidOption(
            "minOffsetsPerTrigger",
            limits.min_offsets,
            f"at most maxOffsetsPerTrigger, {limits.max_offsets}",
        )
    return limits


def _queue_offsets(name: str, text: str, least: int) -> QueueOffsets:
    shape = 'JSON {"topic": {"broker": {"queue id": number}}}'
    return {
        topic: {
            broker: {
                _whole(name, text, queue, shape): _whole(name, text, number, shape, least)
                for queue, number in _object(name, text, queues, shape).items()
            }
            for broker, queues in _object(name, text, brokers, shape).items()
        }
        for topic, brokers in _json(name, text, shape).items()
    }


def _json(name: str, text: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return _object(name, text, found, shape)


def _object(name: str, text: str, value: Any, shape: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(name, text, shape)
    return dict(value)


def _whole(name: str, text: str, value: Any, shape: str, least: int = 0) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value, is_number = int(value), True
    if not is_number or not least <= value < 1 << 63:
        _refuse(name, text, shape)
    return int(value)


def _refuse(name: str, text: str, shape: str) -> bool:
    raise InvalidOption(name, text, shape)


def _tags(texts: Texts) -> frozenset[str] | None:
    text = texts.text("tags")
    if text is None or text == "*":
        return None
    tags = frozenset(tag.strip() for tag in text.split("||") if tag.strip())
    if not tags:
        raise InvalidOption("tags", text, "TagA, TagA || TagB, or *")
    return tags


def _keys(texts: Texts) -> frozenset[str] | None:
    key = texts.text("key")
    several = texts.words("keyIn")
    if key is not None and several is not None:
        raise InvalidOption("key", key, "key or keyIn, not both")
    return frozenset((key,)) if key is not None else several


def _columns(texts: Texts) -> tuple[str, ...] | None:
    text = texts.text("columns")
    if text is None:
        return None
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _charset(texts: Texts) -> str | None:
    text = texts.text("charset")
    if text is None:
        return None
    try:
        b" ".decode(text, "replace")
    except (LookupError, ValueError):
        raise InvalidOption(
            "charset", text, "a character set Python knows, such as utf-8"
        ) from None
    return text


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
