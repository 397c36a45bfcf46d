"""The options of ``format("rocketmq")``: what they are called, what they may be, where they apply.

One row an option; a name has several rows where it means different things. ``parse`` reads what a
user has set by these rows, and every refusal names the option, its value and what is allowed.
The tables of docs/reference/spark-options.md are made from the rows by
``python tests/docs/test_spark_options.py``.
"""

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from reput.errors import InvalidOption
from reput.spark import option_kinds as kinds
from reput.spark.option_kinds import (
    COLUMNS,
    DURATION,
    FLAG,
    LOCAL_FOLDER,
    NAME,
    NAMES,
    SERVERS,
    SIZE,
    TEXT,
    TIMES,
    TOPIC,
    Kind,
    bound,
    choice,
    number,
    only,
)  # fmt: skip


class Use(enum.Flag):
    """What Spark does with a source."""

    READ = enum.auto()
    READ_STREAM = enum.auto()
    WRITE = enum.auto()
    WRITE_STREAM = enum.auto()


class Source(enum.Flag):
    """Where messages come from, or go to."""

    FOLDER = enum.auto()
    ARCHIVE = enum.auto()
    BROKERS = enum.auto()


READS: Final = Use.READ | Use.READ_STREAM
WRITES: Final = Use.WRITE | Use.WRITE_STREAM
FILES: Final = Source.FOLDER | Source.ARCHIVE
ANYWHERE: Final = FILES | Source.BROKERS

