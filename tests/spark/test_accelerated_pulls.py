"""Running brokers read with the jar: the rows of Python, and the place where Python reads on."""

import contextlib
import functools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

import reput.spark
import store_builder
from reput.format import command as commands, message as record, sys_flag as flags
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.spark import accelerator, frames, options as option_texts
from reput.spark.live import calls as live_calls
from reput.testing import LocalBroker
from spark import live_traffic
from spark.live_traffic import BROKER
from spark.reading import Row
from spark.scripted_broker import Replies, ScriptedBroker

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        shutil.which("javac") is None, reason="missing java: javac compiles the jar"
    ),
]

COLUMNS = ("queue_offset", "body", "tags")
COUNT, BATCH, BAD = 100, 8, 45
"""Messages of a queue, of a pull, and the queue offset of the message that is not plain."""
BAD_PULL = BAD - BAD % BATCH
FROM_PYTHON = 1_000_000
"""Queue offset of the only message that the stand-in of Python reads, from queue offset 0 on."""

# Beside a running broker --------------------------------------------------------------------


PLAIN = ("all isolations", "offsets", "from time", "as stored", "no checksums", "small partitions")
"""Reads by the jar; unit tests say which others it leaves to Python."""


def test_rows_are_those_of_python(spark_with_jar: SparkSession) -> None:
    names = "body", "keys", "properties", "msg_id", "store_timestamp", "physical_offset", "topic"
    with LocalBroker() as mq:
        cases = live_traffic.cases(live_traffic.publish(mq.namesrv_addr))
        frames, wanted = [], []
        for name in PLAIN:
            options = cases[name].all_options | {"columns": ",".join(names)}
            scan = live_traffic.scan_of(mq.namesrv_addr, **options)
            pulls = scan.plain_pulls(scan.tasks())["tasks"]
            assert all(part["address"] is not None for part in pulls), name
            wanted.append(live_traffic.in_order(live_traffic.read(mq.namesrv_addr, **options)))
            frame = reput.spark.read(spark_with_jar, nameServer=mq.namesrv_addr, **options)
            frames.append(frame.withColumn("case", F.lit(len(frames))))
        rows = functools.reduce(DataFrame.union, frames).toArrow()
        live_calls.disconnect()
    read: list[list[Row]] = [[] for _ in PLAIN]
    for row in rows.to_pylist(maps_as_pydicts="strict"):
        read[row.pop("case")].append(row)
    assert [live_traffic.in_order(of_case) for of_case in read] == wanted
    assert all(wanted)


# Beside a scripted one ----------------------------------------------------------------------


def placed(**changes: Any) -> list[record.StoredMessage]:
    """Return the messages of a queue; ``changes`` are those of the one that is not plain."""
    messages = store_builder.place(
        [store_builder.message("TopicA", b"%d" % i * 50, tags="T") for i in range(COUNT)], 1 << 30
    )
    if changes:
        messages[BAD] = replace(messages[BAD], **changes)
    return messages


def reply_to(request: Command, messages: Sequence[record.StoredMessage], **changes: Any) -> bytes:
    """Return the frame with the messages that a pull asks for."""
    asked = request.ext_fields or {}
    start = int(asked["queueOffset"])
    stop = min(start + int(asked["maxMsgNums"]), len(messages))
    body = b"".join(map(record.encode, messages[start:stop]))
    fields = {"nextBeginOffset": str(stop), "minOffset": "0", "maxOffset": str(len(messages))}
    made = commands.reply(request, ext_fields=fields, body=body)
    return commands.encode(replace(made, **changes))


def task_at(address: str) -> dict[str, Any]:
    """Return a task that pulls the queue from an address, as a plan has it."""
    header = '{"code":11,"opaque":%d,"extFields":{"queueOffset":"%d","maxMsgNums":"%d"}}'
    part = {"topic": "TopicA", "queueId": 0, "start": 0, "stop": COUNT}
    part["header"] = header.split("%d")
    return {
        "broker": BROKER,
        "address": address,
        "recordBytes": 200,
        "slices": [part],
    }


