"""What a read of a store gives, without Spark, and what the manifests say it must give.

got = reading.read(store, topic="GoldenOne", scan="log")
assert reading.offsets(got.rows) == [...]
"""

import datetime
import hashlib
import json
import pickle
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import golden
from reput.spark import options as option_texts, rows
from reput.spark.filters import Constraint
from reput.spark.options import ReadOptions
from reput.spark.scan import MessageScan
from reput.spark.store_planner import Task

Row = dict[str, Any]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
BROKER = "broker-a"
HIDDEN_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
"""What the default isolation leaves out."""


LIGHT_COLUMNS = (
    *("physical_offset", "msg_id", "topic", "queue_id", "queue_offset"),
    *("tags", "store_timestamp", "store_size"),
)


class Read(NamedTuple):
    """What came out."""

    rows: list[Row]
    tasks: list[Task]
    summary: str

    @property
    def messages(self) -> list[Row]:
        """Rows that are messages, by their place in the log."""
        found = [row for row in self.rows if row["msg_id"] is not None]
        return sorted(found, key=lambda row: row["physical_offset"])

    @property
    def damage(self) -> list[Row]:
        """Rows that are not."""
        found = [row for row in self.rows if row["msg_id"] is None]
        return sorted(found, key=lambda row: row["physical_offset"])


def texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark hands them over."""
    return {
        name: value
        if isinstance(value, str)
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


def read(store: Path | str | None, constraint: Constraint | None = None, **options: Any) -> Read:
    """Plan and read every partition, each sent to an executor and back."""
    planner = scan(store, constraint, **options)
    tasks = planner.tasks()
    found: list[Row] = []
    for sent in [pickle.dumps((planner, task)) for task in tasks]:
        executor, task = pickle.loads(sent)
        for batch in executor.read(task):
            batch.validate(full=True)
            assert batch.num_rows
            found += batch.to_pylist()
    for row in found:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return Read(found, tasks, "\n".join(planner.summary.lines))


def read_light(
    store: Path | str | None, constraint: Constraint | None = None, **options: Any
) -> Read:
    """The same with the columns that tell rows apart."""
    is_shown = str(options.get("mode")).upper() in ("PERMISSIVE", "SALVAGE")
    columns = [*LIGHT_COLUMNS, "_corrupt_record"] if is_shown else LIGHT_COLUMNS
    return read(store, constraint, **{"columns": ",".join(columns), **options})


def offsets(found: Iterable[Row]) -> list[int]:
    return [row["physical_offset"] for row in found]


# --- manifests --------------------------------------------------------------


def time_of(time_ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=time_ms)


def expected(version: str, name: str) -> list[Row]:
    """The rows of a golden store in log order; ``body`` as ``comparable`` has it."""
    return [row_of(one) for one in golden.messages(version, name)]


def row_of(one: dict[str, Any]) -> Row:
    """One entry of a manifest as a row."""
    return {
        "topic": one["topic"],
        "broker": BROKER,
        "queue_id": one["queueId"],
        "queue_offset": one["queueOffset"],
        "physical_offset": one["commitLogOffset"],
        "msg_id": one["uniqKey"] or one["offsetMsgId"],
        "offset_msg_id": one["offsetMsgId"],
        "tags": one["tags"],
        "keys": [word for word in (one["keys"] or "").split(" ") if word],
        "body": (one["bodyLength"], one["bodySha256"]),
        "properties": one["properties"],
        "flag": one["flag"],
        "sys_flag": one["sysFlag"],
        "born_timestamp": time_of(one["bornTimestamp"]),
        "born_host": one["bornHost"],
        "store_timestamp": time_of(one["storeTimestamp"]),
        "store_host": one["storeHost"],
        "reconsume_times": one["reconsumeTimes"],
        "prepared_transaction_offset": one["preparedTransactionOffset"],
        "body_crc": one["bodyCRC"],
        "store_size": one["storeSize"],
    }


def comparable(version: str, row: Row) -> Row:
    """A row that was read, as ``expected`` has it."""
    body = (len(row["body"]), hashlib.sha256(row["body"]).hexdigest())
    properties = golden.known_properties(version, row["properties"])
    return {**row, "body": body, "properties": properties}


def visible(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the default isolation shows of a manifest's messages."""
    return [one for one in messages if one["topic"] not in HIDDEN_TOPICS]


def message_offsets(messages: Iterable[dict[str, Any]]) -> list[int]:
    """Physical offsets of a manifest's messages."""
    return [one["commitLogOffset"] for one in messages]


# --- damaged stores ---------------------------------------------------------


class Damaged(NamedTuple):
    """What can be read of a torn variant, and what cannot."""

    good: list[dict[str, Any]]
    """Messages of ``clean`` that are still there."""
    runs: list[tuple[int, int, str]]
    """(physical offset, length, reason) of each run of bytes that is none."""
    salvaged: list[dict[str, Any]]
    """Messages that are whole but for their body's checksum."""


def runs(damage: list[Row]) -> list[tuple[int, int, str]]:
    """Damaged rows as runs; zeros behind damage may be told as a run of their own, or with it."""
    found: list[tuple[int, int, str]] = []
    for row in damage:
        start, length = row["physical_offset"], row["store_size"]
        if found and sum(found[-1][:2]) == start:
            before = found.pop()
            found.append((before[0], before[1] + length, before[2]))
        else:
            found.append((start, length, row["_corrupt_record"]))
    return found


CRC_REASON = "body does not match BODYCRC"
LENGTH_REASON = "body, topic and property lengths do not add up to TOTALSIZE"


def damaged(version: str, variant: str) -> Damaged:
    """What Java's description of a variant leaves of ``clean``."""
    messages = golden.messages(version, "clean")
    text = golden.torn_variants(version)[variant]["damage"]
    config = golden.manifest(version, "clean")["config"]
    log_file_bytes = int(config["mappedFileSizeCommitLog"])
    last = messages[-1]
    if variant.startswith("crc-"):
        bad = _at(messages, _number(r"record at (\d+)", text))
        run = (bad["commitLogOffset"], bad["storeSize"], CRC_REASON)
        return Damaged([one for one in messages if one is not bad], [run], [bad])
    if variant == "size-late":
        bad = _at(messages, _number(r"record at (\d+)", text))
        run = (bad["commitLogOffset"], bad["storeSize"], LENGTH_REASON)
        return Damaged([one for one in messages if one is not bad], [run], [])
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
        good = [one for one in messages if not start <= one["commitLogOffset"] < stop]
        return Damaged(good, [(start, log_file_bytes, "the file is missing")], [])
    if variant == "cq-ahead":
        end = _number(r"cut at (\d+)", text)
        return Damaged([one for one in messages if one["commitLogOffset"] < end], [], [])
    return Damaged(messages, [], [])


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, (pattern, text)
    return int(found[1])


def _at(messages: Sequence[dict[str, Any]], offset: int) -> dict[str, Any]:
    return next(one for one in messages if one["commitLogOffset"] == offset)