PERMISSIVE: Final = "PERMISSIVE"
DROPMALFORMED: Final = "DROPMALFORMED"
FAILFAST: Final = "FAILFAST"
SALVAGE: Final = "SALVAGE"

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""A group that every broker has, and that commits no offsets."""
COMMIT_NONE: Final = "none"
COMMIT_ON_COMMIT: Final = "onCommit"
FROM_MASTER: Final = "master"
FROM_SLAVE: Final = "slave"

BATCH: Final = "batch"
SYNC: Final = "sync"
ASYNC: Final = "async"
ONEWAY: Final = "oneway"
SEND_MODES: Final = (BATCH, SYNC, ASYNC, ONEWAY)
SKIP_NONE: Final = "none"
SKIP_DERIVED: Final = "derived"
SKIP_ALL: Final = "all"
FAIL_STATUSES: Final = ("FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")
"""The answers of brokers that have a message, but not as safely as they should."""
WRITE_ID_BYTES_MAX: Final = 255

HIDDEN: Final = "(hidden)"
"""Shown in place of secrets."""
_SECRET_NAME = re.compile(r"secret|password|token|credential|access.?key", re.IGNORECASE)
_NO_ACCESS_CONTROL = "left out: access control is not supported yet; use a broker without it"
NOT_YET: Final = {
    "accessKey": _NO_ACCESS_CONTROL,
    "secretKey": _NO_ACCESS_CONTROL,
    "securityToken": _NO_ACCESS_CONTROL,
    "tls.enable": "left out: TLS is not supported yet; brokers speak plain text on the same port",
    "namespace": "left out: topics have their full names, namespace%topic",
    "vipChannel": "left out: brokers are asked on the port that name servers tell",
    "suspendTimeout": "left out: pulls do not wait for messages, triggers look for them",
}
"""Options that other clients of RocketMQ have, and what to do instead."""


@dataclass(frozen=True)
class Option:
    """One option."""

    field: str
    """Field of ``ReadOptions``, ``SendOptions`` and the like that has its value."""
    names: str
    """Its name, then other names for the same, separated by spaces."""
    kind: Kind
    default: str | None
    """The text that counts where nothing is said, None if there is none."""
    meaning: str
    uses: Use
    sources: Source
    without: str = ""
    """What the reference says in place of a default."""
    elsewhere: str = ""
    """What a read says where only the other kind of read has the option."""

    @property
    def name(self) -> str:
        """The name that refusals have."""
        return self.names.split()[0]

    @property
    def keys(self) -> list[str]:
        """All names, in small letters."""
        return self.names.lower().split()


_read = functools.partial(Option, uses=READS, sources=ANYWHERE)
_files = functools.partial(Option, uses=READS, sources=FILES)
_live = functools.partial(Option, uses=READS, sources=Source.BROKERS)
_batch = functools.partial(
    Option, uses=Use.READ, sources=ANYWHERE,
    elsewhere="left out: a stream has no end, and starts at offsets of queues or at times",
)  # fmt: skip
_batch_of_files = functools.partial(_batch, sources=FILES)
_stream = functools.partial(
    Option, uses=Use.READ_STREAM, sources=Source.FOLDER | Source.BROKERS,
    elsewhere="left out in a batch read, which is one batch",
)  # fmt: skip
_send = functools.partial(Option, uses=WRITES, sources=Source.BROKERS)
_store = functools.partial(Option, uses=WRITES, sources=Source.FOLDER)
_write = functools.partial(Option, uses=WRITES, sources=Source.FOLDER | Source.BROKERS)

# fmt: off
SECTIONS: Final[dict[str, tuple[Option, ...]]] = {
    "Where": (
        _files("path", "path", kinds.FOLDERS, None, without="required, or `nameServer`", meaning=
            "The store's root, the folder that holds `commitlog`, or what `.load(...)` is given. Or an "
            "[archive](../how-to/archive-a-store.md) of a store. A URI (`s3://…`, `gs://…`, `hdfs://…`) is read in ranges "
            "through pyarrow: [credentials and more](../how-to/run-on-a-cluster.md#stores-behind-uris)"),
        _files("paths", "paths", kinds.PATHS, None, "The same as a JSON array; what `.load([...])` sets"),
        _files("allow_live", "allowLive", FLAG, "false", sources=FILES, meaning=
            "Read although a broker is running on the store; reading stops at the last whole record. Without it such a "
            "store is refused"),
        _files("broker", "broker", NAME, None, without="from the store's tables", meaning=
            "Name for column `broker`, and for the JSON options below"),
    ),
    "Which messages": (
        _read("topics", "topic topics subscribe", NAMES, None, "Topics to read", without="all"),
        _read("topic_pattern", "subscribePattern", kinds.PATTERN, None, "The whole topic name must match"),
        _read("assign", "assign", kinds.ASSIGN, None, "Queues to read. One of the three ways to name topics at most"),
        _read("start_offsets", "startingOffsets", bound("earliest", "latest"), "earliest",
            "`group:NAME` is where that consumer group would read on; in JSON -2 is earliest. Queues that are not named are "
            "read from their start. `latest`, and -1 in JSON, are for streams"),
        _batch("end_offsets", "endingOffsets", bound("latest"), "latest", "In JSON -1 is latest; the end is not included"),
        _read("start_timestamp_ms", "startingTimestamp", number(), None,
            "Store time in ms since the epoch: from the first message at or after it"),
        _batch("end_timestamp_ms", "endingTimestamp", number(), None, "Up to and without the first message at or after it"),
        _read("start_timestamps", "startingOffsetsByTimestamp", TIMES, None,
            "Store times per queue. Precedence: timestamp, by timestamp, offsets"),
        _batch("end_timestamps", "endingOffsetsByTimestamp", TIMES, None, "The same for the end"),
        _read("late_timestamp", "startingOffsetsByTimestampStrategy", choice("error", "latest"), "error",
            "What to do when no message is as late as a time to start at; `latest` reads nothing of that queue"),
        _batch_of_files("start_physical_offset", "startingPhysicalOffset", number(), None, "A byte of the commit log"),
        _batch_of_files("end_physical_offset", "endingPhysicalOffset", number(), None, "The same; the end is not included"),
        _read("tags", "tags", kinds.TAGS, None, "Tags to read"),
        _read("key", "key", TEXT, None,
            "Messages that carry this key; found through the index, and by scanning what the index does not cover"),
        _read("key_in", "keyIn", NAMES, None, "The same, for one of these keys"),
        _read("unique_keys", "uniqKey", NAMES, None, "The same for the ids that the producer's client gave"),
        _read("sql92", "sql92", TEXT, None,
            "A RocketMQ filter expression over properties, `a > 5 AND b = 'x'`; see [sql92](../formats/sql92.md); a warning "
            "names what RocketMQ ignores of it"),
        _read("isolation", "readIsolation", choice("committed", "half", "all"), "committed",
            "`committed` leaves out half messages and their op messages, `half` only the op messages, `all` nothing; without "
            "effect on topics that are named"),
        _read("include_system_topics", "includeSystemTopics", FLAG, "true",
            "Whether system topics are read when no topic is named"),
        _read("include_retry", "includeRetry", FLAG, "true", "The same for `%RETRY%` topics"),
        _read("include_dlq", "includeDlq", FLAG, "true", "The same for `%DLQ%` topics"),
        _read("fail_on_data_loss", "failOnDataLoss", FLAG, "true",
            "Fail when a named topic or queue is not there, or named offsets are no longer or not yet; `false` reads what "
            "there is and logs the rest"),
    ),
    "What of them": (
        _read("columns", "columns", COLUMNS, None, without="all", meaning=
            "Columns in the order wanted. Spark cannot tell a Python source which columns it needs, so this is how to read "
            "fewer; a `.schema(...)` with some of the columns does the same"),
        _read("include_body", "includeBody", FLAG, "true", "`false` leaves out column `body`"),
        _read("include_headers", "includeHeaders", FLAG, "true", "`false` leaves out column `properties`"),
        _read("raw_properties", "rawProperties", FLAG, "false",
            "Adds column `raw_properties`, the property string as stored"),
        _read("decompress", "decompress", kinds.is_word("auto", "none"), "auto",
            "`auto` unpacks zlib, lz4 and zstd bodies, `none` gives them as stored"),
        _read("charset", "charset", kinds.CHARSET, None, "Makes `body` a string in this character set"),
        _read("resolve_topics", "resolveTopics", FLAG, "false",
            "`topic` and `queue_id` of delayed and half messages say where the message is going"),
        _files("view", "view", kinds.VIEW, "messages",
            "What to read: see [the schema](spark-schema.md). Streams and archives have `messages` only"),
    ),
    "Running brokers": (
        _live("name_server", "nameServer rocketmq.namesrv.addr", SERVERS, None,
            "Name servers: reads brokers instead of a folder"),
        _live("cluster", "cluster", NAME, None, "Read only the brokers of this cluster", without="all"),
        _live("brokers", "broker", NAMES, None, "Read only the brokers of these names", without="all"),
        _live("consumer_group", "consumerGroup", NAME, TOOLS_GROUP,
            "In whose name messages are pulled. The default is a group that every broker has; another one may be created by "
            "a broker that creates groups by itself"),
        _live("pull_batch_size", "pullBatchSize", number(1, 1 << 16), "32",
            "Most messages a pull asks for. Brokers have limits of their own: usually 32 messages or 256 KB from memory, 8 "
            "or 64 KB from disk"),
        _live("pull_timeout_ms", "pullTimeoutMs", number(1, 1 << 31), "10000", "How long each answer may take"),
        _live("retry_count", "fetchOffset.numRetries", number(0, 1 << 16), "3",
            "How often anything is asked again that got no answer, or was refused for a reason that may pass; with a new "
            "route where the old one may be wrong"),
        _live("retry_interval_ms", "fetchOffset.retryIntervalMs", number(0, 1 << 31), "1000", "How long to wait before"),
        _live("read_from", "readFrom", choice(FROM_MASTER, FROM_SLAVE), FROM_MASTER,
            "`slave` asks the slave of the lowest id first, if there is one; slaves of 5.x need `slaveReadEnable`"),
        _live("commit_offsets", "commitOffsets", choice(COMMIT_NONE, COMMIT_ON_COMMIT), COMMIT_NONE, uses=Use.READ_STREAM,
            meaning="`onCommit` commits offsets under `group` as each micro-batch is done", elsewhere=
            "none in a batch read: a batch does not tell its source that it went well, so there is no time at which "
            "offsets could be committed"),
        _live("group", "group", NAME, None, "The group that offsets are committed for", uses=Use.READ_STREAM, elsewhere=
            "left out in a batch read, which commits no offsets; startingOffsets=group:NAME begins where a group is"),
        _live("discovery_interval_ms", "discoveryIntervalMs", number(1), None, without="`10000`", uses=Use.READ_STREAM,
            meaning="How often to look for new topics and queues", elsewhere="left out in a batch read, which looks once"),
        _live("view", "view", only("messages", "left out, where nameServer is set: it is about store folders"), "messages",
            "The other views are of folders"),
        _live("mode", "mode", only(FAILFAST, f"{FAILFAST}, where nameServer is set"), FAILFAST,
            "The other [modes](#damage) are of folders"),
    ),
    "Streams": (
        _stream("max_offsets", "maxOffsetsPerTrigger", number(1), None, without="all", meaning=
            "Most messages of a micro-batch, before filters such as `tags`. Each queue that has any gives one, and the rest "
            "is shared by what queues have; where there are more queues than messages to take, the oldest come first"),
        _stream("max_bytes", "maxBytesPerTrigger", SIZE, None, without="all", meaning=
            "Most bytes of log of a micro-batch. Of folders exact: consume queues hold the sizes; of brokers about, as the "
            "first 32 messages that wait in a queue tell. A message that is larger comes alone"),
        _stream("min_offsets", "minOffsetsPerTrigger", number(1), None, without="1", meaning=
            "Fewest messages of a micro-batch, until `maxTriggerDelay` is over"),
        _stream("max_delay_ms", "maxTriggerDelay", DURATION, "15m",
            "How long a message waits for `minOffsetsPerTrigger`. Not with `availableNow`, which ends"),
    ),
    "Damage": (
        _files("mode", "mode", choice(PERMISSIVE, DROPMALFORMED, FAILFAST, SALVAGE), FAILFAST, "See below"),
        _files("corrupt_column", "columnNameOfCorruptRecord", NAME, "_corrupt_record",
            "Name of the column that modes PERMISSIVE and SALVAGE add"),
        _read("check_crc", "checkCrc", FLAG, "true",
            "Compare bodies with BODYCRC, and records with `__CRC32#` where they have it"),
    ),
    "How": (
        _files("scan", "scan", choice("auto", "log", "consumequeue"), "auto",
            "`auto` picks the cheapest way that misses nothing: by index, by consume queue or by log. `consumequeue` and "
            "`log` force one"),
        _read("max_bytes_per_partition", "maxBytesPerPartition", SIZE, "128m", "Most bytes of log a partition reads"),
        _read("max_records_per_partition", "maxRecordsPerPartition", number(1), None,
            "Most messages a partition reads; exact by consume queue, about right by log"),
        _read("min_partitions", "minPartitions", number(1), None, "Fewest partitions, if there is enough to read"),
        _read("pushdown", "pushdown", FLAG, "false", "`true` takes predicates from Spark; see below"),
    ),
    "Writing": (
        _write("topic", "topic", TOPIC, None, "Topic of all messages", without="column `topic`"),
        _write("ignore_read_columns", "ignoreReadColumns", FLAG, "false",
            "Leave out the columns of a read that say nothing about a message to be written (`queue_offset`, "
            "`store_timestamp`, …), and properties that brokers set"),
        _write("checkpoint", "checkpointLocation", TEXT, None, uses=Use.WRITE_STREAM, meaning=
            "Spark's own: what makes it the same query when it starts again"),
    ),
    "Writing to brokers": (
        _send("name_server", "nameServer rocketmq.namesrv.addr", SERVERS, None, "Name servers", without="required"),
        _send("brokers", "broker", NAMES, None, "Send to the brokers of these names only", without="all"),
        _send("mode", "sendMode", choice(*SEND_MODES), BATCH,
            "`batch`: messages of a queue go together. `sync`: one by one. `async`: one by one, many at a time, in no order. "
            "`oneway`: without answers, so that what a broker does not take is lost"),
        _send("batch_bytes", "batchBytes", SIZE, "256k",
            "About how large a request of mode `batch` gets; it has 1024 messages at most"),
        _send("window_count", "maxInFlight", number(1, 1 << 16), "256",
            "Requests of a task that wait for an answer; in modes `batch` and `sync` never two of one queue"),
        _send("timeout_ms", "sendTimeoutMs", number(1, (1 << 31) - 1), "3000", "How long an answer may take"),
        _send("retry_count", "send.numRetries", number(0, 1 << 16), "20",
            "How often a request is made again that got no answer, or a no that may pass"),
        _send("retry_interval_ms", "send.retryIntervalMs", number(0, (1 << 31) - 1), "500", "How long to wait before that"),
        _send("fail_on", "failOn", kinds.statuses(*FAIL_STATUSES), ",".join(FAIL_STATUSES),
            "Answers of brokers that have stored a message, but not safely, and make the task fail"),
        _send("compress_over_bytes", "compressOverBytes", number(0, (1 << 31) - 1), "4096",
            "Bodies of this size or more go by themselves, packed with zlib if that helps; 0: none"),
        _send("max_message_bytes", "maxMessageBytes", SIZE, "4m",
            "Larger bodies are refused with their row; brokers have a `maxMessageSize` of their own"),
        _send("idempotent", "idempotent", FLAG, "true",
            "Derive unique keys from what is written; `false`: new ones at each try"),
        _send("skip_present", "skipPresent", choice(SKIP_DERIVED, SKIP_ALL, SKIP_NONE), None,
            without="`derived`, `none` without derived keys or answers", meaning=
            "Leave out what brokers have already: `derived`: of a task that is tried again, by derived keys; `all`: any row "
            "whose key is there, a question for each; `none`"),
        _send("write_id", "writeId", kinds.matching(rf"[\x21-\x7e]{{1,{WRITE_ID_BYTES_MAX}}}",
            f"1 to {WRITE_ID_BYTES_MAX} visible ASCII characters"), None, uses=Use.WRITE, meaning=
            "A name for what is written, so that a job that runs again is recognised"),
        _send("producer_group", "producerGroup", NAME, "SPARK_SINK", "In whose name messages are sent"),
    ),
    "Writing a store": (
        _store("path", "path", LOCAL_FOLDER, None, without="required", meaning=
            "The store's folder: a whole path, the same for driver and workers. New, empty, or a store that nobody has open"),
        _store("keeps_store_times", "keepStoreTimestamps", FLAG, "false",
            "Column `store_timestamp` is when a message was stored. Times never go back in a log: an earlier one is raised "
            "to that before it"),
        _store("queue_count", "queues", number(1, 65_535), "8",
            "Queues of topics that the store does not have; more where a row names a higher one"),
        _store("store_host", "storeHost", kinds.HOST, "127.0.0.1:10911", "Address in message ids, and of the sender"),
        _store("config", "config", TEXT, None,
            "The broker's `broker.conf`: sizes, limits, delay levels, `enabledAppendPropCRC`"),
        _store("mapped_file_size_commit_log", "mappedFileSizeCommitLog", number(1), None, without="RocketMQ's", meaning=
            "Bytes of a log file; this and the sizes below win over `config`"),
        _store("mapped_file_size_consume_queue", "mappedFileSizeConsumeQueue", number(1), None, without="RocketMQ's",
            meaning="Bytes of a queue file"),
        _store("max_hash_slot_num", "maxHashSlotNum", number(1), None, "Slots of an index file", without="RocketMQ's"),
        _store("max_index_num", "maxIndexNum", number(1), None, "Entries of an index file", without="RocketMQ's"),
        _store("max_message_size", "maxMessageSize", number(1), None, "Largest body, bytes", without="RocketMQ's"),
    ),
}
# fmt: on
"""The rows, by their section of the reference page."""

OPTIONS: Final = tuple(option for options in SECTIONS.values() for option in options)


def texts_of(options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return (name as it was given, text) by the name in small letters: Spark ignores case."""
    return {name.lower(): (name, str(value).strip()) for name, value in options.items()}


