"""Clients read from a slave while its master is dead or they lag far, and return to the master."""

import itertools
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from interop import java_oracle, pairs
from interop.clusters import until
from interop.java_cluster import JavaClient, JavaMessage, Queue, Settings
from interop.other_clients import CppClient
from interop.pairs import Pair
from interop.wire import Remote
from reput.client import blocking
from reput.client.config import ClientConfig, ConsumeFromWhere, ConsumerConfig
from reput.client.listener import ConsumeContext, ConsumeResult
from reput.client.message import Message, ReceivedMessage
from reput.format.bodies import LockBody, MessageQueue
from reput.format.codes import PullFlag, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    EndTransactionHeader,
    Header,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from reput_cluster import ReputCluster

pytestmark = [
    pytest.mark.rotating,
    pytest.mark.interop,
    pytest.mark.xdist_group("test_slave_reads"),
]

TOPIC = "Orders"
GROUP = "readers"
QUEUES = 2
OURS = "ours"
ALL_IS_FAR: Settings = {"slaveReadEnable": True, "accessMessageInMemoryMaxRatio": 0}
NOTHING_IS_FAR: Settings = {"slaveReadEnable": True}


def client(pair: Pair) -> ClientConfig:
    """Return settings of clients that notice changes of the route quickly."""
    return ClientConfig(namesrv_addr=pair.namesrv, poll_name_server_ms=200, heartbeat_ms=1_000)


class Publisher:
    """Sends numbered messages to the queues in turn, each queue with ascending numbers."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.count = 0
        with blocking.Admin(pair.namesrv) as admin:
            admin.create_topic(TOPIC, queue_count=QUEUES, broker=pair.master.address)

    def send(self, count: int) -> None:
        with blocking.Producer("publishers", client=client(self._pair)) as producer:
            for number in range(self.count, self.count + count):
                queue = MessageQueue(TOPIC, "broker-a", number % QUEUES)
                producer.send(Message(TOPIC, b"%d" % number), queue=queue)
        self.count += count


class Received:
    """The messages that all members of a group got, in order."""

    def __init__(self) -> None:
        self.collect: Callable[[], object] = lambda: None
        """Adds the messages that arrived since the last call, for consumers that only list them."""
        self._numbers: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def add(self, queue_id: int, body: bytes) -> None:
        with self._lock:
            self._numbers.append((queue_id, int(body)))

    def numbers(self) -> list[tuple[int, int]]:
        """Return queue id and number of each message."""
        self.collect()
        with self._lock:
            return list(self._numbers)

    def wait_for(self, count: int) -> None:
        """Wait until there are ``count`` different messages."""
        until(lambda: len(set(self.numbers())) >= count)

    def check(self, count: int) -> None:
        """Check that each message arrived once, in the order of its queue."""
        numbers = self.numbers()
        assert Counter(number for _, number in numbers) == Counter(range(count))
        for queue_id in range(QUEUES):
            of_queue = [number for queue, number in numbers if queue == queue_id]
            assert of_queue == sorted(of_queue)


class Consumers:
    """Starts members of the group, of one kind: ``ours``, or a version of Java's."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.is_ours = kind == OURS
        self._java = None if self.is_ours else JavaClient(kind, folder)

    def close(self) -> None:
        if self._java is not None:
            self._java.close()

    def running(
        self, pair: Pair, received: Received, *, is_orderly: bool = False
    ) -> AbstractContextManager[None]:
        """Run a member; the messages of a queue are not consumed concurrently."""
        if self._java is None:
            return _our_consumer(pair, received, is_orderly=is_orderly)
        return _java_consumer(self._java, pair, received, is_orderly=is_orderly)


@contextmanager
def _our_consumer(pair: Pair, received: Received, *, is_orderly: bool) -> Iterator[None]:
    def listen(messages: Sequence[ReceivedMessage], _context: ConsumeContext) -> ConsumeResult:
        for message in messages:
            received.add(message.queue_id, message.body)
        return ConsumeResult.SUCCESS

    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_concurrency=1)
    consumer = blocking.PushConsumer(
        GROUP, client=client(pair), listener=listen, config=config, orderly=is_orderly
    )
    with consumer:
        consumer.subscribe(TOPIC)
        yield


