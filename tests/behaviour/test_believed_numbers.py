"""Numbers that servers and clients believe from the network: each row of the reference has a lie.

A lie is refused with an error that names the value, before any work is done with it: each would
take gigabytes or minutes otherwise.
"""

import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reput import limits
from reput.broker.lite.subscriptions import CLIENT_QUOTA, quota_of
from reput.broker.replication.reports import OfferedRange, ReportRefused, SlaveReports
from reput.client.core.pop_handles import ReplyHandles
from reput.client.core.route_cache import topic_route
from reput.errors import CorruptRecord, InvalidBody, InvalidHeader, LimitExceeded, NotAFrame
from reput.format import bodies, command, ha_frames, limits as format_limits, message, pop_codec
from reput.format.bodies import QueueData, TopicConfigData, TopicConfigTable, TopicRouteData
from reput.format.headers import PopMessageReplyHeader
from reput.html.texts import time_text
from reput.namesrv.route_table import Registration, RouteTable
from reput.remoting import proxy_header
from reput.remoting.connection import find_frame
from reput.remoting.proxy_header import NotAProxyHeader
from reput.remoting.time_slices import run_whole
from reput.spark.live import plan
from reput.spark.live.calls import ReadFailed

PAGE = Path(__file__).parents[2] / "docs/reference/numbers.md"
ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|$", re.MULTILINE)
HUGE = 2**31 - 1


def topic(count: int, name: str = "T") -> TopicConfigData:
    return TopicConfigData(
        order=False,
        perm=6,
        read_queue_nums=count,
        topic_filter_type="SINGLE_TAG",
        topic_name=name,
        topic_sys_flag=0,
        write_queue_nums=count,
    )


def registered(*topics: TopicConfigData) -> RouteTable:
    """Return a name server's table with a broker of these topics."""
    table = RouteTable()
    registration = Registration(
        cluster="c",
        broker_name="b",
        broker_id=0,
        address="10.0.0.1:1",
        ha_address="10.0.0.1:2",
        data_version=bodies.DataVersion(),
        topics=topics,
        filter_servers=None,
    )
    result = run_whole(table.register(registration, "connection", 0))
    assert result is not None
    if result.left_out:
        assert table.topic_count == sum(each.topic_name == "good" for each in topics)
        raise LimitExceeded("topic_queues", result.left_out, 1)
    return table


def route_body(*counts: int, order: str | None = None) -> bytes:
    queues = [
        {
            "brokerName": f"b{number}",
            "perm": 6,
            "readQueueNums": count,
            "topicSysFlag": 0,
            "writeQueueNums": 4,
        }
        for number, count in enumerate(counts)
    ]
    brokers = [
        {"brokerAddrs": {"0": "10.0.0.1:1"}, "brokerName": f"b{number}", "cluster": "c"}
        for number in range(len(counts))
    ]
    document = {"brokerDatas": brokers, "orderTopicConf": order, "queueDatas": queues}
    return json.dumps(document).encode()


def believed_route(body: bytes) -> None:
    topic_route("T", bodies.decode(TopicRouteData, body))


def compressed(count: int, part_bytes: int) -> None:
    version = b"{}"
    data = struct.pack(">i", len(version)) + version + struct.pack(">ii", count, part_bytes)
    run_whole(cast("Any", bodies.decompress_registration(zlib.compress(data))))


def popped(start: int) -> None:
    header = PopMessageReplyHeader(
        pop_time=1, invisible_time=1, revive_qid=0, rest_num=0, start_offset_info=f"0 0 {start}"
    )
    ReplyHandles(header, "b").of(pop_codec.NORMAL, 0, 2**40, None)


def planned(stop: int) -> None:
    queue = bodies.MessageQueue(topic="T", broker_name="b", queue_id=0)
    options = SimpleNamespace(
        max_bytes_per_partition=1 << 27, min_partitions=None, max_records_per_partition=None
    )
    plan.split([plan.Extent(queue, 0, stop, 100.0)], cast("Any", options))


def quota(text: str) -> None:
    value = quota_of({CLIENT_QUOTA: text})
    assert -1 <= value <= HUGE
    raise OverflowError(f"{text} became {value}")


def shown(time_ms: int) -> None:
    raise OverflowError(time_text(time_ms))


def table_of_topics(count: int) -> None:
    table = TopicConfigTable(
        data_version=bodies.DataVersion(), topic_config_table={"T": topic(count)}
    )
    bodies.decode(TopicConfigTable, bodies.encode(table))


def reported(value: int) -> None:
    SlaveReports.begin(value, OfferedRange(0, 100, 0), from_last_file=False)


