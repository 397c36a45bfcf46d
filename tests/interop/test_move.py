"""The way from Java 4.9.7 to reput, to Java 5.5.0 and back to reput, on one folder, under load.

Clients of each kind of traffic run all the time, and note in ledgers what they send and receive:
ordinary messages with retries, delay levels and delivery times, transactions, queues in order, and
pops. ``reput broker --check`` goes before each switch, as an operator would.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import pop_client
from interop import wire
from interop.clusters import Cluster, start_cluster
from interop.java_cluster import JavaClient, PushConsumer as JavaPushConsumer, Settings
from interop.move_ledger import Ledger, Offsets, number_of, offsets_gone_back
from interop.test_namesrv import settings as namesrv_settings
from ports import free_port_of_broker
from reput.cli.moving import features
from reput.client import (
    Admin,
    ClientConfig,
    ConsumeContext,
    ConsumerConfig,
    ConsumeResult,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from reput.client.config import ConsumeFromWhere
from reput.clock import SystemClock
from reput.errors import RemotingError
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import (
    OffsetReplyHeader,
    QueryConsumerOffsetHeader,
    decode,
)
from reput.namesrv.server import NameServer
from reput.store.reader import StoreReader

pytestmark = pytest.mark.interop

_log = logging.getLogger(__name__)

CLOCK = SystemClock()
GUARD_S = 120
JAVA_READERS = "java-readers"
RESTING = "resting"
REVIVE_QUEUE_COUNT = 8
NAME = "broker-a"
QUEUE_COUNT = 4
LEVELS_MS = (1_000, 3_000, 8_000, 15_000)
SETTINGS: Settings = {
    # The longer ones wait during a switch.
    "messageDelayLevel": " ".join(f"{ms // 1000}s" for ms in LEVELS_MS),
    "transactionTimeOut": 2_000,
    "transactionCheckInterval": 2_000,
    "mappedFileSizeCommitLog": 1 << 20,  # several files
    "maxMessageSize": 200_000,
}
PHASE_COUNT = 150
"""Number of messages of each kind that are acknowledged between two switches."""
INVISIBLE_MS = 10_000
TIMED_MAX_MS = 20_000
"""Longest time until the delivery of a message, in ms."""
PAUSE_S = 0.2


async def until(condition: Callable[[], bool]) -> bool:
    """Wait for a condition, as the brokers act in other processes; return whether it came true."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GUARD_S):
            while not condition():
                await asyncio.sleep(PAUSE_S)
            return True
    return False


