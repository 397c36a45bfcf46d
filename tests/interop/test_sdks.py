"""The 5.x SDKs on the gRPC port of a broker: unmodified, from their registries.

By default only the one for Python, and the cheap tests; with ``REPUT_INTEROP=all`` all of them.
Expectations, classes of exceptions and codes are those of rocketmq-proxy 5.5.0 with the same
programs.
"""

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop import java_oracle
from interop.clusters import until
from interop.other_clients import ClientUnavailable
from interop.sdks import (
    Consumer,
    GoSdk,
    Incoming,
    JavaSdk,
    NodeSdk,
    Outgoing,
    PythonSdk,
    Receipt,
    Refused,
    RustSdk,
    Sdk,
)
from ports import free_port
from reput.client import Message
from reput.client.blocking import Admin, Producer, PullConsumer
from reput.format import body as bodies, headers, sys_flag as flags
from reput.format.bodies import SubscriptionGroupConfig
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import SendMessageHeader
from reput.remoting.client import RemotingClient
from reput_cluster import ReputCluster

pytestmark = pytest.mark.interop

SETTINGS = {
    "autoCreateSubscriptionGroup": False,
    "enableMultiDispatch": True,
    "enablePropertyFilter": True,
    "recallMessageEnable": True,
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
}
ROOT = Path(__file__).parents[2]
DAY_MS = 24 * 60 * 60 * 1000
MIB = 1024 * 1024
needs_all = pytest.mark.rotating


@dataclass
class Front:
    """A broker with a gRPC port, and the topics and groups of one SDK's tests."""

    cluster: ReputCluster
    endpoint: str
    prefix: str

    def topic(self, name: str, kind: str = "NORMAL", queue_count: int = 4) -> str:
        """Create a topic of a type of messages; return its name."""
        topic = f"{self.prefix}-{name}"
        with Admin(self.cluster.namesrv) as admin:
            admin.create_topic(topic, queue_count=queue_count, attributes={"message.type": kind})
        return topic

    def group(self, name: str, **settings: object) -> str:
        """Create a group; return its name."""
        group = f"{self.prefix}-{name}"
        with Admin(self.cluster.namesrv) as admin:
            admin.create_group(SubscriptionGroupConfig(group_name=group, **settings))
        return group

    def lag(self, group: str, topic: str) -> int:
        """Return the number of messages that a group has not acknowledged."""
        with Admin(self.cluster.namesrv) as admin:
            queues = admin.consume_stats(group).queues
        return sum(queue.lag for queue in queues if queue.queue.topic == topic)

    def stored(self, topic: str) -> list[tuple[int, bytes]]:
        """Return queue id and body of the messages of a topic."""
        with PullConsumer(self.group("looker"), namesrv=self.cluster.namesrv) as consumer:
            queues = consumer.queues(topic)
            consumer.assign(queues)
            count = sum(consumer.end_offset(queue) for queue in queues)
            messages: list[tuple[int, bytes]] = []
            for queue in queues:
                consumer.seek_to_begin(queue)

            def has_all() -> bool:
                messages.extend((message.queue_id, message.body) for message in consumer.poll())
                return len(messages) >= count

            until(has_all, 30)
        return messages


@pytest.fixture(scope="module", params=[PythonSdk, GoSdk, JavaSdk, NodeSdk, RustSdk])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    if request.param is not PythonSdk and not java_oracle.wants_all_versions():
        pytest.skip(f"make interop-all: no {request.param.name} SDK")
    try:
        made: Sdk = request.param()
    except ClientUnavailable as reason:
        if java_oracle.wants_all_versions() and request.param is not RustSdk:
            raise
        pytest.skip(f"missing client: {reason}")
    return made


def needs(sdk: Sdk, *features: str) -> None:
    """Skip a test of what an SDK does not have."""
    for feature in features:
        if feature in sdk.lacks:
            pytest.skip(f"no such case: the {sdk.name} SDK: {sdk.lacks[feature]}")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, sdk: Sdk) -> Iterator[Front]:
    port = free_port()
    folder = tmp_path_factory.mktemp("front")
    with ReputCluster(folder, {**SETTINGS, "grpcServerPort": port}) as cluster:
        yield Front(cluster, f"127.0.0.1:{port}", sdk.name)