def rows_of(spark: SparkSession, tasks: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the rows of each task; the last one has the place where Python reads on."""
    options = option_texts.parse({"nameServer": "127.0.0.1:1"})
    pulls = {"batchSize": BATCH, "timeoutMs": 300_000, "tasks": tasks}
    plan = accelerator.plan_of_pulled(options, COLUMNS, pulls)
    replacement = placed()[0]

    def rest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for read_count in batch["read_count"].to_pylist():
                message = replace(replacement, queue_offset=FROM_PYTHON + read_count)
                yield pa.RecordBatch.from_pydict(
                    {"records": [record.encode(message)], "broker": [BROKER]}
                )

    def pulled(numbers: DataFrame) -> DataFrame:
        return frames.map_in_arrow(spark, numbers, rest, frames.PULLED_SCHEMA)

    frame = accelerator.rows_of_pulled(spark, plan, len(tasks), pulled)
    rows: list[list[dict[str, Any]]] = [[] for _ in tasks]
    for row in frame.withColumn("partition", F.spark_partition_id()).collect():
        values = row.asDict()
        rows[values.pop("partition")].append(values)
    return rows


def plain_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"queue_offset": message.queue_offset, "body": message.body, "tags": "T"}
        for message in placed()[:count]
    ]


def in_order(requests: Sequence[Command]) -> list[bytes]:
    return [reply_to(request, placed()) for request in requests]


def few_at_a_time(requests: Sequence[Command]) -> list[bytes]:
    """Reply with three messages at most, as a broker limits the bytes of replies."""
    replies = []
    for request in requests:
        fields = request.ext_fields or {}
        few = {**fields, "maxMsgNums": str(min(int(fields["maxMsgNums"]), 3))}
        replies.append(reply_to(replace(request, ext_fields=few), placed()))
    return replies


def newest_first(requests: Sequence[Command]) -> list[bytes]:
    """Reply out of order, as a broker does that serves pulls in several threads."""
    return in_order(requests[::-1])


def with_other_frames(requests: Sequence[Command]) -> list[bytes]:
    """Send a request of the broker's own before each reply."""
    own = commands.encode(Command(40, 1, ext_fields={"consumerGroup": "g"}))
    return [frame for reply in in_order(requests) for frame in (own, reply)]


def is_bad(request: Command) -> bool:
    return (request.ext_fields or {})["queueOffset"] == str(BAD_PULL)


def changed(**changes: Any) -> Replies:
    """Return replies of which one has another message than the queue's."""
    messages = placed(**changes)
    return lambda requests: [reply_to(request, messages) for request in requests]


def answered(**changes: Any) -> Replies:
    """Return replies of which one has another header or body."""
    return lambda requests: [
        reply_to(request, placed(), **(changes if is_bad(request) else {})) for request in requests
    ]


def closed(requests: Sequence[Command]) -> list[bytes] | None:
    return None


def binary(requests: Sequence[Command]) -> list[bytes]:
    """Mark a header as encoded in binary."""
    frames = [bytearray(frame) for frame in in_order(requests)]
    for request, frame in zip(requests, frames, strict=True):
        frame[4] = is_bad(request)
    return [bytes(frame) for frame in frames]


def test_python_reads_on_at_what_is_not_plain(spark_with_jar: SparkSession) -> None:
    plain: dict[str, Replies] = {
        "in order": in_order,
        "few at a time": few_at_a_time,
        "newest first": newest_first,
        "with other frames": with_other_frames,
        "prepared": changed(sys_flag=flags.TRANSACTION_PREPARED),
    }
    other_records: dict[str, Replies] = {
        "checksum": changed(body_crc=7),
        "topic": changed(topic="TopicB"),
        "queue id": changed(queue_id=1),
        "queue offset": changed(queue_offset=BAD + 1),
        "no records": answered(body=b""),
        "no whole record": answered(body=b"\x00\x00\x00\x5b" + bytes(96)),
    }
    other_replies: dict[str, Replies] = {
        "code": answered(code=int(ResponseCode.PULL_OFFSET_MOVED)),
        "no progress": answered(ext_fields={"nextBeginOffset": str(BAD_PULL)}),
        "too far": answered(ext_fields={"nextBeginOffset": str(COUNT + 1)}),
        "no fields": answered(ext_fields=None),
        "opaque": answered(opaque=1 << 30),
        "binary": binary,
        "closed": closed,
    }
    with ScriptedBroker(in_order) as broker:
        gone = task_at(broker.address)
    scripts = {**plain, **other_records, **other_replies}
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(ScriptedBroker(script)) for script in scripts.values()]
        tasks = [task_at(broker.address) for broker in brokers]
        *read, of_gone, of_none = rows_of(spark_with_jar, [*tasks, gone, {**gone, "address": None}])
    # Python reads everything without a connection.
    for rows in (of_gone, of_none):
        assert [row["queue_offset"] for row in rows] == [FROM_PYTHON]
    for name, rows in zip(scripts, read, strict=True):
        if name in plain:
            is_hidden = name == "prepared"
            assert rows == [
                row for row in plain_rows(COUNT) if not is_hidden or row["queue_offset"] != BAD
            ]
            continue
        read_count = rows.pop()["queue_offset"] - FROM_PYTHON
        assert rows == plain_rows(read_count), name
        if name in other_records:
            assert read_count == BAD_PULL, name
        else:  # some whole replies before
            assert read_count % BATCH == 0, name
            assert read_count <= BAD_PULL, name