class Load:
    """Clients of each kind of traffic, and their ledgers."""

    def __init__(self, namesrv: str, address: str) -> None:
        self._address = address
        self._client = ClientConfig(
            namesrv_addr=namesrv,
            poll_name_server_ms=1_000,
            heartbeat_ms=1_000,
            persist_offsets_ms=500,
        )
        self.plain = Ledger("Plain")
        self.delayed = Ledger("Delayed")
        # A start of Java reads the timer's messages again, since the oldest that waits.
        self.timed = Ledger("Timed", repeated_ms=TIMED_MAX_MS + 2_000)
        self.transactional = Ledger("Transactional")
        self.ordered = Ledger("Ordered", is_ordered=True)
        self.popped = Ledger("Popped")
        self.has_timer = False
        self._is_sending = True
        self._refused: set[bytes] = set()
        self._decisions: dict[bytes, TransactionState] = {}
        self._reports: Counter[bytes] = Counter()
        """Number of times that a decision was reported to a broker."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        return (
            self.plain,
            self.delayed,
            self.timed,
            self.transactional,
            self.ordered,
            self.popped,
        )

    @property
    def groups(self) -> list[str]:
        return [group_of(ledger) for ledger in self.ledgers]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all clients."""
        once = ProducerConfig(retry_times_when_send_failed=0)  # each attempt is one of the ledger
        async with contextlib.AsyncExitStack() as stack:
            enter = stack.enter_async_context
            producer = await enter(Producer("producers", config=once, client=self._client))
            transactions = await enter(
                TransactionProducer(
                    "decisions",
                    check=self._decided,
                    topics=[self.transactional.topic],
                    config=once,
                    client=self._client,
                )
            )
            for ledger in self.ledgers:
                if ledger is not self.popped:
                    await enter(await self._reader(ledger))
            try:
                async with asyncio.TaskGroup() as group:
                    sending = [
                        self._send_plain(producer),
                        self._send_delayed(producer),
                        self._send_timed(producer),
                        self._send_popped(producer),
                        self._send_transactional(transactions),
                        *(self._send_ordered(producer, number) for number in range(QUEUE_COUNT)),
                    ]
                    self._tasks = [group.create_task(each) for each in sending]
                    popping = [group.create_task(self._pop()) for _ in range(2)]
                    yield
                    for task in popping:
                        task.cancel()
            finally:
                self._is_sending = False

    async def stop_sending(self) -> None:
        """Let the producers end after their present message."""
        self._is_sending = False
        await asyncio.gather(*self._tasks)

    # --- sending ---------------------------------------------------------------------------------

    async def _send(
        self, ledger: Ledger, producer: Producer, message: Message, **more: Any
    ) -> None:
        """Send a message until a broker has it."""
        while True:
            try:
                await producer.send(message, **more)
            except RemotingError:
                ledger.uncertain(message.body)
                await asyncio.sleep(PAUSE_S)
            else:
                ledger.acknowledged(message.body, CLOCK.now_ms())
                return

    async def _numbers(self, prefix: str, pause_s: float) -> AsyncIterator[tuple[int, bytes]]:
        for number in itertools.count():
            if not self._is_sending:
                return
            yield number, f"{prefix}-{number}".encode()
            await asyncio.sleep(pause_s)

    async def _send_plain(self, producer: Producer) -> None:
        async for _, body in self._numbers("plain", 0.01):
            self.plain.sending(body, CLOCK.now_ms())
            await self._send(self.plain, producer, Message(self.plain.topic, body))

    async def _send_delayed(self, producer: Producer) -> None:
        async for number, body in self._numbers("delayed", 0.03):
            level = number % len(LEVELS_MS) + 1
            now_ms = CLOCK.now_ms()
            self.delayed.sending(body, now_ms, now_ms + LEVELS_MS[level - 1])
            message = Message(self.delayed.topic, body, delay_level=level)
            await self._send(self.delayed, producer, message)

    async def _send_timed(self, producer: Producer) -> None:
        while not self.has_timer and self._is_sending:
            await asyncio.sleep(PAUSE_S)
        async for number, body in self._numbers("timed", 0.03):
            now_ms = CLOCK.now_ms()
            due_ms = now_ms + TIMED_MAX_MS - number % 7 * 3_000
            self.timed.sending(body, now_ms, due_ms)
            message = Message(self.timed.topic, body, deliver_at_ms=due_ms)
            await self._send(self.timed, producer, message)

    async def _send_popped(self, producer: Producer) -> None:
        async for _, body in self._numbers("popped", 0.02):
            self.popped.sending(body, CLOCK.now_ms())
            await self._send(self.popped, producer, Message(self.popped.topic, body))

    async def _send_ordered(self, producer: Producer, queue_id: int) -> None:
        queue = MessageQueue(self.ordered.topic, NAME, queue_id)
        async for _, body in self._numbers(f"ordered-{queue_id}", 0.03):
            self.ordered.sending(body, CLOCK.now_ms())
            message = Message(self.ordered.topic, body)
            await self._send(self.ordered, producer, message, queue=queue)

    async def _send_transactional(self, producer: TransactionProducer) -> None:
        """Commit, roll back, or leave the decision to a check, in turn."""
        ledger = self.transactional
        async for number, body in self._numbers("transactional", 0.03):
            is_commit = number % 3 != 0
            is_late = number % 4 == 0

            def execute(
                message: Message, _: object, is_commit: bool = is_commit, is_late: bool = is_late
            ) -> TransactionState:
                state = TransactionState.COMMIT if is_commit else TransactionState.ROLLBACK
                self._decisions[message.body] = state
                if is_commit:
                    ledger.acknowledged(message.body, CLOCK.now_ms())
                else:
                    ledger.rolled_back(message.body)
                if is_late:
                    return TransactionState.UNKNOWN
                self._report(message.body)
                return state

            ledger.sending(body, CLOCK.now_ms())
            try:
                result = await producer.send_in_transaction(Message(ledger.topic, body), execute)
            except RemotingError:
                await asyncio.sleep(PAUSE_S)
            else:
                if not result.is_settled and not is_late:
                    ledger.uncertain(body)
            if body not in self._decisions:
                ledger.rolled_back(body)  # a check finds no local transaction

    def _decided(self, message: ReceivedMessage) -> TransactionState:
        self._report(message.body)
        return self._decisions.get(message.body, TransactionState.ROLLBACK)

    def _report(self, body: bytes) -> None:
        """Count a report; a message that is committed by two of them is delivered twice."""
        self._reports[body] += 1
        if self._reports[body] > 1:
            self.transactional.uncertain(body)

    # --- receiving -------------------------------------------------------------------------------

    async def _reader(self, ledger: Ledger) -> PushConsumer:
        async def listen(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
            (message,) = messages
            is_refused = ledger is self.plain and self._refuses(message.body)
            ledger.received(
                message.body,
                f"{message.stored.topic} {context.queue.queue_id}",
                message.queue_offset,
                CLOCK.now_ms(),
                is_refused=is_refused,
            )
            return ConsumeResult.LATER if is_refused else ConsumeResult.SUCCESS

        consumer = PushConsumer(
            group_of(ledger),
            listener=listen,
            orderly=ledger is self.ordered,
            config=ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET),
            client=self._client,
        )
        await consumer.subscribe(ledger.topic)
        return consumer

    def _refuses(self, body: bytes) -> bool:
        """Return whether a consumer asks for a message again: each tenth one, once."""
        is_refused = number_of(body) % 10 == 0 and body not in self._refused
        if is_refused:
            self._refused.add(body)
        return is_refused

    async def _pop(self) -> None:
        """Pop, and acknowledge all messages except refused ones."""
        ledger = self.popped
        async with wire.connected(self._address) as broker:
            while True:
                try:
                    reply = await pop_client.pop_reply(
                        broker,
                        ledger.topic,
                        group_of(ledger),
                        invisible_time=INVISIBLE_MS,
                        poll_time=2_000,
                        born_time=CLOCK.now_ms(),
                    )
                except RemotingError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if reply.code != ResponseCode.SUCCESS:
                    await asyncio.sleep(PAUSE_S)
                    continue
                for taken in pop_client.taken_of(reply, group_of(ledger), ledger.topic):
                    await self._acknowledge(broker, taken)

    async def _acknowledge(self, broker: wire.Remote, taken: pop_client.PoppedMessage) -> None:
        is_refused = self._refuses(taken.body)
        queue = f"{taken.topic} {taken.queue_id}"
        self.popped.received(
            taken.body, queue, taken.queue_offset, CLOCK.now_ms(), is_refused=is_refused
        )
        if is_refused:
            return
        try:
            reply = await pop_client.ack(broker, taken)
        except RemotingError:
            self.popped.uncertain(taken.body)
            return
        if reply.code == ResponseCode.SUCCESS:
            self.popped.released(taken.body, CLOCK.now_ms())
        else:
            self.popped.uncertain(taken.body)