@contextmanager
def _java_consumer(
    java: JavaClient, pair: Pair, received: Received, *, is_orderly: bool
) -> Iterator[None]:
    with java.push_consumer(
        pair.namesrv, GROUP, TOPIC, orderly=is_orderly, consumeThreadMin=1, consumeThreadMax=1,
        pollNameServerInterval=200, heartbeatBrokerInterval=1_000,
    ) as consumer:  # fmt: skip
        taken = itertools.count()
        number = next(taken)

        def collect() -> None:
            nonlocal number
            while number < len(consumer.received):
                message = consumer.received[number]
                received.add(message.queue_id, message.body)
                number = next(taken)

        received.collect = collect
        yield
    collect()
    received.collect = lambda: None


def committed_sum(address: str) -> int:
    """Return the sum of the group's consumer offsets, which is the number of messages consumed."""
    return sum(pairs.committed(address, GROUP, TOPIC, queue) or 0 for queue in range(QUEUES))


# --- the master dies -------------------------------------------------------------------


def are_saved(store: Path) -> bool:
    """Return whether the file of consumer offsets has 50 in both queues."""
    path = store / "config/consumerOffset.json"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return bool(re.search(rf'"{TOPIC}@{GROUP}":\s*{{[^}}]*\b50\b[^}}]*\b50\b', text))


@pytest.fixture
def consumers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Consumers]:
    """Provide consumers of a kind."""
    with closing(Consumers(request.param, tmp_path / "client")) as started:
        yield started


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Provide a running pair of two kinds."""
    with Pair(*request.param, tmp_path) as running:
        yield running


def cases(*default: str, also: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test with kinds of clients, master and slave: ``ours 4.9.7 reput``."""
    kinds = [*default, *(also if java_oracle.wants_all_versions() else ())]
    return pytest.mark.parametrize(
        ("consumers", "pair"),
        [(words[0], tuple(words[1:])) for words in map(str.split, kinds)],
        indirect=True,
        ids=["-".join(kind.split()) for kind in kinds],
    )


@cases(
    "ours 4.9.7 4.9.7",
    "4.9.7 4.9.7 reput",
    "4.9.7 reput 4.9.7",
    "5.5.0 reput reput",
    also=[
        *("ours 4.5.2 4.5.2", "ours reput reput", "4.9.7 reput reput"),
        *("ours 4.9.7 reput", "ours 5.5.0 reput", "5.5.0 4.9.7 reput", "5.5.0 5.5.0 reput"),
        *("ours reput 4.9.7", "ours reput 5.5.0", "5.5.0 reput 4.9.7", "5.5.0 reput 5.5.0"),
        *("4.9.7 reput 5.5.0",),
    ],
)
def test_a_consumer_reads_the_rest_from_the_slave(consumers: Consumers, pair: Pair) -> None:
    publisher, received = Publisher(pair), Received()
    publisher.send(100)
    with consumers.running(pair, received):
        received.wait_for(100)
    until(lambda: committed_sum(pair.master.address) == 100)
    publisher.send(200)
    pair.until_caught_up(TOPIC, QUEUES)
    pair.until_synced(lambda: committed_sum(pair.slave.address) == 100)
    pair.master.kill_broker()
    with consumers.running(pair, received):
        received.wait_for(300)
        until(lambda: committed_sum(pair.slave.address) == 300)
        pair.master.start()
        publisher.send(50)
        received.wait_for(350)
        until(lambda: committed_sum(pair.master.address) == 350)
    received.check(350)


@pytest.mark.parametrize("pair", [("reput", "reput"), ("reput", "4.9.7")], indirect=True)
def test_the_cpp_client_reads_the_rest_from_the_slave(pair: Pair) -> None:
    """Go's 2.1.2 asks only masters for its offsets, so a new consumer waits until there is one."""
    client, publisher = CppClient(), Publisher(pair)

    def consumed() -> list[int]:
        return sorted(
            int(message["body"]) for message in client.consume(pair.namesrv, TOPIC, GROUP, 20)
        )

    publisher.send(20)
    assert consumed() == list(range(20))
    until(lambda: committed_sum(pair.master.address) == 20)
    publisher.send(20)
    pair.until_caught_up(TOPIC, QUEUES)
    pair.until_synced(lambda: committed_sum(pair.slave.address) == 20)
    pair.master.kill_broker()
    assert consumed() == list(range(20, 40))