def receive_all(consumer: Consumer, count: int, invisible_ms: int = 30_000) -> list[Incoming]:
    """Receive ``count`` messages: no receive is empty, whichever queue the SDK names."""
    messages: list[Incoming] = []
    while len(messages) < count:
        some = received(consumer, invisible_ms)
        assert some, f"{len(messages)} of {count} messages"
        messages.extend(some)
    return messages


def received(consumer: Consumer, invisible_ms: int = 30_000, at_once: int = 1) -> list[Incoming]:
    """Receive once, or often at once: Go's SDK raises an error if there is nothing."""
    try:
        return consumer.receive(32, invisible_ms, at_once)
    except Refused as refused:
        if refused.code != 40401:
            raise
        return []


def test_sent_messages_are_received_and_acknowledged(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("sent", queue_count=1), front.group("sent")
    wanted = Outgoing(b"one", "a", ["k"], {"u": "1"})
    receipts = sdk.sent(front.endpoint, topic, [wanted] * 4)
    if sdk.reports_offset:
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2, 3]
    receipts += sdk.sent(front.endpoint, topic, [Outgoing(b"two")] * 4, how="async")
    ids = {receipt.message_id for receipt in receipts}
    assert len(ids) == 8
    with sdk.simple(front.endpoint, topic, group) as consumer:
        messages = receive_all(consumer, 8)
        assert {message.message_id for message in messages} == ids
        assert [message.body for message in messages] == [b"one"] * 4 + [b"two"] * 4
        assert {(m.tag, *m.keys, m.properties.get("u")) for m in messages[:4]} == {("a", "k", "1")}
        assert {m.attempt for m in messages} == {1}
        for index in range(8):
            consumer.ack(index)
    until(lambda: front.lag(group, topic) == 0, 30)


