"""Rows of a store, read without Spark, and the rows expected by the manifests.

got = reading.read(store, topic="GoldenOne", scan="log")
assert reading.offsets(got.rows) == [...]
"""

import datetime
import hashlib
import json
import pickle
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import golden
from reput.spark import options as option_texts, rows, views
from reput.spark.filters import Constraint
from reput.spark.options import ReadOptions
from reput.spark.scan import MessageScan
from reput.spark.store_planner import Task

Row = dict[str, Any]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
BROKER = "broker-a"
HIDDEN_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
"""Topics that the default isolation leaves out."""


LIGHT_COLUMNS = (
    *("physical_offset", "msg_id", "topic", "queue_id", "queue_offset"),
    *("tags", "store_timestamp", "store_size"),
)


class Read(NamedTuple):
    """The result of a read."""

    rows: list[Row]
    tasks: list[Task]
    summary: str

    @property
    def messages(self) -> list[Row]:
        """Rows that are messages, in log order."""
        messages = [row for row in self.rows if row["msg_id"] is not None]
        return sorted(messages, key=lambda row: row["physical_offset"])

    @property
    def damage(self) -> list[Row]:
        """Rows that describe damage, in log order."""
        damage = [row for row in self.rows if row["msg_id"] is None]
        return sorted(damage, key=lambda row: row["physical_offset"])


def texts(options: dict[str, Any]) -> dict[str, str]:
    """Return options in the form in which Spark passes them."""
    return {
        name: str(value)
        if isinstance(value, str | Path)
        else json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict | list)
        else str(value).lower()
        for name, value in options.items()
    }


def parse(store: Path | str | None, **options: Any) -> ReadOptions:
    path = {} if store is None else {"path": str(store)}
    return option_texts.parse({**path, **texts(options)})


def scan(
    store: Path | str | None, constraint: Constraint | None = None, **options: Any
) -> MessageScan:
    parsed = parse(store, **options)
    return MessageScan(parsed, parsed.columns or list(rows.message_fields(parsed)), constraint)


def task_rows(scan: Any, task: Any) -> list[Row]:
    """Read a task of a scan or stream."""
    rows_read: list[Row] = []
    for batch in scan.read(task):
        batch.validate(full=True)
        assert batch.num_rows
        rows_read += batch.to_pylist()
    for row in rows_read:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return rows_read


def rows_of(scan: Any, tasks: Sequence[Any]) -> list[Row]:
    """Read the tasks of a scan, each pickled with it as for an executor."""
    sent = [pickle.dumps((scan, task)) for task in tasks]
    return [row for data in sent for row in task_rows(*pickle.loads(data))]


def read(store: Path | str | None, constraint: Constraint | None = None, **options: Any) -> Read:
    """Plan and read every partition."""
    planner = scan(store, constraint, **options)
    tasks = planner.tasks()
    return Read(rows_of(planner, tasks), tasks, "\n".join(planner.summary.lines))


def read_view(**given: Any) -> list[Row]:
    """Read another view than that of messages, each part pickled as for an executor."""
    parsed = option_texts.parse(texts(given))
    columns = parsed.columns or list(views.fields(parsed))
    view_rows: list[Row] = []
    for part in views.partitions(parsed):
        sent, part = pickle.loads(pickle.dumps((parsed, part)))
        for batch in views.read(sent, columns, part):
            batch.validate(full=True)
            assert batch.schema.names == list(columns)
            view_rows += batch.to_pylist()
    return view_rows


def read_light(
    store: Path | str | None, constraint: Constraint | None = None, **options: Any
) -> Read:
    """Read only the columns that identify rows."""
    is_shown = str(options.get("mode")).upper() in ("PERMISSIVE", "SALVAGE")
    columns = [*LIGHT_COLUMNS, "_corrupt_record"] if is_shown else LIGHT_COLUMNS
    return read(store, constraint, **{"columns": ",".join(columns), **options})


def offsets(read_rows: Iterable[Row]) -> list[int]:
    return [row["physical_offset"] for row in read_rows]


# --- manifests --------------------------------------------------------------


def time_of(time_ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=time_ms)


def expected(version: str, name: str) -> list[Row]:
    """Return the rows of a golden store in log order; ``body`` as in ``comparable``."""
    return [
        row
        for message, place in golden.records(version, name)
        for row in (inner_rows(message, place.record) if is_batch(message) else [row_of(message)])
    ]


def is_batch(message: dict[str, Any]) -> bool:
    """Return whether an entry of a manifest is a record with a batch of messages inside."""
    return bool(message["sysFlag"] & 0x80)


def inner_rows(message: dict[str, Any], record: bytes) -> list[Row]:
    """Return the rows of the messages inside of a batch record.

    As Java's client makes them (``MessageDecoder.decodeMessage``): body, flag and properties are
    their own, queue offsets count up, and everything else is that of the record.
    """
    rows: list[Row] = []
    start = record.index(struct.pack(">i", message["storedBodyLength"])) + 4
    rest = record[start : start + message["storedBodyLength"]]
    assert hashlib.sha256(rest).hexdigest() == message["storedBodySha256"]
    while rest:
        size, _, _, flag, body_length = struct.unpack_from(">iiiii", rest)
        body = rest[20 : 20 + body_length]
        text = rest[20 + body_length + 2 : size].decode()
        pairs = [pair.split("\1") for pair in text.split("\2") if pair]
        properties = dict(pairs)
        rows.append(
            row_of(message)
            | {
                "queue_offset": message["queueOffset"] + len(rows),
                "msg_id": properties["UNIQ_KEY"],
                "tags": properties["TAGS"],
                "keys": properties["KEYS"].split(" "),
                "body": (body_length, hashlib.sha256(body).hexdigest()),
                "properties": properties,
                "flag": flag,
                "sys_flag": message["sysFlag"] & ~0x7C1,
            }
        )
        rest = rest[size:]
    assert len(rows) == int(message["properties"]["INNER_NUM"])
    return rows