LIES: Mapping[str, tuple[type[Exception], str, list[Callable[[], object]]]] = {
    "length of a frame": (
        NotAFrame, "frame of", [lambda: find_frame(struct.pack(">i", HUGE), 0, 4)],
    ),
    "length of a header in a frame": (
        NotAFrame, "header of", [lambda: command.decode(struct.pack(">i", 0xFFFFFF) + b"{}")],
    ),
    "length of a PROXY header": (
        NotAProxyHeader, "proxy_header_bytes",
        [lambda: proxy_header.decode(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff")],
    ),
    "ints and longs in JSON": (
        InvalidBody, "2147483647",
        [lambda: believed_route(route_body(2**31)), lambda: believed_route(route_body(10**400))],
    ),
    "queues of a topic in a registration (103)": (
        LimitExceeded, "topic_queues",
        [
            lambda: registered(topic(4, "good"), topic(HUGE)),
            lambda: registered(topic(65_536)),
            lambda: registered(topic(-1)),
        ],
    ),
    "queues of a topic in a registration (217)": (
        LimitExceeded, "topic_queues",
        [
            lambda: registered(topic(4)).register_topic(
                "T", [QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=HUGE)]
            )
        ],
    ),
    "length of a part of a compressed registration": (
        LimitExceeded, "registration_part_bytes", [lambda: compressed(1, HUGE)],
    ),
    "number of topics of a compressed registration": (
        LimitExceeded, "registration_topics", [lambda: compressed(HUGE, 4)],
    ),
    "queues of a topic on a broker, in a route (105)": (
        InvalidBody, "topic_queues",
        [lambda: believed_route(route_body(HUGE)), lambda: believed_route(route_body(4, -1))],
    ),
    "queues of a topic on all brokers, in a route (105)": (
        InvalidBody, "route_queues", [lambda: believed_route(route_body(*[65_535] * 1_000))],
    ),
    "queues in `orderTopicConf` of a route (105)": (
        InvalidBody, "topic_queues|route_queues",
        [
            lambda: believed_route(route_body(4, order=f"b0:{HUGE}")),
            lambda: believed_route(route_body(4, order="b0:" + "9" * 5_000)),
            lambda: believed_route(route_body(4, order="b0:60000;" * 1_000)),
        ],
    ),
    "queues of a topic in the list of all (21)": (
        InvalidBody, "topic_queues", [lambda: table_of_topics(HUGE)],
    ),
    "first offsets of a pop (200050)": (
        InvalidHeader, "ack_span", [lambda: popped(0), lambda: popped(2**41)],
    ),
    "quota of lite topics of a group (352)": (
        OverflowError, "became", [lambda: quota("9" * 5_000), lambda: quota(str(2**63))],
    ),
    "ends of queues (30, 31)": (ReadFailed, "live_partitions", [lambda: planned(2**62)]),
    "size of a record in a pull (11)": (
        CorruptRecord, "TOTALSIZE",
        [lambda: message.decode(struct.pack(">ii", HUGE, -626843481) + bytes(99))],
    ),
    "physical offset and size of a replicated frame": (
        NotAFrame, "allowed|minimum",
        [
            lambda: ha_frames.HeaderParser().feed(struct.pack(">qi", 0, HUGE)),
            lambda: ha_frames.HeaderParser().feed(struct.pack(">qi", -1, 0)),
        ],
    ),
    "physical offset that a slave reports": (
        ReportRefused, "after the end", [lambda: reported(2**62), lambda: reported(-1)],
    ),
    "times of messages": (OverflowError, "9223372036854775807", [lambda: shown(2**63 - 1)]),
}  # fmt: skip
"""Number -> error, a text in its message, and lies."""


def rows() -> list[tuple[str, str, str, str]]:
    return ROW.findall(PAGE.read_text())


def test_every_row_has_a_lie() -> None:
    assert [number for number, *_ in rows()] == list(LIES)


@pytest.mark.parametrize("number", LIES)
def test_a_lie_is_refused(number: str) -> None:
    error, named, lies = LIES[number]
    for lie in lies:
        with pytest.raises(error, match=named):
            lie()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_its_limit_and_its_check(row: tuple[str, str, str, str]) -> None:
    _, bound, _, check = row
    names = {limit.name for limit in limits.declared()}
    assert set(re.findall(r"`(\w+_\w+)`", bound)) <= names
    module, _, name = check.rpartition(".")
    assert hasattr(import_module(module), name)


@pytest.mark.parametrize("kind", [TopicRouteData, bodies.ClusterInfo, bodies.Assignments])
def test_a_large_body_in_another_dialect_stalls_no_client(kind: type[bodies.Body]) -> None:
    """Ten megabytes of it took a client's event loop for more than a second."""
    body = b"{brokerDatas:[" + b"{0:'x'}," * (10 << 17) + b"]}"
    with pytest.raises(InvalidBody, match="lenient_client_bytes"):
        bodies.decode(kind, body)


def test_numbers_at_their_bounds_are_believed() -> None:
    maximum = format_limits.TOPIC_QUEUES.maximum
    assert registered(topic(maximum), topic(0, "none")).topic_count == 2
    route = topic_route("T", bodies.decode(TopicRouteData, route_body(maximum, 4)))
    assert len(route.subscribe_queues) == maximum + 4
    popped(2**40 - format_limits.ACK_SPAN.maximum)
    planned(10**9)
