"""Messages of every kind in a running broker, and options of reads of them.

    traffic = live_traffic.publish(address)
    for name, case in live_traffic.cases(traffic).items():
        rows = live_traffic.read(address, case.constraint, **case.all_options)

Without Spark; every task is pickled as for an executor. Reads of the store after the broker has
stopped must return the same rows: ``case.rows_of(folder)``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput.client import blocking
from reput.client.core import requests
from reput.client.message import Message
from reput.format import bodies
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode
from reput.spark import options as option_texts, rows
from reput.spark.filters import Constraint, from_span, from_values
from reput.spark.live import calls as live_calls
from reput.spark.live.scan import LiveScan
from spark import reading
from spark.reading import Row
from waiting import wait_until

BROKER = "broker-a"
GROUP = "Billing"
COUNT = 240
TOPICS = {"Orders": 4, "Large": 2, "Empty": 2}


@dataclass(frozen=True)
class Traffic:
    """A broker with messages of every kind, still running."""

    middle_ms: int
    """The store time of a message in the middle."""
    unique_key: str
    traces_before: Any


@dataclass(frozen=True)
class Case:
    """Options of a read, of the live broker and of its store."""

    options: dict[str, Any]
    constraint: Constraint | None = None
    live_options: dict[str, Any] = field(default_factory=dict)

    @property
    def all_options(self) -> dict[str, Any]:
        """All options of the live read."""
        return {**self.options, **self.live_options}

    def rows_of(self, folder: Path) -> list[Row]:
        """Return the rows of the store of the stopped broker."""
        given = {**self.options, "broker": BROKER}
        return in_order(reading.read(folder, self.constraint, **given).rows)


def scan_of(address: str, constraint: Constraint | None = None, **given: Any) -> LiveScan:
    texts = reading.texts({"nameServer": address, "fetchOffset.retryIntervalMs": 1, **given})
    parsed = option_texts.parse(texts)
    return LiveScan(parsed, parsed.columns or list(rows.message_fields(parsed)), constraint)


def read(address: str, constraint: Constraint | None = None, **given: Any) -> list[Row]:
    scan = scan_of(address, constraint, **given)
    return reading.rows_of(scan, scan.tasks())


def in_order(read_rows: list[Row]) -> list[Row]:
    return sorted(read_rows, key=lambda row: (row["physical_offset"], row["topic"]))


def traces(address: str) -> Any:
    """Return the state that a client could change: topics, groups, their offsets and members."""
    with blocking.Admin(address) as admin:
        return (
            admin.topic_configs(BROKER),
            admin.groups(),
            live_calls.connected(scan_of(address)._live).run(_offsets(address)),
            admin.consumer_connection("TOOLS_CONSUMER"),
        )


async def _offsets(address: str) -> Any:
    calls = live_calls.connected(scan_of(address)._live).admin.calls
    reply = await calls.ask_broker(BROKER, requests.make(RequestCode.GET_ALL_CONSUMER_OFFSET))
    return bodies.decode(bodies.ConsumerOffsetTable, reply.body).offset_table


def queue(queue_id: int, topic: str = "Orders") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=BROKER, queue_id=queue_id)


def publish(address: str) -> Traffic:
    """Create topics and send messages; return when all are in their queues."""
    with blocking.Admin(address) as admin:
        for topic, count in TOPICS.items():
            admin.create_topic(topic, queue_count=count)
        with blocking.Producer("p", namesrv=address) as producer:
            sent = [
                producer.send(  # separate sends, so that store times differ
                    Message(
                        "Orders",
                        f"order {i} ü".encode() * (1 + i % 3),
                        tags=("TagA", "TagB", None)[i % 3],
                        keys=[f"k{i}", "all"],
                        properties={"n": str(i), "city": "Köln"},
                        flag=i,
                    )
                )
                for i in range(COUNT)
            ]
            producer.send_many(Message("Large", bytes([i]) * 200_000) for i in range(12))
            producer.send(Message("Orders", b"later", delay_level=18, tags="TagA"))
            last = producer.send(Message("Orders", b"last", keys="last"))
        queues = [queue(i, topic) for topic, count in TOPICS.items() for i in range(count)]
        wait_until(lambda: sum(map(admin.max_offset, queues)) >= COUNT + 1 + 12)
        admin.create_group(GROUP)
        for queue_id, offset in ((0, 10), (1, 20), (2, 3)):
            admin.update_consumer_offset(GROUP, queue(queue_id), offset)
        middle = admin.message_by_offset_id(sent[COUNT // 2].offset_message_id)
    return Traffic(middle.store_timestamp_ms, last.message_id, traces(address))


def cases(traffic: Traffic) -> dict[str, Case]:
    middle_ms = traffic.middle_ms
    per_queue = {"Orders": {BROKER: {"0": 12, "3": 40}}}
    orders = {"topic": "Orders"}
    options_by_name: dict[str, dict[str, Any]] = {
        "everything": {},
        "all isolations": {"readIsolation": "all"},
        "no system topics": {"includeSystemTopics": False},
        "topic": orders,
        "topics": {"topics": "Orders,Large"},
        "pattern": {"subscribePattern": "Or.*"},
        "assign": {"assign": {"Orders": {BROKER: [1, 3]}}},
        "offsets": {**orders, "startingOffsets": per_queue},
        "earliest": {**orders, "startingOffsets": {"Orders": {BROKER: {"1": -2}}}},
        "ends": {**orders, "endingOffsets": per_queue},
        "from group": {**orders, "startingOffsets": f"group:{GROUP}"},
        "to group": {**orders, "endingOffsets": f"group:{GROUP}"},
        "from time": {**orders, "startingTimestamp": middle_ms},
        "to time": {**orders, "endingTimestamp": middle_ms},
        "to next ms": {**orders, "endingTimestamp": middle_ms + 1},
        "from the start of time": {**orders, "startingTimestamp": 0},
        "after all": {**orders, "startingTimestamp": middle_ms + 10_000_000},
        "times": {**orders, "startingOffsetsByTimestamp": {"Orders": {BROKER: {"2": middle_ms}}}},
        "late times": {
            **orders,
            "startingOffsetsByTimestamp": {"Orders": {BROKER: {"2": middle_ms + 10_000_000}}},
            "startingOffsetsByTimestampStrategy": "latest",
        },
        "tag": {**orders, "tags": "TagA"},
        "tags": {**orders, "tags": "TagA || TagB"},
        "tag everywhere": {"tags": "TagA"},
        "sql92": {**orders, "sql92": "n > 100 AND city = 'Köln'"},
        "key": {**orders, "key": "k17"},
        "keys": {"keyIn": "k17,k18"},
        "unique key": {"uniqKey": traffic.unique_key},
        "columns": {**orders, "columns": "topic,queue_id,physical_offset,msg_id"},
        "no body": {**orders, "includeBody": False},
        "raw properties": {**orders, "rawProperties": True, "includeHeaders": False},
        "charset": {**orders, "charset": "utf-8"},
        "as stored": {"topic": "Large", "decompress": "none"},
        "resolved": {"resolveTopics": True},
        "no checksums": {**orders, "checkCrc": False},
    }
    listed = {name: Case(options) for name, options in options_by_name.items()}
    for name, given in {
        "small partitions": {"maxRecordsPerPartition": 7},
        "many partitions": {"minPartitions": 9},
        "few bytes": {"maxBytesPerPartition": "4k"},
        "small pulls": {"pullBatchSize": 3},
        "large pulls": {"pullBatchSize": 1000},
        "one broker": {"broker": BROKER},
        "cluster": {"cluster": "DefaultCluster"},
        "patient": {"pullTimeoutMs": 20_000, "fetchOffset.numRetries": 1},
    }.items():
        listed[name] = Case({}, live_options=given)
    time_us = middle_ms * 1000
    for name, constraint in {
        "topic predicate": from_values("topic", ["Orders"]),
        "queue predicate": from_values("queue_id", [1, 2]),
        "tag predicate": from_values("tags", ["TagA"]),
        "odd tags predicate": from_values("tags", ["TagA", "a || b"]),
        "offset predicate": from_span("queue_offset", 5, 12),
        "time predicate": from_span("store_timestamp", time_us, time_us + 5_000),
        "physical predicate": from_span("physical_offset", 2_000, 9_000),
        "impossible predicate": from_values("topic", []),
    }.items():
        assert constraint is not None
        listed[name] = Case({}, constraint)
    return listed


def read_all(address: str, listed: dict[str, Case]) -> dict[str, list[Row]]:
    """Read all cases in order."""
    return {
        name: in_order(read(address, case.constraint, **case.all_options))
        for name, case in listed.items()
    }


NAMES = tuple(cases(Traffic(0, "", None)))
NOTHING = ("after all", "impossible predicate")
"""Cases without rows."""
