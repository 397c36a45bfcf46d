"""Unmodified Java clients on our name server and our broker.

With ``REPUT_INTEROP=all`` the same tests run on the official broker too, because they expect its
behaviour.
"""

import contextlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from interop import java_oracle
from interop.clusters import KINDS, Cluster, make_topic, start_cluster, until
from interop.java_cluster import (
    ClientError,
    JavaClient,
    JavaCluster,
    JavaMessage,
    JavaReceived,
    JavaSent,
    LitePullConsumer,
    PushConsumer,
    Queue,
    Settings,
)

pytestmark = pytest.mark.interop

GUARD_S = 60
COMPRESSED = 1
BODY_BYTES_MAX = 4 << 20
MESSAGE_ILLEGAL = 13
NO_MESSAGE = 208
CLIENT_NO_ROUTE = 10005

# Short intervals of route updates and heartbeats.
QUICK = {"pollNameServerInterval": 200, "heartbeatBrokerInterval": 1000}

# Settings that differ from a broker's defaults. With a ratio of 0, all messages except the newest
# count as "on disk": a new group then begins at its configured position, as in long, old queues.
OTHER_SETTINGS: Settings = {
    "autoCreateTopicEnable": False,
    "enablePropertyFilter": True,
    "accessMessageInMemoryMaxRatio": 0,
    "messageDelayLevel": "1s 1s 1s 1s 1s",
}


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest,
    java_client: JavaClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Start a shared broker with default settings; use unique topics."""
    folder = tmp_path_factory.mktemp("cluster")
    with start_cluster(request.param, java_client.version, folder) as running:
        yield running


@pytest.fixture(scope="module", params=KINDS)
def other(
    request: pytest.FixtureRequest,
    java_client: JavaClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Start a shared broker with ``OTHER_SETTINGS``."""
    folder = tmp_path_factory.mktemp("other")
    with start_cluster(request.param, java_client.version, folder, OTHER_SETTINGS) as running:
        yield running