@pytest.mark.rotating
def test_a_push_consumer_is_shown_as_a_member(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("push"), front.group("push")
    with sdk.push(front.endpoint, topic, group) as consumer:
        receipts = sdk.sent(front.endpoint, topic, [Outgoing(b"%d" % i) for i in range(8)])
        messages = consumer.take(8)
        shown = json.loads(reput(front, "group", "show", group, "--json"))
    ids = {message.message_id: message.body for message in messages}
    assert ids == {r.message_id: b"%d" % i for i, r in enumerate(receipts)}
    assert shown["member_count"] == 1


def reput(front: Front, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "reput", *arguments, "--namesrv", front.cluster.namesrv],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_documentation(sdk: Sdk, front: Front, tmp_path: Path) -> None:
    language, name = sdk.page
    page = (ROOT / "docs/quickstart/sdk-5x.md").read_text(encoding="utf-8")
    (source,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    topic, group = front.topic("Orders"), front.group("billing")
    source = source.replace("127.0.0.1:8081", front.endpoint)
    source = source.replace('"Orders"', f'"{topic}"').replace("'Orders'", f"'{topic}'")
    (tmp_path / name).write_text(source.replace('"billing"', f'"{group}"'), encoding="utf-8")
    done = subprocess.run(
        sdk.example(tmp_path),
        cwd=tmp_path,
        env={**os.environ, **sdk.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    message_id, *more = done.stdout.split("\n")
    assert len(message_id) == 34, done.stderr
    assert more == (["b'two coffees'", ""] if sdk.name == "python" else [""])
    ((_, body),) = front.stored(topic)
    assert body == b"two coffees"


@needs_all
def test_ten_thousand_messages_are_pushed_once(sdk: Sdk, front: Front) -> None:
    """A thousand of them are sent at once; with more, deadlines of SDKs pass on a busy machine."""
    topic, group = front.topic("many"), front.group("many")
    bodies = [b"%d" % number for number in range(10_000)]
    with sdk.push(front.endpoint, topic, group) as consumer:
        receipts = sdk.sent(
            front.endpoint, topic, [Outgoing(body) for body in bodies[:1_000]], how="async"
        )
        with Producer("remoting", namesrv=front.cluster.namesrv) as producer:
            for body in bodies[1_000:]:
                producer.send(Message(topic, body))
        arrived = consumer.take(len(bodies))
    assert len({receipt.message_id for receipt in receipts}) == 1_000
    assert sorted(message.body for message in arrived) == sorted(bodies)


@needs_all
def test_a_message_that_fails_three_times_is_delivered_four_times(sdk: Sdk, front: Front) -> None:
    topic = front.topic("again")
    needs(sdk, "push")
    group = front.group("again", group_retry_policy=sdk.retry_policy)
    with sdk.push(front.endpoint, topic, group, fail=3) as consumer:
        sdk.sent(front.endpoint, topic, [Outgoing(b"again", "a", ["k"], {"u": "1"})])
        messages = consumer.take(4)
    assert [message.attempt for message in messages] == [1, 2, 3, 4]
    assert len({message.message_id for message in messages}) == 1
    assert {(m.tag, *m.keys, m.properties.get("u")) for m in messages} == {("a", "k", "1")}
    times = [message.at_ms for message in messages]
    assert min(b - a for a, b in itertools.pairwise(times)) >= sdk.pause_ms


@needs_all
@pytest.mark.parametrize("is_ordered", [False, True], ids=["standard", "fifo"])
def test_a_message_that_always_fails_is_a_dead_letter(
    sdk: Sdk, front: Front, is_ordered: bool
) -> None:
    needs(sdk, "push")
    name = f"dead-{is_ordered}"
    topic = front.topic(name, "FIFO" if is_ordered else "NORMAL")
    group = front.group(
        name,
        retry_max_times=1,
        consume_message_orderly=is_ordered,
        group_retry_policy=sdk.retry_policy,
    )
    message = Outgoing(b"dead", group="g" if is_ordered else "")
    with sdk.push(front.endpoint, topic, group, fail=99) as consumer:
        sdk.sent(front.endpoint, topic, [message])
        attempts = [message.attempt for message in consumer.take(2)]
        # The SDK itself retries in order; the one for Python does not count.
        assert attempts == [1, 2] or (is_ordered and sdk.name == "python")
        dead = f"%DLQ%{group}"
        with Admin(front.cluster.namesrv) as admin:
            until(lambda: dead in admin.topics(), 60)
        until(lambda: front.stored(dead), 60)
    assert [body for _, body in front.stored(dead)] == [b"dead"]


@needs_all
def test_message_groups_stay_in_order_across_consumers(sdk: Sdk, front: Front) -> None:
    topic = front.topic("fifo", "FIFO")
    group = front.group("fifo", consume_message_orderly=True)
    messages = [
        Outgoing(b"%d/%d" % (name, number), group=f"group-{name}")
        for number in range(10)
        for name in range(8)
    ]
    with (
        sdk.push(front.endpoint, topic, group) as first,
        sdk.push(front.endpoint, topic, group) as second,
    ):
        sdk.sent(front.endpoint, topic, messages)
        arrived: list[Incoming] = []

        def has_all() -> bool:
            for consumer in (first, second):
                arrived.extend(consumer.arrived())
            return len(arrived) >= len(messages)

        until(has_all, 60)
    arrived.sort(key=lambda message: message.at_ms)
    assert sorted(message.body for message in arrived) == sorted(m.body for m in messages)
    for name in range(8):
        mine = [message.body for message in arrived if message.group == f"group-{name}"]
        assert mine == [b"%d/%d" % (name, number) for number in range(10)]


@needs_all
def test_a_group_is_received_in_order_from_many_queues(sdk: Sdk, front: Front) -> None:
    """The calls of SimpleOrderTest of apache/rocketmq-e2e."""
    topic = front.topic("one-by-one", "FIFO", queue_count=8)
    group = front.group("one-by-one", consume_message_orderly=True)
    bodies = [b"%d" % number for number in range(20)]
    with sdk.simple(front.endpoint, topic, group, filter="a") as consumer:
        assert received(consumer, at_once=sdk.receives_at_once) == []
        sdk.sent(front.endpoint, topic, [Outgoing(body, "a", group="g") for body in bodies])
        arrived: list[bytes] = []
        while len(arrived) < len(bodies):
            messages = received(consumer)
            assert messages, f"nothing after {len(arrived)} messages"
            for message in messages:
                consumer.ack(len(arrived))
                arrived.append(message.body)
    assert arrived == bodies


@needs_all
def test_many_receives_at_once_get_each_message_once(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("at-once", queue_count=8), front.group("at-once")
    bodies = [b"%d" % number for number in range(200)]
    with sdk.simple(front.endpoint, topic, group) as consumer:
        sdk.sent(front.endpoint, topic, [Outgoing(body) for body in bodies], how="async")
        arrived: list[bytes] = []
        while len(arrived) < len(bodies):
            messages = received(consumer, at_once=sdk.receives_at_once)
            assert messages, f"nothing after {len(arrived)} messages"
            for message in messages:
                consumer.ack(len(arrived))
                arrived.append(message.body)
        assert sorted(arrived) == sorted(bodies)
        assert received(consumer) == []
    until(lambda: front.lag(group, topic) == 0, 30)


@needs_all
def test_a_receipt_names_the_message_as_its_transaction(sdk: Sdk, front: Front) -> None:
    plain, half = front.topic("plain-id"), front.topic("half-id", "TRANSACTION")
    receipts = sdk.sent(front.endpoint, plain, [Outgoing(b"one")])
    receipts += sdk.sent(front.endpoint, half, [Outgoing(b"two")], how="transaction")
    assert [receipt.transaction_id for receipt in receipts] == [r.message_id for r in receipts]


@needs_all
def test_a_delayed_message_is_delivered_in_time_or_recalled(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("delay", "DELAY"), front.group("delay")
    with sdk.push(front.endpoint, topic, group) as consumer:
        if "recall" not in sdk.lacks:
            sooner = [Outgoing(b"recalled", delay_ms=6_000)]
            sent, recalled = sdk.send(front.endpoint, topic, sooner, recall=True)
            assert recalled == {"recalled": sent["message_id"]}
        sent_ms = time.time_ns() // 1_000_000
        sdk.sent(front.endpoint, topic, [Outgoing(b"later", delay_ms=8_000)])
        (message,) = consumer.take(1)
    assert message.body == b"later"
    # SDKs cut the time to seconds.
    assert 6_900 <= message.at_ms - sent_ms <= 14_000


@needs_all
def test_transactions_are_committed_rolled_back_and_checked(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("half", "TRANSACTION"), front.group("half")
    messages = [
        Outgoing(b"commit"),
        Outgoing(b"rollback", resolution="rollback"),
        Outgoing(b"leave", resolution="leave"),
    ]
    checks = ["unknown", "commit"]
    with (
        sdk.push(front.endpoint, topic, group) as consumer,
        sdk.start_send(
            front.endpoint, topic, messages, how="transaction", checks=checks
        ) as producer,
    ):
        receipts = [Receipt(**producer.answer()) for _ in messages]
        assert [producer.answer()["checked"] for _ in checks] == checks
        arrived = consumer.take(2)
        assert sorted(message.body for message in arrived) == [b"commit", b"leave"]
        ids = {receipts[0].message_id, receipts[2].message_id}
        assert {message.message_id for message in arrived} == ids
        assert consumer.arrived() == []


@needs_all
def test_a_transaction_is_committed_after_a_restart(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("kept", "TRANSACTION"), front.group("kept")
    checks = ["unknown"] * 99
    with (
        sdk.push(front.endpoint, topic, group) as consumer,
        sdk.start_send(
            front.endpoint, topic, [Outgoing(b"kept")], how="transaction", checks=checks,
            hold_ms=40_000,  # Java's proxy forgets where a half message is after 30 s
        ) as producer,
    ):  # fmt: skip
        producer.answer()
        front.cluster.stop_broker()
        front.cluster.start()
        (message,) = consumer.take(1)
        assert message.body == b"kept"


@needs_all
def test_a_priority_chooses_the_queue(sdk: Sdk, front: Front) -> None:
    topic = front.topic("priority", "PRIORITY")
    needs(sdk, "priority")
    sent = sdk.priorities
    sdk.sent(front.endpoint, topic, [Outgoing(b"%d" % n, priority=n) for n in sent])
    assert sorted(front.stored(topic)) == [(n, b"%d" % n) for n in sent]


LITE_MESSAGES = [
    Outgoing(body.encode(), keys=[body], lite_topic=body[0]) for body in ("a1", "b1", "c1", "a2")
]


def lite_group(front: Front, name: str, topic: str, **attributes: str) -> str:
    texts = {"lite.bind.topic": topic, **attributes}
    return front.group(name, attributes={f"+{key}": text for key, text in texts.items()})


def check_lite(arrived: list[Incoming], receipts: list[Receipt]) -> None:
    """Check the messages of the lite topics a and b."""
    assert sorted(message.body for message in arrived) == [b"a1", b"a2", b"b1"]
    assert {(m.body[:1].decode(), m.keys[0].encode()) for m in arrived} == {
        (m.lite_topic, m.body) for m in arrived
    }
    bodies = [message.body for message in arrived]
    assert bodies.index(b"a1") < bodies.index(b"a2")
    ids = {receipt.message_id for number, receipt in enumerate(receipts) if number != 2}
    assert {message.message_id for message in arrived} == ids


@needs_all
def test_lite_topics_are_pushed(sdk: Sdk, front: Front) -> None:
    needs(sdk, "lite")
    topic = front.topic("lite", "LITE")
    group = lite_group(front, "lite", topic)
    with sdk.lite(front.endpoint, topic, group, ["a", "b"]) as consumer:
        receipts = sdk.sent(front.endpoint, topic, LITE_MESSAGES)
        check_lite(consumer.take(3), receipts)
    # What it had not acknowledged would come now.
    with sdk.lite(front.endpoint, topic, group, ["a", "b"]) as consumer:
        sdk.sent(front.endpoint, topic, [Outgoing(b"b2", lite_topic="b")])
        assert [message.body for message in consumer.take(1)] == [b"b2"]
        assert consumer.arrived() == []


@needs_all
def test_lite_topics_are_received(sdk: Sdk, front: Front) -> None:
    needs(sdk, "lite simple")
    topic = front.topic("lite-simple", "LITE")
    group = lite_group(front, "lite-simple", topic)
    with sdk.simple(front.endpoint, topic, group, lite_topics=["a", "b"]) as consumer:
        receipts = sdk.sent(front.endpoint, topic, LITE_MESSAGES)
        arrived: list[Incoming] = []

        def has_all() -> bool:
            for message in received(consumer):
                consumer.ack(len(arrived))
                arrived.append(message)
            return len(arrived) >= 3

        until(has_all, 60)
        check_lite(arrived, receipts)
        assert received(consumer) == []


@needs_all
def test_a_quota_of_lite_topics(sdk: Sdk, front: Front) -> None:
    needs(sdk, "lite")
    if "lite quota" not in sdk.errors:
        pytest.skip(f"no such case: the {sdk.name} SDK does not look at the quota")
    topic = front.topic("lite-few", "LITE")
    group = lite_group(front, "lite-few", topic, **{"lite.sub.client.quota": "1"})
    with pytest.raises(Refused) as refused, sdk.lite(front.endpoint, topic, group, ["a", "b"]):
        pass
    assert (refused.value.kind, refused.value.code) == sdk.errors["lite quota"]


@needs_all
def test_invisible_times_and_handles(sdk: Sdk, front: Front) -> None:
    needs(sdk, "change")
    topic, group = front.topic("handles", queue_count=1), front.group("handles")
    sdk.sent(front.endpoint, topic, [Outgoing(b"message")])
    with sdk.simple(front.endpoint, topic, group) as consumer:
        # 0: received at once. 1: its expired handle. 2: acknowledged by the first handle.
        (first,) = receive_all(consumer, 1)
        assert first.attempt == 1
        consumer.copy(0)
        consumer.change(0, 2_000)
        (second,) = receive_all(consumer, 1)
        assert second.attempt == 2
        assert second.at_ms - first.at_ms >= 1_900
        with pytest.raises(Refused) as refused:
            consumer.change(0, 20_000) if "ack errors" in sdk.lacks else consumer.ack(0)
        assert refused.value.code == 40013
        consumer.change(2, 20_000)
        consumer.copy(2)
        consumer.ack(2)
        consumer.ack(3)
        assert received(consumer) == []


@needs_all
@pytest.mark.parametrize(
    ("expression", "is_sql"),
    [("a || b", False), ("u > 3 AND TAGS <> 'c'", True)],
    ids=["tags", "sql"],
)
def test_a_filter_chooses_messages(sdk: Sdk, front: Front, expression: str, is_sql: bool) -> None:
    name = f"filter-{is_sql}"
    topic, group = front.topic(name), front.group(name)
    sdk.sent(
        front.endpoint,
        topic,
        [Outgoing(b"1", "a", properties={"u": "5"}), Outgoing(b"2", "c", properties={"u": "5"}),
         Outgoing(b"3", "b", properties={"u": "4"}), Outgoing(b"4")],
    )  # fmt: skip
    with sdk.simple(front.endpoint, topic, group, filter=expression, is_sql=is_sql) as consumer:
        messages = receive_all(consumer, 2)
        assert sorted(message.body for message in messages) == [b"1", b"3"]
        assert received(consumer) == []


@needs_all
def test_large_bodies_and_many_properties(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("large", queue_count=1), front.group("large")
    body = bytes(range(256)) * (4 * MIB // 256)
    if sdk.reads_large:
        sdk.sent(front.endpoint, topic, [Outgoing(body[:-1])])
    many = {f"p{number}": "v" for number in range(128)}
    sdk.sent(front.endpoint, topic, [Outgoing(b"many", properties=many)])
    with sdk.simple(front.endpoint, topic, group) as consumer:
        messages = receive_all(consumer, 1 + sdk.reads_large)
    assert [m.body for m in messages] == [body[:-1], b"many"][1 - sdk.reads_large :]
    assert messages[-1].properties == many
    for message, error in (
        (Outgoing(body + b"1"), "large body"),
        (Outgoing(b"1", properties={**many, "p": "v"}), "properties"),
    ):
        assert refusal(sdk, front, topic, message) == sdk.errors[error]


def refusal(sdk: Sdk, front: Front, topic: str, message: Outgoing) -> tuple[str, int | None]:
    with pytest.raises(Refused) as refused:
        sdk.sent(front.endpoint, topic, [message])
    return refused.value.kind, refused.value.code


@needs_all
def test_refused_sends(sdk: Sdk, front: Front) -> None:
    fifo, delay = front.topic("typed", "FIFO"), front.topic("far", "DELAY")
    message = Outgoing(b"one")
    assert refusal(sdk, front, fifo, message) == sdk.errors["wrong type"]
    late = Outgoing(b"one", delay_ms=DAY_MS + 2_000)
    assert refusal(sdk, front, delay, late) == sdk.errors["late"]
    assert refusal(sdk, front, "no-such-topic", message) == sdk.errors["unknown topic"]
    assert refusal(sdk, front, "TBW102", message) == sdk.errors["system topic"]


@needs_all
def test_an_unknown_group_is_refused(sdk: Sdk, front: Front) -> None:
    if "unknown group" not in sdk.errors:
        pytest.skip(f"no such case: the {sdk.name} SDK tries for ever")
    topic = front.topic("unknown")
    with (
        pytest.raises(Refused) as refused,
        sdk.simple(front.endpoint, topic, "no-such-group") as consumer,
    ):
        consumer.receive()
    assert (refused.value.kind, refused.value.code) == sdk.errors["unknown group"]


@needs_all
def test_bodies_of_remoting_producers_are_decompressed(sdk: Sdk, front: Front) -> None:
    topic, group = front.topic("in"), front.group("in")
    body = b"compressible" * 1000
    with Producer("remoting", namesrv=front.cluster.namesrv) as producer:
        sent = producer.send(Message(topic, body, tags="a", keys=["k"], properties={"u": "1"}))
    for codec in (flags.COMPRESSION_LZ4, flags.COMPRESSION_ZSTD):
        asyncio.run(send_compressed(front.cluster.address, topic, body, codec))
    with sdk.simple(front.endpoint, topic, group) as consumer:
        messages = receive_all(consumer, 3)
    assert [message.body for message in messages] == [body] * 3
    (message,) = (message for message in messages if message.tag)
    assert (message.tag, *message.keys, message.properties["u"]) == ("a", "k", "1")
    assert message.message_id == sent.message_id


async def send_compressed(address: str, topic: str, body: bytes, codec: int) -> None:
    """Send a message as a remoting producer that compresses with another codec than ours does."""
    sys_flag = flags.COMPRESSED | codec
    header = SendMessageHeader(
        producer_group="remoting",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties=f"UNIQ_KEY\1{codec}\2",
    )
    request = Command(
        RequestCode.SEND_MESSAGE, ext_fields=headers.encode(header),
        body=bodies.compress(body, sys_flag),
    )  # fmt: skip
    async with RemotingClient() as client:
        reply = await client.invoke(address, request)
    assert reply.code == 0, reply.remark


@needs_all
def test_remoting_consumers_read_what_an_sdk_sent(sdk: Sdk, front: Front) -> None:
    topic = front.topic("out", queue_count=1)
    wanted = Outgoing(b"compressible" * 1000, "a", ["k"], {"u": "1"})
    (receipt,) = sdk.sent(front.endpoint, topic, [wanted])
    with PullConsumer(front.group("out"), namesrv=front.cluster.namesrv) as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        consumer.seek_to_begin(queues[0])
        (message,) = consumer.poll()
    assert message.body == wanted.body
    assert (message.tags, [*message.keys], message.properties["u"]) == ("a", ["k"], "1")
    assert message.message_id == receipt.message_id


@needs_all
@pytest.mark.parametrize("is_kill", [False, True], ids=["stop", "kill"])
def test_a_restart_under_load_loses_nothing(sdk: Sdk, front: Front, is_kill: bool) -> None:
    topic, group = front.topic(f"load-{is_kill}"), front.group(f"load-{is_kill}")
    messages = [Outgoing(b"%d" % number) for number in range(300)]
    with (
        sdk.push(front.endpoint, topic, group) as consumer,
        sdk.start_send(front.endpoint, topic, messages, pause_ms=20, until_sent=True) as producer,
    ):
        arrived = consumer.take(50)
        front.cluster.kill_broker() if is_kill else front.cluster.stop_broker()
        arrived += consumer.arrived()
        front.cluster.start()
        up_ms = time.time_ns() // 1_000_000
        (next_one,) = consumer.take(1)
        arrived.append(next_one)
        producer.close_input()
        lines = producer.lines()
        assert len(lines) == 300
        assert [line for line in lines if "error" in line] == []
        wanted = {message.body for message in messages}

        def has_all() -> bool:
            arrived.extend(consumer.arrived())
            return {message.body for message in arrived} == wanted

        until(has_all, 90)
    assert next_one.at_ms - up_ms <= 10_000


@needs_all
@pytest.mark.parametrize("is_restart", [False, True], ids=["running", "restart"])
def test_a_message_that_takes_100_s_is_delivered_once(
    sdk: Sdk, front: Front, is_restart: bool
) -> None:
    needs(sdk, "push")
    topic, group = front.topic(f"long-{is_restart}"), front.group(f"long-{is_restart}")
    with sdk.push(front.endpoint, topic, group, work_ms=100_000) as consumer:
        sdk.sent(front.endpoint, topic, [Outgoing(b"long")])
        (message,) = consumer.take(1)
        if is_restart:
            front.cluster.stop_broker()
            front.cluster.start()
        assert message.body == b"long"
        again: list[Incoming] = []

        def is_over() -> bool:
            again.extend(consumer.arrived())
            return bool(again) or time.time_ns() // 1_000_000 > message.at_ms + 105_000

        until(is_over, 120)
        assert again == []
    # What it had not acknowledged would come now.
    with sdk.simple(front.endpoint, topic, group) as other:
        assert received(other) == []


@needs_all
def test_messages_of_a_killed_consumer_go_to_another(sdk: Sdk, front: Front) -> None:
    needs(sdk, "push")
    topic, group = front.topic("killed"), front.group("killed")
    with sdk.push(front.endpoint, topic, group, work_ms=600_000) as busy:
        sdk.sent(front.endpoint, topic, [Outgoing(b"one")])
        busy.take(1)
        busy.kill()
    with sdk.push(front.endpoint, topic, group) as other:
        (message,) = other.take(1, 50)
    assert message.body == b"one"
