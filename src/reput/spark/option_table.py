"""The options of ``format("rocketmq")``: names, values, and where they apply.

One row per option; a name with several meanings has several rows. ``parse`` reads a user's options
by these rows; each error has the option, its value and the allowed values. The tables of
docs/reference/spark-options.md are generated from the rows by ``python
tests/docs/test_spark_options.py``.
"""

import enum
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reput.errors import InvalidOption, one_of
from reput.spark import option_kinds as kinds
from reput.spark.option_kinds import (
    COLUMNS,
    DURATION,
    FLAG,
    LOCAL_FOLDER,
    NAME,
    NAMES,
    NAMESPACE,
    SECRET,
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
    """Use of a source by Spark."""

    READ = enum.auto()
    READ_STREAM = enum.auto()
    WRITE = enum.auto()
    WRITE_STREAM = enum.auto()


class Source(enum.Flag):
    """Source or target of messages."""

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
"""Group that every broker has, without consumer offsets."""
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
"""Statuses of brokers that stored a message less safely than configured."""
WRITE_ID_BYTES_MAX: Final = 255

HIDDEN: Final = "(hidden)"
"""Replacement of secrets in output."""
_SECRET_NAME = re.compile(r"secret|password|token|credential|access.?key", re.IGNORECASE)
NOT_YET: Final = {
    "namespace": "left out with a store folder, whose topics have their full names: namespace%topic",
    "vipChannel": "left out: the port of name servers' routes is used",
    "suspendTimeout": "left out: pulls are not held; each trigger polls",
}
"""Options of other RocketMQ clients that are not supported at all, or not with folders, and their
replacements."""


@dataclass(frozen=True)
class Option:
    """One option."""

    field: str
    """Field of ``ReadOptions``, ``SendOptions`` or others with its value."""
    names: str
    """Name and aliases, separated by spaces."""
    kind: Kind
    default: str | None
    """Default as a text; None without a default."""
    meaning: str
    uses: Use
    sources: Source
    without: str = ""
    """Text of the reference in place of a default."""
    elsewhere: str = ""
    """Error of a read of the other kind, to which the option does not apply."""

    @property
    def name(self) -> str:
        """Name used in errors."""
        return self.names.split()[0]

    @property
    def keys(self) -> list[str]:
        """All names, in lower case."""
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
def _access(option: Callable[..., Option]) -> tuple[Option, ...]:
    return (
        option("access_key", "accessKey", NAME, None, "Account or user that signs the requests, for brokers with "
            "[access control](../how-to/use-secured-clusters.md)"),
        option("secret_key", "secretKey", SECRET, None, "Its secret key"),
        option("security_token", "securityToken", SECRET, None, "Token of temporary credentials"),
        option("namespace", "namespace", NAMESPACE, None, "[Namespace](#namespaces) of topics and groups; the address "
            "`http://MQ_INST_1_b.host:8080` of name servers sets it, too"),
        option("namespace_v2", "namespaceV2", NAME, None, "Namespace that all requests name beside the unchanged names, as clients "
            "of 5.x do; RocketMQ's brokers ignore it"),
        option("use_tls", "tls.enable useTLS", FLAG, "false",
            "Use [TLS](../how-to/secure-a-broker.md#spark) for all connections"),
        option("tls_trust_cert_path", "tls.client.trustCertPath", NAME, None, without="any server is accepted", meaning=
            "PEM file with the authorities that may issue the servers' certificates; this file and the next ones are read by the "
            "driver and by all workers"),
        option("tls_cert_path", "tls.client.certPath", NAME, None, "PEM file with the certificate of the client"),
        option("tls_key_path", "tls.client.keyPath", NAME, None, "PEM file with its private key"),
        option("tls_key_password", "tls.client.keyPassword", SECRET, None, "Password of that key, if it is encrypted"),
    )


SECTIONS: Final[dict[str, tuple[Option, ...]]] = {
    "Where": (
        _files("path", "path", kinds.FOLDERS, None, without="required, or `nameServer`", meaning=
            "The store's root, which contains `commitlog`; also the argument of `.load(...)`. Or an "
            "[archive](../how-to/archive-a-store.md) of a store. A URI (`s3://…`, `gs://…`, `hdfs://…`) is read in ranges "
            "through pyarrow: [credentials and more](../how-to/run-on-a-cluster.md#stores-at-uris)"),
        _files("paths", "paths", kinds.PATHS, None, "The same as a JSON array; set by `.load([...])`"),
        _files("allow_live", "allowLive", FLAG, "false", sources=FILES, meaning=
            "Read a store that a broker is using, up to the last whole record. Otherwise such a store is "
            "refused"),
        _files("broker", "broker", NAME, None, without="from the store's tables", meaning=
            "Name for column `broker`, and for the JSON options below"),
    ),
    "Which messages": (
        _read("topics", "topic topics subscribe", NAMES, None, "Topics to read", without="all"),
        _read("topic_pattern", "subscribePattern", kinds.PATTERN, None, "Regular expression for whole topic names"),
        _read("assign", "assign", kinds.ASSIGN, None, "Queues to read. Set at most one of the three options that select topics"),
        _read("start_offsets", "startingOffsets", bound("earliest", "latest"), "earliest",
            "`group:NAME` starts at that group's consumer offsets; in JSON -2 is earliest. Other queues are "
            "read from their start. `latest`, and -1 in JSON, are for streams"),
        _batch("end_offsets", "endingOffsets", bound("latest"), "latest", "In JSON -1 is latest; the end is exclusive"),
        _read("start_timestamp_ms", "startingTimestamp", kinds.TIME, None,
            "Store time: from the first message at or after it"),
        _batch("end_timestamp_ms", "endingTimestamp", kinds.TIME, None, "Ends before the first message at or after it"),
        _read("start_timestamps", "startingOffsetsByTimestamp", TIMES, None,
            "Store times per queue. Precedence: timestamp, by timestamp, offsets"),
        _batch("end_timestamps", "endingOffsetsByTimestamp", TIMES, None, "The same for the end"),
        _read("late_timestamp", "startingOffsetsByTimestampStrategy", choice("error", "latest"), "error",
            "Behaviour if a queue has no message at or after the start time; `latest` reads nothing of it"),
        _batch_of_files("start_physical_offset", "startingPhysicalOffset", number(), None, "A byte of the commit log"),
        _batch_of_files("end_physical_offset", "endingPhysicalOffset", number(), None, "The same; the end is exclusive"),
        _read("tags", "tags", kinds.TAGS, None, "Tags to read"),
        _read("key", "key", TEXT, None,
            "Messages with this key, found by the index and a scan of the range that the index lacks"),
        _read("key_in", "keyIn", NAMES, None, "The same, for one of these keys"),
        _read("unique_keys", "uniqKey", NAMES, None, "The same for unique keys"),
        _read("sql92", "sql92", TEXT, None,
            "A RocketMQ filter expression over properties, `a > 5 AND b = 'x'`; see [sql92](../formats/sql92.md); a warning "
            "names the part that RocketMQ ignores"),
        _read("isolation", "readIsolation", choice("committed", "half", "all"), "committed",
            "`committed` excludes half and op messages, `half` only op messages, `all` nothing; without "
            "effect on topics selected by name"),
        _read("include_system_topics", "includeSystemTopics", FLAG, "true",
            "Read system topics if no topic is selected"),
        _read("include_retry", "includeRetry", FLAG, "true", "The same for `%RETRY%` topics"),
        _read("include_dlq", "includeDlq", FLAG, "true", "The same for `%DLQ%` topics"),
        _read("fail_on_data_loss", "failOnDataLoss", FLAG, "true",
            "Fail if a selected topic, queue or offset does not exist; `false` reads the rest and "
            "logs the loss"),
    ),
    "Which columns": (
        _read("columns", "columns", COLUMNS, None, without="all", meaning=
            "Columns, in order. Spark does not pass the columns of a query to a Python source, so that this option is the way to read "
            "fewer; a `.schema(...)` with some of the columns does the same"),
        _read("include_body", "includeBody", FLAG, "true", "`false` omits column `body`"),
        _read("include_headers", "includeHeaders", FLAG, "true", "`false` omits column `properties`"),
        _read("raw_properties", "rawProperties", FLAG, "false",
            "Adds column `raw_properties`, the property string as stored"),
        _read("decompress", "decompress", kinds.is_word("auto", "none"), "auto",
            "`auto` decompresses zlib, lz4 and zstd bodies, `none` returns them as stored"),
        _read("charset", "charset", kinds.CHARSET, None, "Makes `body` a string in this character set"),
        _read("resolve_topics", "resolveTopics", FLAG, "false",
            "`topic` and `queue_id` of delayed and half messages are the final ones"),
        _files("view", "view", kinds.VIEW, "messages",
            "View to read: see [the schema](spark-schema.md). Streams and archives have `messages` only"),
    ),
    "Running brokers": (
        _live("name_server", "nameServer rocketmq.namesrv.addr", SERVERS, None,
            "Name servers: reads brokers instead of a folder"),
        *_access(_live),
        _live("cluster", "cluster", NAME, None, "Read only the brokers of this cluster", without="all"),
        _live("brokers", "broker", NAMES, None, "Read only the brokers of these names", without="all"),
        _live("consumer_group", "consumerGroup", NAME, TOOLS_GROUP,
            "Group of the pulls. Every broker has the default; another group may be auto-created by "
            "a broker"),
        _live("pull_batch_size", "pullBatchSize", number(1, 1 << 16), "32",
            "Maximum number of messages per pull. Brokers have their own limits: usually 32 messages or 256 KB from memory, 8 "
            "or 64 KB from disk"),
        _live("pull_timeout_ms", "pullTimeoutMs", number(1, 1 << 31), "10000", "Timeout of a reply"),
        _live("retry_timeout_ms", "retryTimeout", DURATION, "3m",
            "Time for which a request without a reply is repeated: a broker or name server may be away that long. The route is "
            "refreshed if it may be outdated. After an error in a reply there are 3 retries"),
        _live("retry_count", "fetchOffset.numRetries", number(0, 1 << 16), None, without="as many as `retryTimeout` allows",
            meaning="Maximum number of retries of a request, whatever its error"),
        _live("retry_interval_ms", "fetchOffset.retryIntervalMs", number(0, 1 << 31), "1000", "Delay before a retry"),
        _live("read_from", "readFrom", choice(FROM_MASTER, FROM_SLAVE), FROM_MASTER,
            "`slave` prefers the slave with the lowest id, if any; slaves of 5.x need `slaveReadEnable`"),
        _live("commit_offsets", "commitOffsets", choice(COMMIT_NONE, COMMIT_ON_COMMIT), COMMIT_NONE, uses=Use.READ_STREAM,
            meaning="`onCommit` commits consumer offsets of `group` after each micro-batch", elsewhere=
            "none in a batch read: Spark does not notify the source of a batch's success, so that "
            "offsets cannot be committed"),
        _live("group", "group", NAME, None, "Group whose consumer offsets are committed", uses=Use.READ_STREAM, elsewhere=
            "left out in a batch read, which commits no offsets; startingOffsets=group:NAME starts at a group's consumer offsets"),
        _live("discovery_interval_ms", "discoveryIntervalMs", number(1), None, without="`10000`", uses=Use.READ_STREAM,
            meaning="Interval of discovering topics and queues", elsewhere="left out in a batch read, which discovers once"),
        _live("view", "view", kinds.LIVE_VIEW, "messages",
            "View to read: the other views are of folders, and streams have `messages` only"),
        _live("scan", "scan", choice("auto", "consumequeue"), "auto",
            "`auto` finds messages with a `key`, `keyIn` or `uniqKey` by the brokers' index; `consumequeue` reads everything that the "
            "other options select"),
        _live("mode", "mode", only(FAILFAST, f"{FAILFAST}, where nameServer is set"), FAILFAST,
            "The other [modes](#damage) are of folders"),
    ),
    "Streams": (
        _stream("max_offsets", "maxOffsetsPerTrigger", number(1), None, without="all", meaning=
            "Maximum number of messages of a micro-batch, before filters such as `tags`. Each queue contributes one, and the rest in "
            "proportion to the backlogs; with more queues than messages to take, the oldest messages come first"),
        _stream("max_bytes", "maxBytesPerTrigger", SIZE, None, without="all", meaning=
            "Maximum log bytes of a micro-batch. Exact for folders, whose consume queues have the sizes; estimated for brokers, from the "
            "first 32 waiting messages of a queue. A larger message comes alone"),
        _stream("min_offsets", "minOffsetsPerTrigger", number(1), None, without="1", meaning=
            "Minimum number of messages of a micro-batch, until `maxTriggerDelay` is over"),
        _stream("max_delay_ms", "maxTriggerDelay", DURATION, "15m",
            "Maximum time that a message waits for `minOffsetsPerTrigger`; not with `availableNow`"),
    ),
    "Damage": (
        _files("mode", "mode", choice(PERMISSIVE, DROPMALFORMED, FAILFAST, SALVAGE), FAILFAST, "See below"),
        _files("corrupt_column", "columnNameOfCorruptRecord", NAME, "_corrupt_record",
            "Name of the column that modes PERMISSIVE and SALVAGE add"),
        _read("check_crc", "checkCrc", FLAG, "true",
            "Verify BODYCRC and, if present, `__CRC32#`"),
    ),
    "How": (
        _files("scan", "scan", choice("auto", "log", "consumequeue"), "auto",
            "`auto` chooses the cheapest complete way: by index, by consume queue or by log. `consumequeue` and "
            "`log` force one"),
        _read("max_bytes_per_partition", "maxBytesPerPartition", SIZE, "128m", "Maximum log bytes per partition"),
        _read("max_records_per_partition", "maxRecordsPerPartition", number(1), None,
            "Maximum number of messages per partition; exact by consume queue, approximate by log"),
        _read("min_partitions", "minPartitions", number(1), None, "Minimum number of partitions, if there is enough to read"),
        _batch("pushdown", "pushdown", FLAG, "false", "`true` accepts predicates from Spark; see below", elsewhere=
            "left out: Spark passes no predicates to the source of a stream"),
    ),
    "Writing": (
        _write("topic", "topic", TOPIC, None, "Topic of all messages", without="column `topic`"),
        _write("ignore_read_columns", "ignoreReadColumns", FLAG, "false",
            "Ignore the columns of a read that are not part of a message to write (`queue_offset`, "
            "`store_timestamp`, …), and properties that brokers set"),
        _write("checkpoint", "checkpointLocation", TEXT, None, uses=Use.WRITE_STREAM, meaning=
            "Spark's own: identifies the query after a restart"),
    ),
    "Writing to brokers": (
        _send("name_server", "nameServer rocketmq.namesrv.addr", SERVERS, None, "Name servers", without="required"),
        *_access(_send),
        _send("brokers", "broker", NAMES, None, "Send only to the brokers of these names", without="all"),
        _send("mode", "sendMode", choice(*SEND_MODES), BATCH,
            "`batch`: messages of a queue are combined. `sync`: one by one. `async`: one by one, many in flight, without order. "
            "`oneway`: without replies, so that rejected messages are lost"),
        _send("batch_bytes", "batchBytes", SIZE, "256k",
            "Approximate size of a request in mode `batch`; at most 1024 messages"),
        _send("window_count", "maxInFlight", number(1, 1 << 16), "256",
            "Number of requests of a task in flight; in modes `batch` and `sync` at most one per queue"),
        _send("timeout_ms", "sendTimeoutMs", number(1, (1 << 31) - 1), "3000", "Timeout of a reply"),
        _send("retry_timeout_ms", "retryTimeout", DURATION, "3m",
            "Time for which a request without a reply is repeated: a broker or name server may be away that long. After an error "
            "in a reply there are 3 retries"),
        _send("retry_count", "send.numRetries", number(0, 1 << 16), None, without="as many as `retryTimeout` allows",
            meaning="Maximum number of retries of a request, whatever its error"),
        _send("retry_interval_ms", "send.retryIntervalMs", number(0, (1 << 31) - 1), "500", "Delay before a retry"),
        _send("fail_on", "failOn", kinds.statuses(*FAIL_STATUSES), ",".join(FAIL_STATUSES),
            "Statuses of less safely stored messages that make the task fail"),
        _send("compress_over_bytes", "compressOverBytes", number(0, (1 << 31) - 1), "4096",
            "Bodies of this size or more are sent individually, compressed with zlib if that helps; 0: none"),
        _send("max_message_bytes", "maxMessageBytes", SIZE, "4m",
            "Maximum size of a body; brokers have their own `maxMessageSize`"),
        _send("idempotent", "idempotent", FLAG, "true",
            "Derive unique keys from the written rows; `false`: new ones at each attempt"),
        _send("skip_present", "skipPresent", choice(SKIP_DERIVED, SKIP_ALL, SKIP_NONE), None,
            without="`derived`, `none` without derived keys or replies", meaning=
            "Skip messages that brokers already have: `derived`: of a repeated task, by derived keys; `all`: any row "
            "whose key exists, with a query per row; `none`"),
        _send("write_id", "writeId", kinds.matching(rf"[\x21-\x7e]{{1,{WRITE_ID_BYTES_MAX}}}",
            f"1 to {WRITE_ID_BYTES_MAX} visible ASCII characters"), None, uses=Use.WRITE, meaning=
            "Name of the write, to recognise a repeated job"),
        _send("producer_group", "producerGroup", NAME, "SPARK_SINK", "Producer group of the sends"),
    ),
    "Writing a store": (
        _store("path", "path", LOCAL_FOLDER, None, without="required", meaning=
            "The store's folder: an absolute path, the same for driver and workers. New, empty, or a store that is not open"),
        _store("keeps_store_times", "keepStoreTimestamps", FLAG, "false",
            "Use column `store_timestamp` as store time. Times never decrease in a log: an earlier one is raised "
            "to the previous one"),
        _store("queue_count", "queues", number(1, 65_535), "8",
            "Number of queues of new topics; more if a row names a higher one"),
        _store("store_host", "storeHost", kinds.HOST, "127.0.0.1:10911", "Address in message ids, and born host"),
        _store("config", "config", TEXT, None,
            "The broker's `broker.conf`: sizes, limits, delay levels, `enabledAppendPropCRC`"),
        _store("mapped_file_size_commit_log", "mappedFileSizeCommitLog", number(1), None, without="RocketMQ's", meaning=
            "Size of a log file in bytes; this and the sizes below override `config`"),
        _store("mapped_file_size_consume_queue", "mappedFileSizeConsumeQueue", number(1), None, without="RocketMQ's",
            meaning="Size of a queue file in bytes"),
        _store("max_hash_slot_num", "maxHashSlotNum", number(1), None, "Slots of an index file", without="RocketMQ's"),
        _store("max_index_num", "maxIndexNum", number(1), None, "Entries of an index file", without="RocketMQ's"),
        _store("max_message_size", "maxMessageSize", number(1), None, "Maximum size of a body in bytes", without="RocketMQ's"),
    ),
}
# fmt: on
"""Rows by section of the reference page."""

OPTIONS: Final = tuple(option for options in SECTIONS.values() for option in options)


def texts_of(options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return (name as given, text) by name in lower case: Spark ignores case."""
    return {name.lower(): (name, str(value).strip()) for name, value in options.items()}


def parse(options: Mapping[str, str], uses: Use, source: Source, **defaults: str) -> dict[str, Any]:
    """Return the values of options by field; None for options without value and default.

    Args:
        options: Options set by the user.
        uses: Use; both uses of reads, or of writes, if it is not known yet.
        source: Source or target.
        **defaults: Default texts by field.

    Raises:
        InvalidOption: A value is not allowed, or a name is unknown, set twice, or not applicable to
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
            shown = _shown(row.name, given[1][1])
            raise InvalidOption(given[1][0], shown, f"one of {allowed}, not {both}")
        value = _decoded(row, given[0][1]) if given else None
        values[row.field] = (
            row.kind.decode(default) if value is None and default is not None else value
        )
    for key, (name, text) in texts.items():
        if key not in known:
            choices = {option for row in rows for option in row.names.split()} | {"nameServer"}
            allowed = f"one of {one_of(name, sorted(choices, key=str.lower))}"
            if key.startswith("kafka."):
                allowed = "left out: RocketMQ's servers are in nameServer, as host:port"
            raise InvalidOption(name, _shown(name, text), allowed)
    return values


def _decoded(row: Option, text: str) -> Any:
    try:
        return row.kind.decode(text)
    except kinds.Refused as refused:
        raise InvalidOption(row.name, _shown(row.name, text), str(refused)) from None
    except ValueError:
        raise InvalidOption(row.name, _shown(row.name, text), row.kind.allowed) from None


def _refuse_elsewhere(name: str, text: str, rows: list[Option], source: Source) -> None:
    """Raise an error for a name that only other uses or sources have; otherwise return."""
    for not_yet, allowed in NOT_YET.items():
        if name.lower() == not_yet.lower():
            raise InvalidOption(not_yet, _shown(name, text), allowed)
    for row in rows:
        if row.sources & source:
            raise InvalidOption(row.name, _shown(name, text), row.elsewhere)
    if rows and source is Source.BROKERS:
        allowed = "left out, where nameServer is set: views are of store folders"
        raise InvalidOption(rows[0].name, _shown(name, text), allowed)
    if rows:
        allowed = "left out, unless nameServer is set"
        raise InvalidOption(rows[0].name, _shown(name, text), allowed)


def _shown(name: str, text: str) -> str:
    """Return the value of an option for an error."""
    return HIDDEN if _SECRET_NAME.search(name) else text