def row_of(message: dict[str, Any]) -> Row:
    """Return an entry of a manifest as a row."""
    return {
        "topic": message["topic"],
        "broker": BROKER,
        "queue_id": message["queueId"],
        "queue_offset": message["queueOffset"],
        "physical_offset": message["commitLogOffset"],
        "msg_id": message["uniqKey"] or message["offsetMsgId"],
        "offset_msg_id": message["offsetMsgId"],
        "tags": message["tags"],
        "keys": [word for word in (message["keys"] or "").split(" ") if word],
        "body": (message["bodyLength"], message["bodySha256"]),
        "properties": message["properties"],
        "flag": message["flag"],
        "sys_flag": message["sysFlag"],
        "born_timestamp": time_of(message["bornTimestamp"]),
        "born_host": message["bornHost"],
        "store_timestamp": time_of(message["storeTimestamp"]),
        "store_host": message["storeHost"],
        "reconsume_times": message["reconsumeTimes"],
        "prepared_transaction_offset": message["preparedTransactionOffset"],
        "body_crc": message["bodyCRC"],
        "store_size": message["storeSize"],
    }


def comparable(version: str, row: Row) -> Row:
    """Return a row in the form of ``expected``: the body as length and hash."""
    body = (len(row["body"]), hashlib.sha256(row["body"]).hexdigest())
    properties = golden.known_properties(version, row["properties"])
    return {**row, "body": body, "properties": properties}


def visible(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a manifest that the default isolation shows."""
    return [message for message in messages if message["topic"] not in HIDDEN_TOPICS]


def message_offsets(messages: Iterable[dict[str, Any]]) -> list[int]:
    """Return the physical offsets of a manifest's rows: a batch record has several."""
    return [
        message["commitLogOffset"]
        for message in messages
        for _ in range(int(message["properties"]["INNER_NUM"]) if is_batch(message) else 1)
    ]


# --- damaged stores ---------------------------------------------------------


class Damaged(NamedTuple):
    """The readable and the damaged parts of a torn variant."""

    good: list[dict[str, Any]]
    """Messages of ``clean`` that remain."""
    runs: list[tuple[int, int, str]]
    """(physical offset, length, reason) of each run of bytes without messages."""
    salvaged: list[dict[str, Any]]
    """Messages that are whole except for the checksum of the body."""


def runs(damage: list[Row]) -> list[tuple[int, int, str]]:
    """Merge rows of adjacent damage into runs; zeros after damage may be a separate row."""
    merged: list[tuple[int, int, str]] = []
    for row in damage:
        start, length = row["physical_offset"], row["store_size"]
        if merged and sum(merged[-1][:2]) == start:
            before = merged.pop()
            merged.append((before[0], before[1] + length, before[2]))
        else:
            merged.append((start, length, row["_corrupt_record"]))
    return merged


CRC_REASON = "body does not match BODYCRC"
LENGTH_REASON = "body, topic and property lengths do not add up to TOTALSIZE"


def damaged(version: str, variant: str) -> Damaged:
    """Return what a variant keeps of ``clean``, from Java's description of the damage."""
    messages = golden.messages(version, "clean")
    text = golden.torn_variants(version)[variant]["damage"]
    config = golden.manifest(version, "clean")["config"]
    log_file_bytes = int(config["mappedFileSizeCommitLog"])
    last = messages[-1]
    if variant.startswith("crc-"):
        bad = _at(messages, _number(r"record at (\d+)", text))
        run = (bad["commitLogOffset"], bad["storeSize"], CRC_REASON)
        return Damaged([message for message in messages if message is not bad], [run], [bad])
    if variant == "size-late":
        bad = _at(messages, _number(r"record at (\d+)", text))
        run = (bad["commitLogOffset"], bad["storeSize"], LENGTH_REASON)
        return Damaged([message for message in messages if message is not bad], [run], [])
    if variant == "torn-tail":
        return Damaged(messages[:-1], [], [])
    if variant == "torn-tail-noabort":
        run = (last["commitLogOffset"], last["storeSize"], LENGTH_REASON)
        return Damaged(messages[:-1], [run], [])
    if variant == "log-short":
        run = (
            last["commitLogOffset"],
            last["storeSize"],
            "the record exceeds the data",
        )
        return Damaged(messages[:-1], [run], [])
    if variant == "log-missing":
        start = _number(r"file (\d+)", text)
        stop = start + log_file_bytes
        good = [message for message in messages if not start <= message["commitLogOffset"] < stop]
        return Damaged(good, [(start, log_file_bytes, "the file is missing")], [])
    if variant == "cq-ahead":
        end = _number(r"cut at (\d+)", text)
        return Damaged(
            [message for message in messages if message["commitLogOffset"] < end], [], []
        )
    return Damaged(messages, [], [])


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, (pattern, text)
    return int(match[1])


def _at(messages: Sequence[dict[str, Any]], offset: int) -> dict[str, Any]:
    return next(message for message in messages if message["commitLogOffset"] == offset)