@cases(
    "ours 4.9.7 4.9.7", "4.9.7 reput reput",
    also=["ours reput reput", "5.5.0 4.9.7 reput", "5.5.0 reput 4.9.7"],
)  # fmt: skip
def test_a_running_consumer_survives_restarts_of_the_master(
    consumers: Consumers, pair: Pair
) -> None:
    publisher, received = Publisher(pair), Received()
    publisher.send(20)
    with consumers.running(pair, received):
        received.wait_for(20)
        pair.until_caught_up(TOPIC, QUEUES)
        for _ in range(2):
            pair.master.kill_broker()
            pair.master.start()
            publisher.send(20)
            received.wait_for(publisher.count)
        until(lambda: committed_sum(pair.master.address) == 60)
    received.check(60)


@cases(
    "ours 4.9.7 4.9.7", "4.9.7 reput reput",
    also=["ours reput reput", "5.5.0 4.9.7 reput", "5.5.0 reput 4.9.7"],
)  # fmt: skip
def test_an_orderly_consumer_stops_and_resumes(
    consumers: Consumers, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, received = Publisher(pair), Received()
    publisher.send(100)
    with consumers.running(pair, received, is_orderly=True):
        received.wait_for(100)
    publisher.send(100)
    pair.until_caught_up(TOPIC, QUEUES)
    until(lambda: are_saved(pair.master.store))  # a kill loses the offsets of the last 5 s
    pair.master.kill_broker()
    with caplog.at_level(logging.WARNING), consumers.running(pair, received, is_orderly=True):
        until(lambda: pairs.member_count(pair.slave.address, GROUP) == 1)
        if consumers.is_ours:
            until(lambda: f"group {GROUP} cannot lock" in caplog.text)
        assert len(received.numbers()) == 100, "only masters lock queues"
        pair.master.start()
        received.wait_for(200)
        pair.master.kill_broker()
        pair.master.start()
        publisher.send(50)
        received.wait_for(250)
    received.check(250)


# --- a reader that lags far ---------------------------------------------------------------


def suggestions(address: str) -> tuple[int, str]:
    """Return the code and the suggestion of a pull from the first message."""
    reply = pairs.asked(address, lambda remote: remote.pull(TOPIC, 0, 0, consumer_group=GROUP))
    return reply.code, reply.ext_fields["suggestWhichBrokerId"]


@pytest.mark.parametrize("settings", [ALL_IS_FAR, NOTHING_IS_FAR, {}], ids=["far", "near", "off"])
@pytest.mark.parametrize(
    ("master", "slave"),
    [("4.9.7", "4.9.7"), ("4.9.7", "reput"), ("reput", "reput")],
)
def test_a_broker_suggests_by_distance(
    master: str, slave: str, settings: Settings, tmp_path: Path
) -> None:
    with Pair(master, slave, tmp_path, settings, settings) as pair:
        publisher = Publisher(pair)
        publisher.send(100)
        pair.until_caught_up(TOPIC, QUEUES)
        expected = "1" if settings == ALL_IS_FAR else "0"
        for address in (pair.master.address, pair.slave.address):
            assert suggestions(address) == (ResponseCode.SUCCESS, expected)


# --- statuses of sends -----------------------------------------------------------------------


@contextmanager
def our_statuses(pair: Pair) -> Iterator[Callable[[], str]]:
    queue = MessageQueue(TOPIC, "broker-a", 0)
    with blocking.Producer("p", client=client(pair)) as producer:
        yield lambda: producer.send(Message(TOPIC, b"0"), queue=queue).status.name


@contextmanager
def java_statuses(pair: Pair, version: str, folder: Path) -> Iterator[Callable[[], str]]:
    queue = Queue(TOPIC, "broker-a", 0)
    with JavaClient(version, folder) as java, java.producer(pair.namesrv) as producer:
        messages = [JavaMessage(TOPIC, b"0")]
        yield lambda: producer.send(messages, queue=queue, timeout_ms=60_000)[0].status


STATUSES = ["ours 4.9.7 4.9.7", "ours 4.9.7 reput", "4.9.7 reput reput", "5.5.0 reput 4.9.7"]
if java_oracle.wants_all_versions():
    STATUSES += ["ours reput reput", "4.5.2 reput reput", "4.9.7 reput 5.5.0", "5.5.0 reput 4.5.2"]


@pytest.mark.parametrize("kinds", STATUSES)
def test_a_producer_gets_the_status_of_each_message(kinds: str, tmp_path: Path) -> None:
    kind, master, slave = kinds.split()
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 1000, "syncFlushTimeout": 1000}
    with Pair(master, slave, tmp_path, settings) as pair:
        Publisher(pair)  # creates the topic
        is_ours = kind == OURS
        with (
            our_statuses(pair) if is_ours else java_statuses(pair, kind, tmp_path / "client")
        ) as status:
            until(lambda: status() == "SEND_OK")
            with pairs.stopped(pair.slave.broker_pid):
                assert status() == "FLUSH_SLAVE_TIMEOUT"
            pair.slave.kill_broker()
            until(lambda: status() == "SLAVE_NOT_AVAILABLE")
            pair.slave.start()
            until(lambda: status() == "SEND_OK")