@pytest.fixture(params=KINDS)
def own(
    request: pytest.FixtureRequest, java_client: JavaClient, tmp_path: Path
) -> Iterator[Cluster]:
    """Start a separate broker, which the test may stop and kill."""
    with start_cluster(request.param, java_client.version, tmp_path / "own") as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Provide a topic and group name that is unique to the test."""
    name = request.node.name.removeprefix("test_")
    return "".join(character if character.isalnum() else "-" for character in name)[:100]


def is_java_4_5(cluster: Cluster) -> bool:
    return isinstance(cluster, JavaCluster) and cluster.version == "4.5.2"


def numbered(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def messages(topic: str, bodies: Iterable[bytes]) -> list[JavaMessage]:
    return [JavaMessage(topic, body) for body in bodies]


def bodies(received: Iterable[JavaReceived]) -> list[bytes]:
    return sorted(message.body for message in received)


def until_stored(java: JavaClient, cluster: Cluster, topic: str, count: int) -> None:
    """Wait for messages that were sent without an answer."""

    def is_stored() -> bool:
        with contextlib.suppress(ClientError):  # the topic does not exist yet
            return sum(map(consumer.max_offset, consumer.queues(topic))) == count
        return False

    with java.pull_consumer(cluster.namesrv, "readers") as consumer:
        until(is_stored)


def assigned(consumer: PushConsumer, topic: str) -> list[Queue]:
    """Return the assigned queues of a topic; a consumer also has queues of its retry topic."""
    return [queue for queue in consumer.assigned() if queue.topic == topic]


def read_all(java: JavaClient, cluster: Cluster, topic: str) -> dict[Queue, list[JavaReceived]]:
    with java.pull_consumer(cluster.namesrv, "readers") as consumer:
        return consumer.read_all(topic)


def push(
    java: JavaClient,
    cluster: Cluster,
    group: str,
    topic: str,
    expression: str = "*",
    **settings: Any,
) -> PushConsumer:
    """Start a push consumer that updates its routes more often than every 30 s."""
    return java.push_consumer(cluster.namesrv, group, topic, expression, **QUICK, **settings)


# --- sending ------------------------------------------------------------------------


@pytest.mark.sampled(14)
@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch", "ordered"])
def test_sent_messages_are_read(
    cluster: Cluster, java_client: JavaClient, topic: str, how: str
) -> None:
    java = java_client
    wanted = [
        JavaMessage(
            topic,
            f"{how} {number} \N{SNOWMAN}".encode(),
            tags="abc"[number % 3],
            keys=f"key{number} other{number}",
            properties={"number": str(number), "word": "\N{SNOWMAN} and \N{PILE OF POO}"},
            flag=number,
        )
        for number in range(12)
    ]
    with java.producer(cluster.namesrv, f"{topic}-producers") as producer:
        if how == "ordered":
            results = producer.send_ordered(wanted, "ababababcccc")
        else:
            results = producer.send(wanted, how)
        if how == "oneway":
            until_stored(java, cluster, topic, len(wanted))
        assert len(producer.queues(topic)) == 4

    queues = read_all(java, cluster, topic)
    for queue, received in queues.items():
        assert [message.queue_offset for message in received] == list(range(len(received)))
        assert all(
            (message.topic, message.queue_id) == (topic, queue.queue_id) for message in received
        )
    received = [message for queue in queues.values() for message in queue]
    by_body = {message.body: message for message in received}
    assert len(received) == len(by_body) == len(wanted)
    for message in wanted:
        got = by_body[message.body]
        assert (got.tags, got.keys, got.flag) == (message.tags, message.keys, message.flag)
        assert message.properties.items() <= got.properties.items()
        assert got.properties["UNIQ_KEY"] == got.msg_id
        assert got.born_host.startswith("127.0.0.1:")
        assert got.store_host == cluster.address
        assert 0 < got.born_timestamp <= got.store_timestamp
        assert got.reconsume_times == got.sys_flag & COMPRESSED == 0
    assert_places(results, wanted, by_body)
    if how == "ordered":
        by_key = defaultdict(list)
        for key, message in zip("ababababcccc", wanted, strict=True):
            by_key[key].append(message.body)
        for sent in by_key.values():
            queue_ids = {by_body[body].queue_id for body in sent}
            assert len(queue_ids) == 1
            places = [by_body[body].queue_offset for body in sent]
            assert places == sorted(places)


def assert_places(
    results: list[JavaSent], wanted: list[JavaMessage], by_body: dict[bytes, JavaReceived]
) -> None:
    """Assert that messages are at the places of the send results; a batch has one result."""
    if not results or results[0] is None:
        return
    assert {result.status for result in results} == {"SEND_OK"}
    if len(results) == 1:
        sent = results[0]
        ids = zip(sent.msg_id.split(","), sent.offset_msg_id.split(","), strict=True)
        places = [
            (sent.queue.queue_id, sent.queue_offset + number, *two)
            for number, two in enumerate(ids)
        ]
    else:
        places = [
            (result.queue.queue_id, result.queue_offset, result.msg_id, result.offset_msg_id)
            for result in results
        ]
    for message, place in zip(wanted, places, strict=True):
        got = by_body[message.body]
        assert place == (got.queue_id, got.queue_offset, got.msg_id, got.offset_msg_id)


@pytest.mark.sampled(14)
def test_long_bodies_are_compressed(cluster: Cluster, java_client: JavaClient, topic: str) -> None:
    chance = random.Random(1)
    body = b"compress me " * 1000
    noise = chance.randbytes(100_000)
    with java_client.producer(cluster.namesrv) as producer:
        producer.send(messages(topic, [body, b"short", noise]))
    with push(java_client, cluster, topic, topic) as consumer:
        received = {message.body: message for message in consumer.take(3)}
    assert received.keys() == {body, b"short", noise}
    assert received[body].store_size < 1000
    assert received[noise].store_size > 100_000


@pytest.mark.sampled(14)
def test_bodies_of_4_mebibytes_are_accepted(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    if is_java_4_5(cluster):
        pytest.skip("no such case: in 4.5 maxMessageSize limits the whole record")
    noise = random.Random(2).randbytes(BODY_BYTES_MAX + 1)
    largest = noise[:BODY_BYTES_MAX]
    plain = {"compressMsgBodyOverHowmuch": 1 << 30}  # noise grows when it is compressed
    with java_client.producer(cluster.namesrv, **plain) as producer:
        (sent,) = producer.send([JavaMessage(topic, largest)])
        assert sent.status == "SEND_OK"
        # The client itself checks the size.
        (refused,) = producer.results([JavaMessage(topic, noise)])
        assert isinstance(refused, ClientError)
        assert (refused.type, refused.code) == ("MQClientException", MESSAGE_ILLEGAL)
    # The broker refuses a message from a client that does not check.
    generous = {"maxMessageSize": 16 << 20, "retryTimesWhenSendFailed": 0, **plain}
    with java_client.producer(cluster.namesrv, **generous) as producer:
        (refused,) = producer.results([JavaMessage(topic, noise)])
        assert isinstance(refused, ClientError)
        assert (refused.type, refused.code) == ("MQBrokerException", MESSAGE_ILLEGAL)
        assert producer.send([JavaMessage(topic, b"and on")])[0].status == "SEND_OK"
    with push(java_client, cluster, topic, topic) as consumer:
        assert bodies(consumer.take(2)) == sorted([largest, b"and on"])


@pytest.mark.sampled(14)
def test_a_batch_of_thousands_is_stored(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    sent = numbered(5_000, "a body of a batch, ")
    with java_client.producer(cluster.namesrv) as producer:
        (result,) = producer.send(messages(topic, sent), "batch")
        assert result.status == "SEND_OK"
        assert len(set(result.msg_id.split(","))) == len(sent)
        assert result.queue_offset == 0
        too_much = [JavaMessage(topic, bytes(1 << 20)) for _ in range(5)]
        (refused,) = producer.results(too_much, "batch")
        assert isinstance(refused, ClientError)
    with push(java_client, cluster, topic, topic, consumeMessageBatchMaxSize=1024) as consumer:
        received = consumer.take(len(sent))
    assert Counter(message.body for message in received) == Counter(sent)
    assert {message.queue_id for message in received} == {result.queue.queue_id}


@pytest.mark.sampled(14)
def test_only_an_admin_creates_topics(other: Cluster, java_client: JavaClient, topic: str) -> None:
    """With automatic creation disabled, sending does not create a topic."""
    with java_client.producer(other.namesrv) as producer:
        (refused,) = producer.results([JavaMessage(topic, b"body")])
        assert isinstance(refused, ClientError)
        assert (refused.type, refused.code) == ("MQClientException", CLIENT_NO_ROUTE)
        # The address of the broker does not help a client either.
        (refused,) = producer.results(
            [JavaMessage(topic, b"body")], queue=Queue(topic, "broker-a", 0)
        )
        assert isinstance(refused, ClientError)
        make_topic(java_client, other, topic, 3)
        producer.send([JavaMessage(topic, b"body")])
        assert [queue.queue_id for queue in producer.queues(topic)] == [0, 1, 2]


# --- push consumers -----------------------------------------------------------------


def two_members(
    java: JavaClient, cluster: Cluster, topic: str
) -> tuple[PushConsumer, PushConsumer]:
    """Start two consumers of a group; on return each has half of the queues."""
    first = push(java, cluster, topic, topic)
    # A client takes queues one by one: two of four are not its half before the other has come.
    until(lambda: len(assigned(first, topic)) == 4)
    second = push(java, cluster, topic, topic)
    until(lambda: [len(assigned(member, topic)) for member in (first, second)] == [2, 2])
    return first, second


@pytest.mark.sampled(14)
def test_two_members_share_until_one_leaves(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    java = java_client
    make_topic(java, cluster, topic)
    first, second = two_members(java, cluster, topic)
    assert not {*assigned(first, topic)} & {*assigned(second, topic)}
    sent = numbered(200)
    with java.producer(cluster.namesrv) as producer:
        producer.send(messages(topic, sent), "async")
        until(lambda: len(first.received) + len(second.received) >= len(sent))
        assert first.received
        assert second.received
        # The listener has a message before its offset counts; without its offset it comes again.
        until_committed(java, cluster, (first, second), topic, len(sent))
        first.close()
        until(lambda: len(assigned(second, topic)) == 4)
        more = numbered(100, "more")
        producer.send(messages(topic, more), "async")
        second.wait_until(lambda received: len(received) + len(first.received) >= 300)
    received = [message.body for message in first.received + second.received]
    assert Counter(received) == Counter(sent + more)
    second.close()


@pytest.mark.sampled(14)
def test_orderly_members_keep_the_order(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    java = java_client
    keys = "".join(chr(ord("a") + number % 5) for number in range(100))
    sent = numbered(len(keys))
    with java.producer(cluster.namesrv) as producer:
        producer.send_ordered(messages(topic, sent), keys)
        first = push(java, cluster, topic, topic, orderly=True)
        assert bodies(first.take(len(sent))) == sorted(sent)
        second = push(java, cluster, topic, topic, orderly=True)
        first.close()  # it unlocks its queues: the other gets them at once
        until(lambda: len(assigned(second, topic)) == 4)
        more = numbered(len(keys), "more")
        producer.send_ordered(messages(topic, more), keys)
        second.take(len(more))
        second.close()
    for member, wanted in ((first, sent), (second, more)):
        assert Counter(message.body for message in member.received) == Counter(wanted)
        for key in set(keys):
            of_key = [body for body, body_key in zip(wanted, keys, strict=True) if body_key == key]
            assert [message.body for message in member.received if message.body in of_key] == of_key


@pytest.mark.sampled(14)
def test_an_orderly_member_suspends_its_queue(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    """A suspended queue waits for its message: no later message overtakes it."""
    queue = Queue(topic, "broker-a", 0)
    make_topic(java_client, cluster, topic, 1)
    with java_client.producer(cluster.namesrv) as producer:
        producer.send(messages(topic, numbered(3)), queue=queue)
    with push(
        java_client, cluster, topic, topic, orderly=True, laters=1, suspendCurrentQueueTimeMillis=10
    ) as consumer:
        received = consumer.take(6)
    assert [message.body for message in received] == [b"m0", b"m0", b"m1", b"m1", b"m2", b"m2"]
    assert [message.reconsume_times for message in received] == [0, 1] * 3


@pytest.mark.sampled(14)
def test_each_broadcasting_member_gets_all_messages(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    sent = numbered(20)
    with java_client.producer(cluster.namesrv) as producer:
        producer.send(messages(topic, sent))
        members = [push(java_client, cluster, topic, topic, broadcasting=True) for _ in range(2)]
        for member in members:
            assert bodies(member.take(len(sent))) == sorted(sent)
            assert len(assigned(member, topic)) == 4
        producer.send([JavaMessage(topic, b"for all")])
        for member in members:
            assert [message.body for message in member.take(1)] == [b"for all"]
            member.close()


@pytest.mark.sampled(14)
def test_tags_filter_messages(cluster: Cluster, java_client: JavaClient, topic: str) -> None:
    """Messages of other tags with the same hash code pass the broker, but not the client."""
    tags = ["red", "green", "blue", "Aa", "BB", None]
    wanted = [
        JavaMessage(topic, f"{tag}{number}".encode(), tags=tag)
        for number in range(5)
        for tag in tags
    ]
    with java_client.producer(cluster.namesrv) as producer:
        producer.send(wanted)
        for number, (expression, passing) in enumerate(
            {"red || blue": {"red", "blue"}, "Aa": {"Aa"}, "*": {*tags}}.items()
        ):
            passed = [message.body for message in wanted if message.tags in passing]
            with push(java_client, cluster, f"{topic}-{number}", topic, expression) as consumer:
                assert bodies(consumer.take(len(passed))) == sorted(passed)
                # Filtered messages move the consumer offset, too, and delay nothing.
                last = f"last of {number}".encode()
                producer.send([JavaMessage(topic, last, tags=min(filter(None, passing)))])
                assert consumer.take(1)[0].body == last
                wanted.append(JavaMessage(topic, last, tags=min(filter(None, passing))))


@pytest.mark.sampled(14)
def test_a_message_sent_back_is_redelivered(
    other: Cluster, java_client: JavaClient, topic: str
) -> None:
    make_topic(java_client, other, topic)
    # A member of a new group has no route of its retry topic at first, and retries after 20 s.
    push(java_client, other, topic, topic, "a").close()
    with java_client.producer(other.namesrv) as producer:
        (sent,) = producer.send([JavaMessage(topic, b"twice", tags="a", keys="k")])
        with push(java_client, other, topic, topic, "a", laters=2) as consumer:
            received = consumer.take(3)
    assert [message.body for message in received] == [b"twice"] * 3
    assert [message.reconsume_times for message in received] == [0, 1, 2]
    assert {message.topic for message in received} == {topic}  # the client hides the retry topic
    assert {message.msg_id for message in received} == {sent.msg_id}
    assert {(message.tags, message.keys) for message in received} == {("a", "k")}
    assert {message.properties.get("ORIGIN_MESSAGE_ID") for message in received[1:]} == {
        sent.offset_msg_id
    }


@pytest.mark.sampled(14)
@pytest.mark.parametrize("where", ["FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"])
def test_a_new_group_in_a_young_topic_gets_all_messages(
    cluster: Cluster, java_client: JavaClient, topic: str, where: str
) -> None:
    """A broker answers offset 0 to any new group while the queue still begins at 0."""
    sent = numbered(8)
    with java_client.producer(cluster.namesrv) as producer:
        producer.send(messages(topic, sent))
        with push(
            java_client,
            cluster,
            topic,
            topic,
            from_where=f"CONSUME_FROM_{where}",
            consumeTimestamp="20990101000000",
        ) as consumer:
            assert bodies(consumer.take(8)) == sorted(sent)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(
    ("where", "timestamp", "is_old_wanted"),
    [
        ("FIRST_OFFSET", "", True),
        ("LAST_OFFSET", "", False),
        ("TIMESTAMP", "20200101000000", True),
        ("TIMESTAMP", "20990101000000", False),
    ],
)
def test_a_new_group_in_an_old_topic_begins_at_its_position(
    other: Cluster,
    java_client: JavaClient,
    topic: str,
    where: str,
    timestamp: str,
    is_old_wanted: bool,
) -> None:
    if isinstance(other, JavaCluster) and other.version.startswith("5."):
        pytest.skip(
            "no such case: 5.x has no setting that makes a young topic behave as an old one"
        )
    queue = Queue(topic, "broker-a", 0)
    make_topic(java_client, other, topic, 1)
    with java_client.producer(other.namesrv) as producer:
        producer.send(messages(topic, numbered(20)), queue=queue)
        more = {"consumeTimestamp": timestamp} if timestamp else {}
        with push(
            java_client, other, topic, topic, from_where=f"CONSUME_FROM_{where}", **more
        ) as consumer:
            until(lambda: assigned(consumer, topic) == [queue])  # the initial offset is set
            producer.send([JavaMessage(topic, b"new")], queue=queue)
            received = consumer.wait_until(
                lambda received: len(received) > 20 * is_old_wanted and b"new" in bodies(received)
            )
    old = bodies(received)
    old.remove(b"new")
    if is_old_wanted:
        assert old == sorted(numbered(20))
    else:  # up to 4.9 the newest message is the nearest to a future time
        assert old == [] or (where, old) == ("TIMESTAMP", [b"m19"])


@pytest.mark.sampled(14)
def test_sql92_filters_messages(other: Cluster, java_client: JavaClient, topic: str) -> None:
    make_topic(java_client, other, topic)
    wanted = [
        JavaMessage(topic, b"%d" % number, tags="ab"[number % 2], properties={"n": str(number)})
        for number in range(20)
    ]
    with java_client.producer(other.namesrv) as producer:
        producer.send(wanted)
    condition = "TAGS = 'a' AND n BETWEEN 5 AND 12"
    with push(java_client, other, topic, topic, condition, sql=True) as consumer:
        assert bodies(consumer.take(4)) == [b"10", b"12", b"6", b"8"]


@pytest.mark.sampled(14)
def test_sql92_is_refused_if_disabled(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    make_topic(java_client, cluster, topic)  # a client asks the brokers of the topic
    with pytest.raises(ClientError, match="SQL92"):
        push(java_client, cluster, topic, topic, "n > 5", sql=True)


# --- pull consumers -----------------------------------------------------------------


@pytest.mark.sampled(14)
def test_pulls_have_status_offsets_and_messages(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    queue = Queue(topic, "broker-a", 1)
    with (
        java_client.producer(cluster.namesrv) as producer,
        java_client.pull_consumer(cluster.namesrv, topic) as consumer,
    ):
        producer.send([JavaMessage(topic, body, tags="a") for body in numbered(40)], queue=queue)
        assert len(consumer.queues(topic)) == 4
        assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 40)
        pulled = consumer.pull(queue, 0, 10)
        assert (pulled.status, pulled.next_offset) == ("FOUND", 10)
        assert (pulled.min_offset, pulled.max_offset) == (0, 40)
        assert [message.body for message in pulled.messages] == numbered(10)
        assert len(consumer.pull(queue, 0, 100).messages) == 32  # the maximum of a reply
        cases = [(40, "*", "NO_NEW_MSG", 40), (5, "b", "NO_MATCHED_MSG", 40)]
        # 4.5 returns 0 for an offset beyond the end of a queue that begins at 0.
        cases += [(50, "*", "OFFSET_ILLEGAL", 0 if is_java_4_5(cluster) else 40)]
        for queue_offset, expression, status, next_offset in cases:
            pulled = consumer.pull(queue, queue_offset, 32, expression)
            assert (pulled.status, pulled.next_offset) == (status, next_offset)
            assert pulled.messages == []

        (message,) = consumer.pull(queue, 20, 1).messages
        first = consumer.search_offset(queue, message.store_timestamp)
        assert consumer.pull(queue, first, 1).messages[0].store_timestamp == message.store_timestamp
        # Not before the first of that time: brokers may return any of several.
        assert first == 0 or (
            consumer.pull(queue, first - 1, 1).messages[0].store_timestamp
            <= message.store_timestamp
        )
        assert consumer.search_offset(queue, 0) == 0

        assert consumer.committed(queue) == 0  # a young queue: the group begins at 0
        consumer.commit(queue, 17)
        until(lambda: consumer.committed(queue) == 17)  # the commit is one-way

        waiting = java_client.start(
            "pullBlocking",
            on=consumer.handle,
            queue={"topic": topic, "brokerName": "broker-a", "queueId": 1},
            offset=40,
            max=32,
            expression="*",
        )
        producer.send([JavaMessage(topic, b"woken")], queue=queue)
        got = waiting.result(GUARD_S)
        assert got["status"] == "FOUND"
        assert len(got["messages"]) == 1


@pytest.mark.sampled(14)
def test_messages_are_found_by_id_and_key(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    with (
        java_client.producer(cluster.namesrv) as producer,
        java_client.pull_consumer(cluster.namesrv, topic) as consumer,
    ):
        wanted = [
            JavaMessage(topic, b"%d" % number, keys=f"k{number % 2} only{number}")
            for number in range(10)
        ]
        sent = producer.send(wanted)
        (alone,) = consumer.query(topic, "only7")
        assert (alone.body, alone.msg_id) == (b"7", sent[7].msg_id)
        assert bodies(consumer.query(topic, "k1")) == [b"1", b"3", b"5", b"7", b"9"]
        assert len(consumer.query(topic, "k1", 2)) == 2
        assert consumer.view(topic, sent[3].msg_id).body == b"3"
        assert consumer.view(topic, sent[4].offset_msg_id).body == b"4"
        for nothing in (("nobody's",), ("k1", 32, 1_000_000_000_000, 1_000_000_001_000)):
            with pytest.raises(ClientError) as refused:
                consumer.query(topic, *nothing)
            assert refused.value.code == NO_MESSAGE
    with java_client.admin(cluster.namesrv) as admin:
        for msg_id in (sent[3].msg_id, sent[3].offset_msg_id):
            answer = admin.call("viewMessage", topic, msg_id)
            assert (answer["topic"], answer["queueOffset"]) == (topic, sent[3].queue_offset)
        answer = admin.call("queryMessage", topic, "only7", 8, 0, 1 << 62)
        assert [entry["msgId"] for entry in answer["messageList"]] == [sent[7].msg_id]


@pytest.mark.sampled(14)
def test_a_lite_pull_consumer_subscribes_and_commits(
    cluster: Cluster, java_client: JavaClient, topic: str
) -> None:
    """5.5.0 pulls with request code 361."""
    needs_lite_pull(java_client)
    with java_client.producer(cluster.namesrv) as producer:
        wanted = [JavaMessage(topic, b"%d" % number, tags="ab"[number % 2]) for number in range(40)]
        producer.send(wanted)
        with java_client.lite_pull_consumer(cluster.namesrv, topic, topic, "a") as consumer:
            received = consumer.take(20)
            assert bodies(received) == sorted(
                message.body for message in wanted if message.tags == "a"
            )
            consumer.commit()
        # The group continues after its last message.
        producer.send([JavaMessage(topic, b"later", tags="a")])
        with java_client.lite_pull_consumer(cluster.namesrv, topic, topic, "a") as consumer:
            assert [message.body for message in consumer.take(1)] == [b"later"]


@pytest.mark.sampled(14)
def test_a_lite_pull_consumer_seeks(cluster: Cluster, java_client: JavaClient, topic: str) -> None:
    needs_lite_pull(java_client)
    queue = Queue(topic, "broker-a", 2)
    with java_client.producer(cluster.namesrv) as producer:
        producer.send(messages(topic, numbered(10)), queue=queue)
    with java_client.lite_pull_consumer(cluster.namesrv, topic) as consumer:
        consumer.assign([queue])
        until(lambda: has_moved_after(consumer, partial(consumer.seek, queue, 6), 6))
        until(lambda: has_moved_after(consumer, partial(consumer.seek_to_begin, queue), 0))
        consumer.commit()
        assert consumer.committed(queue) == 10


def has_moved_after(
    consumer: LitePullConsumer, seek: Callable[[], None], queue_offset: int
) -> bool:
    """Seek; return whether the consumer moved.

    It may stay at its position, with the official broker too: a pull task that is cancelled after
    its start and before it reads its offset discards the sought offset
    (``PullTaskImpl.run``, ``nextPullOffset``). A task of 5.5.0 that is interrupted while it sends
    closes the connection (``NettyRemotingClient.invokeSync``). Any other failure is ours.
    """
    try:
        seek()
    except ClientError as error:
        is_theirs = re.search("Remoting(SendRequest|Connect)Exception", error.trace)
        assert is_theirs, error.trace  # noqa: PT017 - raising is allowed
        return False
    pulled = [message.body for message in consumer.poll(3000)]
    assert pulled in (numbered(10)[queue_offset:], numbered(10), [])
    return pulled == numbered(10)[queue_offset:]


def needs_lite_pull(java: JavaClient) -> None:
    if not java.has_lite_pull:
        pytest.skip(f"no such case: RocketMQ {java.version} has no lite pull consumer")


# --- restarts of the broker ---------------------------------------------------------


@pytest.mark.sampled(14)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_clients_survive_a_restart(
    own: Cluster, java_client: JavaClient, topic: str, end: str
) -> None:
    java = java_client
    # Clients notice only after 30 s that a pending pull gets no answer: clients of 4.x often, the
    # others if the broker was killed.
    if not java_oracle.wants_all_versions() and (end == "kill" or java.version.startswith("4.")):
        pytest.skip("make interop-all: it takes 30 s")
    sent = numbered(50)
    make_topic(java, own, topic)
    with (
        java.producer(own.namesrv, **QUICK) as producer,
        push(java, own, topic, topic) as consumer,
    ):
        producer.send(messages(topic, sent))
        assert bodies(consumer.take(len(sent))) == sorted(sent)
        before = until_committed(java, own, [consumer], topic, len(sent))

        own.stop_broker() if end == "stop" else own.kill_broker()
        own.start()
        if end == "stop":  # offsets are saved every 5 s, and may be lost in a crash
            assert committed(java, own, topic) == before
        more = numbered(50, "more")
        results: dict[bytes, JavaSent] = {}

        def send_rest() -> bool:
            left = [body for body in more if body not in results]
            pairs = zip(left, producer.results(messages(topic, left)), strict=True)
            results.update((body, result) for body, result in pairs if isinstance(result, JavaSent))
            return len(results) == len(more)

        until(send_rest)
        consumer.wait_until(lambda received: {*more} <= {message.body for message in received})
    assert Counter(message.body for message in consumer.received) >= Counter(sent + more)
    if end == "stop":  # each once: the consumer had committed its offsets
        assert Counter(message.body for message in consumer.received) == Counter(sent + more)
    queues = read_all(java, own, topic)
    assert bodies(message for queue in queues.values() for message in queue) == sorted(sent + more)
    # A new member begins at the group's offset.
    with (
        java.producer(own.namesrv) as producer,
        push(java, own, topic, topic) as consumer,
    ):
        producer.send([JavaMessage(topic, b"last")])
        consumer.take(1)
        assert [message.body for message in consumer.received] == [b"last"]


def until_committed(
    java: JavaClient, cluster: Cluster, consumers: Iterable[PushConsumer], group: str, count: int
) -> dict[str, int]:
    """Wait until the sum of a group's offsets reaches a value."""
    offsets: dict[str, int] = {}

    def is_reached() -> bool:
        for consumer in consumers:
            consumer.persist()  # one-way, without messages in the listener
        offsets.update(committed(java, cluster, group))
        return sum(offsets.values()) == count

    until(is_reached)
    return offsets