def parse(options: Mapping[str, str], uses: Use, source: Source, **defaults: str) -> dict[str, Any]:
    """Return the values of options by field; None of what is not set and has no default.

    Args:
        options: What the user has set.
        uses: What it is for; both uses of reads, or of writes, if that is not known yet.
        source: What is read, or written to.
        **defaults: Texts that count where nothing is said, by field.

    Raises:
        InvalidOption: A value is not allowed, a name is not known, is set twice, or is not for
            this use or source.
    """
    texts = texts_of(options)
    kin = [row for row in OPTIONS if row.uses & (READS if uses & READS else WRITES)]
    rows = [row for row in kin if row.uses & uses and row.sources & source]
    known = {key for row in rows for key in row.keys}
    for key, (name, text) in texts.items():
        if key not in known:
            _refuse_elsewhere(name, text, [row for row in kin if key in row.keys], source)
    values: dict[str, Any] = {}
    for row in rows:
        default = defaults.get(row.field, row.default)
        given = [texts[key] for key in row.keys if key in texts]
        if len(given) > 1:
            allowed = ", ".join(row.names.split())
            both = " and ".join(name for name, _ in given)
            raise InvalidOption(given[1][0], given[1][1], f"one of {allowed}, not {both}")
        value = _decoded(row, given[0][1]) if given else None
        values[row.field] = (
            row.kind.decode(default) if value is None and default is not None else value
        )
    for key, (name, text) in texts.items():
        if key not in known:
            choices = {one for row in rows for one in row.names.split()} | {"nameServer"}
            allowed = ", ".join(sorted(choices, key=str.lower))
            raise InvalidOption(name, _shown(name, text), f"one of {allowed}")
    return values


def _decoded(row: Option, text: str) -> Any:
    try:
        return row.kind.decode(text)
    except kinds.Refused as refused:
        raise InvalidOption(row.name, text, str(refused)) from None
    except ValueError:
        raise InvalidOption(row.name, text, row.kind.allowed) from None


def _refuse_elsewhere(name: str, text: str, rows: list[Option], source: Source) -> None:
    """Refuse a name that only other uses or sources have; return if none has it."""
    for not_yet, allowed in NOT_YET.items():
        if name.lower() == not_yet.lower():
            raise InvalidOption(not_yet, _shown(name, text), allowed)
    for row in rows:
        if row.sources & source:
            raise InvalidOption(row.name, text, row.elsewhere)
    if rows and source is Source.BROKERS:
        allowed = "left out, where nameServer is set: it is about store folders"
        raise InvalidOption(rows[0].name, text, allowed)
    if rows:
        raise InvalidOption(rows[0].name, text, "left out, unless nameServer is set")


def _shown(name: str, text: str) -> str:
    return HIDDEN if _SECRET_NAME.search(name) else text