def group_of(ledger: Ledger) -> str:
    return f"readers-{ledger.topic}"


# --- the operator -------------------------------------------------------------------------------


async def check(folder: Path, *options: str) -> dict[str, Any]:
    """Run ``reput broker --check`` with a folder's broker.conf; return its document."""
    command = ["-m", "reput", "broker", "-c", str(folder / "broker.conf"), "--check", "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, *options, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    document: dict[str, Any] = json.loads(output)
    assert process.returncode == document["exit_code"]
    return document


def findings_with(document: dict[str, Any], verdict: str) -> list[str]:
    return [
        f"{finding['subject']}: {finding['found']}"
        for finding in document["findings"]
        if finding["verdict"] == verdict
    ]


def saved_offsets(store: Path) -> Offsets:
    """Return the consumer offsets in the files of a stopped broker."""
    return {
        (entry.topic, entry.group, entry.queue_id): entry.consumer_offset
        for entry in StoreReader.open(str(store)).consumer_offsets()
    }


async def asked_offsets(address: str, keys: Offsets) -> Offsets:
    """Ask the broker for consumer offsets, and leave out unknown ones."""
    offsets = {}
    async with wire.connected(address) as broker:
        for topic, group, queue_id in keys:
            header = QueryConsumerOffsetHeader(
                consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
            )
            reply = await broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
            if reply.code == ResponseCode.SUCCESS:
                answer = decode(OffsetReplyHeader, reply.ext_fields)
                offsets[topic, group, queue_id] = answer.offset
    return offsets


class Move:
    """One broker at a time on a folder and a port, and what an operator compares."""

    def __init__(self, folder: Path, namesrv: str, load: Load, admin: Admin, port: int) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.switches: list[tuple[int, int]] = []
        self.gone_back: list[str] = []
        self._namesrv = namesrv
        self._load = load
        self._admin = admin
        self._settings: Settings = {**SETTINGS, "listenPort": port}
        self._cluster: Cluster | None = None

    async def start(self, kind: str) -> None:
        """Start a broker: ``reput``, or a version of the official one."""
        version = "5.5.0" if kind == "reput" else kind
        self._cluster = await asyncio.to_thread(
            start_cluster, kind, version, self.folder, self._settings, namesrv=self._namesrv
        )

    async def switch(self, kind: str, *checked_for: str) -> None:
        """Check, stop the running broker, check again, and start one of another kind.

        Args:
            kind: The next one.
            checked_for: Options of the check.
        """
        assert self._cluster is not None
        beside = await check(self.folder, *checked_for)
        assert beside["go"], findings_with(beside, "stop")
        assert any("running: process" in text for text in findings_with(beside, "warning"))
        before = await self._progress()
        begin_ms = CLOCK.now_ms()
        await asyncio.to_thread(self._cluster.stop_broker)
        saved = saved_offsets(self.store)
        self.gone_back += offsets_gone_back(before, saved)
        after = await check(self.folder, *checked_for)
        assert after["go"], findings_with(after, "stop")
        assert "condition: stopped cleanly" in findings_with(after, "ok")
        await self.start(kind)
        self.gone_back += offsets_gone_back(
            saved, await asked_offsets(self._cluster.address, saved)
        )
        await self.work()
        self.switches.append((begin_ms, CLOCK.now_ms()))

    async def work(self) -> None:
        """Wait until this broker has taken and delivered messages of each kind."""
        ledgers = [
            ledger
            for ledger in self._load.ledgers
            if ledger is not self._load.timed or self._load.has_timer
        ]
        wanted = [(ledger, ledger.acknowledged_count + PHASE_COUNT) for ledger in ledgers]
        is_done = await until(
            lambda: all(ledger.acknowledged_count >= count for ledger, count in wanted)
        )
        assert is_done, [ledger.summary() for ledger in ledgers]

    async def _progress(self) -> Offsets:
        """Return the consumer offsets of the load's groups, as the broker knows them."""
        return {
            (progress.queue.topic, group, progress.queue.queue_id): progress.consumer_offset
            for group in self._load.groups
            for progress in (await self._admin.consume_stats(group)).queues
        }

    async def end(self) -> None:
        assert self._cluster is not None
        await asyncio.to_thread(self._cluster.stop_broker)

    def kill(self) -> None:
        if self._cluster is not None:
            self._cluster.kill()


def waiting(store: Path) -> dict[str, int]:
    """Return the messages that wait in a store, by what they wait for."""
    return dict(features.waiting(StoreReader.open(str(store), allow_live=True)))


def stored_numbers(store: Path, topic: str, queue_id: int) -> list[int]:
    """Return the numbers of a queue's messages, in its order."""
    reader = StoreReader.open(str(store))
    return [
        number_of(reader.message_in_queue(topic, queue_id, queue_offset).body)
        for queue_offset in range(reader.queue(topic, queue_id).max_offset)
    ]


async def rest(admin: Admin, ledger: Ledger) -> Offsets:
    """Give a group without members an offset in each queue of a topic, and return them."""
    await admin.create_group(RESTING)
    offsets = {}
    for queue_id in range(QUEUE_COUNT):
        consumer_offset = 3 + queue_id
        queue = MessageQueue(ledger.topic, NAME, queue_id)
        await admin.update_consumer_offset(RESTING, queue, consumer_offset)
        offsets[ledger.topic, RESTING, queue_id] = consumer_offset
    return offsets


def read_by_java(consumer: JavaPushConsumer, ledger: Ledger) -> Ledger:
    """Return what the orderly consumer of Java received of the messages of a ledger."""
    read = Ledger(f"{ledger.topic}, by Java", is_ordered=True)
    for body, entry in ledger.entries.items():
        read.sending(body, entry.begin_ms)
        if entry.end_ms:
            read.acknowledged(body, entry.end_ms)
        read.uncertain(body)  # it does not note the time of a receipt
    for message in list(consumer.received):
        queue = f"{message.topic} {message.queue_id}"
        read.received(message.body, queue, message.queue_offset, message.store_timestamp)
    return read


@pytest.mark.rotating
@pytest.mark.slow
async def test_a_folder_moves_under_load(tmp_path: Path) -> None:
    port = free_port_of_broker()
    address = f"127.0.0.1:{port}"
    async with contextlib.AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(NameServer(namesrv_settings(tmp_path)))
        namesrv = f"127.0.0.1:{name_server.port}"
        load = Load(namesrv, address)
        admin = await stack.enter_async_context(Admin(namesrv))
        move = Move(tmp_path / "cluster", namesrv, load, admin, port)
        stack.callback(move.kill)
        await move.start("4.9.7")
        for ledger in load.ledgers:
            await admin.create_topic(ledger.topic, queue_count=QUEUE_COUNT, broker=address)
            await admin.create_group(group_of(ledger), broker=address)
        java = await asyncio.to_thread(JavaClient, "5.5.0", tmp_path / "java")
        stack.push_async_callback(asyncio.to_thread, java.close)
        java_reader = await asyncio.to_thread(
            java.push_consumer,
            namesrv,
            JAVA_READERS,
            load.ordered.topic,
            orderly=True,
            pollNameServerInterval=1_000,
            heartbeatBrokerInterval=1_000,
            persistConsumerOffsetInterval=500,
        )

        def all_are_received() -> bool:
            ledgers = (*load.ledgers, read_by_java(java_reader, load.ordered))
            return not any(ledger.missing() for ledger in ledgers)

        async with load.running():
            await move.work()
            resting = await rest(admin, load.plain)
            await move.switch("reput")
            load.has_timer = True
            await move.work()
            await move.switch("5.5.0", "--for-java", "5.5.0")
            await move.switch("reput")
            await load.stop_sending()
            await until(all_are_received)
            await until(lambda: is_settled(move.store))
        await move.end()
        read = read_by_java(java_reader, load.ordered)
        for ledger in (*load.ledgers, read):
            _log.info("%s", ledger.summary())
        problems = [
            text for ledger in (*load.ledgers, read) for text in ledger.problems(move.switches)
        ]
        assert problems == []
        assert move.gone_back == []
        saved = saved_offsets(move.store)
        assert {key: saved.get(key) for key in resting} == resting
        for queue_id in range(QUEUE_COUNT):
            numbers = stored_numbers(move.store, load.ordered.topic, queue_id)
            # A message whose send had no reply may be there twice.
            assert [number for number, _ in itertools.groupby(numbers)] == list(
                range(numbers[-1] + 1)
            )
        assert is_settled(move.store), waiting(move.store)


def is_settled(store: Path) -> bool:
    """Return whether no message waits; the last record of each revive queue stays, as in Java."""
    counts = waiting(store)
    return counts.pop("an acknowledgement of a pop") <= REVIVE_QUEUE_COUNT and not any(
        counts.values()
    )


# --- the ledger ---------------------------------------------------------------------------------

SWITCH = (10_000, 20_000)


def sent(ledger: Ledger, *bodies: bytes, now_ms: int = 100) -> None:
    for body in bodies:
        ledger.sending(body, now_ms, now_ms + 50)
        ledger.acknowledged(body, now_ms + 10)


def received(ledger: Ledger, *bodies: bytes, now_ms: int = 200) -> None:
    for body in bodies:
        ledger.received(body, "T 0", 0, now_ms)


@pytest.mark.parametrize(
    ("happen", "problem"),
    [
        (lambda ledger: received(ledger, b"a-0"), "T: 1 lost: a-1"),
        (lambda ledger: received(ledger, b"a-1", b"a-0"), "T: skipped in T 0: 1 after -1"),
        (lambda ledger: received(ledger, b"a-0", b"a-1", b"b-1"), "T: 1 never sent: b-1"),
        (lambda ledger: received(ledger, b"a-0", b"a-1", b"a-1"), "T: 1 repeated: a-1"),
        (
            lambda ledger: received(ledger, b"a-0", b"a-1", now_ms=120),
            "T: 2 delivered too early: a-0 a-1",
        ),
        (
            lambda ledger: (ledger.rolled_back(b"a-1"), received(ledger, b"a-0", b"a-1")),
            "T: 1 delivered although rolled back: a-1",
        ),
        (
            lambda ledger: (
                received(ledger, b"a-0", b"a-1", now_ms=15_000),
                ledger.released(b"a-1", 15_001),
                received(ledger, b"a-1", now_ms=15_002),
            ),
            "T: 1 delivered after an acknowledged pop: a-1",
        ),
        (
            lambda ledger: (
                received(ledger, b"a-0", b"a-1"),
                ledger.received(b"a-1", "T 0", 0, 300, is_refused=True),
            ),
            "T: 1 lost: a-1",
        ),
    ],
)
def test_a_ledger_finds_broken_promises(happen: Callable[[Ledger], object], problem: str) -> None:
    ledger = Ledger("T", is_ordered=True)
    sent(ledger, b"a-0", b"a-1")
    happen(ledger)
    assert ledger.problems([SWITCH]) == [problem]


def test_a_ledger_allows_what_rocketmq_allows() -> None:
    ledger = Ledger("T", is_ordered=True)
    sent(ledger, b"a-0", b"a-1")
    ledger.received(b"a-0", "T 0", 0, 200, is_refused=True)
    received(ledger, b"a-0")
    received(ledger, b"a-1", b"a-1", now_ms=SWITCH[0] + 1)
    ledger.sending(b"a-2", 30_000)
    ledger.uncertain(b"a-2")  # and never acknowledged
    received(ledger, b"a-2", b"a-2", now_ms=30_001)
    assert ledger.problems([SWITCH]) == []


def test_offsets_go_back() -> None:
    before = {("T", "g", 0): 5, ("T", "g", 1): 5, ("T", "g", 2): 0, ("T", "g", 3): 7}
    after = {("T", "g", 0): 5, ("T", "g", 1): 4}
    assert offsets_gone_back(before, after) == [
        "('T', 'g', 1): 5 before, 4 after",
        "('T', 'g', 3): 7 before, None after",
    ]