def committed(java: JavaClient, cluster: Cluster, group: str) -> dict[str, int]:
    """Return the consumer offsets that the broker has, by queue."""
    # Not with a pull consumer: it would join the group, and get queues.
    with java.admin(cluster.namesrv) as admin:
        table = admin.call("examineConsumeStats", group)["offsetTable"]
    return {queue: entry["consumerOffset"] for queue, entry in table.items()}


# --- connected clients ----------------------------------------------------------------


@pytest.mark.sampled(14)
def test_mqadmin_shows_the_clients(cluster: Cluster, java_client: JavaClient, topic: str) -> None:
    java, group = java_client, f"{topic}-group"
    make_topic(java, cluster, topic)
    with (
        java.producer(cluster.namesrv, f"{topic}-producers", **QUICK) as producer,
        push(java, cluster, group, topic, "a || b") as consumer,
    ):
        producer.send([JavaMessage(topic, body, tags="a") for body in numbered(10)])
        consumer.take(10)
        printed = java.mqadmin("consumerConnection", "-g", group, namesrv=cluster.namesrv)
        assert "127.0.0.1" in printed
        assert "a || b" in printed
        assert "CONSUME_FROM_FIRST_OFFSET" in printed
        until_committed(java, cluster, [consumer], group, 10)
        printed = java.mqadmin("consumerProgress", "-g", group, namesrv=cluster.namesrv)
        assert re.search(r"Diff Total: +0\b", printed)
        producers = ("-g", f"{topic}-producers", "-t", topic)
        until(  # the producer sends heartbeats only some time after its first message
            lambda: (
                "127.0.0.1"
                in java.mqadmin("producerConnection", *producers, namesrv=cluster.namesrv)
            )
        )
        printed = java.mqadmin("topicStatus", "-t", topic, namesrv=cluster.namesrv)
        assert printed.count("broker-a") == 4