# --- requests to a slave -------------------------------------------------------------------------

ENDS = QueueHeader(topic=TOPIC, queue_id=0)
Question = Callable[[Remote], Awaitable[Command]]


def asks(code: RequestCode, header: Header) -> Question:
    return lambda remote: remote.ask(code, header)


def pulls(queue_id: int, queue_offset: int, topic: str = TOPIC, **fields: int) -> Question:
    return lambda remote: remote.pull(topic, queue_id, queue_offset, consumer_group=GROUP, **fields)


def sends(topic: str, code: RequestCode) -> Question:
    return lambda remote: remote.send(topic, code=code)


HAS_TEXT = int(PullFlag.HAS_SUBSCRIPTION)
OFFSET = {"consumer_group": GROUP, "topic": TOPIC, "queue_id": 0}
QUESTIONS: dict[str, Question] = {
    "pull": pulls(0, 0),
    "pull from the middle": pulls(0, 20),
    "pull at the end": pulls(0, 50),
    "pull after the end": pulls(0, 51),
    "pull before the start": pulls(0, -1),
    "pull of a queue that is missing": pulls(QUEUES, 0),
    "pull of a topic that is missing": pulls(0, 0, "Missing"),
    "pull with an offset": pulls(0, 0, sys_flag=HAS_TEXT | PullFlag.COMMIT_OFFSET, commit_offset=9),
    "the offset of the pull": asks(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(**OFFSET)
    ),
    "commit": asks(
        RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(**OFFSET, commit_offset=7)
    ),
    "the committed offset": asks(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(**OFFSET)
    ),
    "end": asks(RequestCode.GET_MAX_OFFSET, ENDS),
    "start": asks(RequestCode.GET_MIN_OFFSET, ENDS),
    "earliest time": asks(RequestCode.GET_EARLIEST_MSG_STORETIME, ENDS),
    "time": asks(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetHeader(topic=TOPIC, queue_id=0, timestamp=0),
    ),
    "view": asks(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=0)),
    "send": sends(TOPIC, RequestCode.SEND_MESSAGE),
    "send of a newer client": sends(TOPIC, RequestCode.SEND_MESSAGE_V2),
    "send to a new topic": sends("New", RequestCode.SEND_MESSAGE_V2),
    "send back": asks(
        RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset=0, group=GROUP, delay_level=0)
    ),
    "end of a transaction": asks(
        RequestCode.END_TRANSACTION,
        EndTransactionHeader(
            producer_group="p", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=8
        ),
    ),
    "lock": lambda remote: remote.send_body(
        RequestCode.LOCK_BATCH_MQ,
        LockBody(client_id="me", consumer_group=GROUP, mq_set=[MessageQueue(TOPIC, "broker-a", 0)]),
    ),
}


def test_slaves_answer_alike(tmp_path: Path) -> None:
    """Ours and that of 4.9.7, both of the same master."""
    settings = {**pairs.SLAVE, "brokerId": 2}
    with Pair("4.9.7", "4.9.7", tmp_path / "theirs") as pair:
        publisher = Publisher(pair)
        publisher.send(100)
        with ReputCluster(tmp_path / "ours", settings, namesrv=pair.namesrv) as ours:
            addresses = (pair.slave.address, ours.address)
            for address in addresses:
                pair.until_synced(
                    lambda broker_address=address: pairs.serves(broker_address, TOPIC, 1, 50)
                )
            for name, question in QUESTIONS.items():
                theirs, our = (pairs.asked(address, question) for address in addresses)
                assert our.code == theirs.code, (name, our.remark, theirs.remark)
                assert (our.ext_fields or {}) == (theirs.ext_fields or {}), name
                if name == "lock":  # JSON, whose members have another order
                    assert json.loads(our.body) == json.loads(theirs.body)
                else:
                    assert our.body == theirs.body, name
