"""Clients of a simulated cluster, which record what they see in a history.

    producers     plain requests: single messages, batches, oneway, delayed, of new topics
    transactions  our TransactionProducer
    puller        plain pulls, consumer offsets
    popper        plain pops and acknowledgements
    pusher        our PushConsumer, which fails at times

All of them share a number of operations, and pause between two: the seed decides everything.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from faults.history import Commit, History, Observation, Read, Send, Status, digest
from faults.traffic import status_of
from pop_client import PoppedMessage, taken_of
from reput.client.config import ClientConfig, ConsumeFromWhere, ConsumerConfig, ProducerConfig
from reput.client.listener import ConsumeResult
from reput.client.message import Message, SendStatus
from reput.client.push_consumer import PushConsumer
from reput.client.transaction_producer import TransactionProducer, TransactionState
from reput.errors import Overloaded, ReputError, Unreachable
from reput.format import batch, headers, message_id, properties as props
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.headers import (
    AckMessageHeader,
    PopMessageHeader,
)
from reput.format.message import StoredMessage
from reput.remoting.client import RemotingClient
from sim.loop import context_of, spawn
from sim.node import BrokerHost, Host
from world import messages_in, pull_header, send_header

TOPIC, DELAYED, TRANSACTIONAL = "T", "Delayed", "Transactional"
QUEUES = {TOPIC: 2, DELAYED: 1, TRANSACTIONAL: 1}
PULLERS, POPPERS, PUSHERS, TRANSACTORS = "pullers", "poppers", "pushers", "transactors"
SEND_MS, ASK_MS = 4_000, 3_000
INVISIBLE_MS = 5_000
BODY_BYTES = (1, 40, 300, 2_000, 9_000)
DELAYS_MS = (500, 1_500, 4_000)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a consumer got, and when."""

    key: str
    time_ms: int


@dataclass(slots=True)
class Sight:
    """What a history does not have: times of delays, ends of transactions, what groups got."""

    due_ms: dict[str, int] = field(default_factory=dict)
    """Key of a delayed message -> when it may be seen first, by the clocks of its send."""
    rolled_back: set[str] = field(default_factory=set)
    """Keys of half messages that were never committed, nor will be."""
    decided: set[str] = field(default_factory=set)
    """Keys of half messages."""
    groups: dict[str, list[Delivery]] = field(default_factory=dict)
    """Group -> what it has consumed."""
    acked: list[Delivery] = field(default_factory=list)
    """Popped messages whose acknowledgement a broker has confirmed."""
    put_off: list[Delivery] = field(default_factory=list)
    """Messages that the push consumer wants again later."""
    popped: list[Delivery] = field(default_factory=list)
    """Deliveries of pops."""


class Client(Host):
    """A host with a program that uses the cluster."""

    def start(self) -> RemotingClient:
        """Start the program; return its connections."""
        process = self._begin()
        self.remoting: RemotingClient = context_of(process).run(
            RemotingClient, connect_timeout_ms=1_000
        )
        return self.remoting


class Workload:
    """The clients.

    Args:
        master: Returns the broker that clients believe to be the master.
        replicas: All brokers.
        name_servers: Addresses of the name servers.
        clients: Hosts of clients.
        history: Gets all sends, reads, commits and observations.
        chance: Source of all choices.
        clock: Returns the virtual time in ms.
    """

    def __init__(
        self,
        master: Callable[[], BrokerHost],
        replicas: list[BrokerHost],
        name_servers: str,
        clients: list[Client],
        history: History,
        chance: random.Random,
        clock: Callable[[], int],
    ) -> None:
        self._master = master
        self._replicas = replicas
        self._name_servers = name_servers
        self._clients = clients
        self.history = history
        self.sight = Sight()
        self._chance = chance
        self._clock = clock
        self._numbers = itertools.count()
        self._positions: dict[int, int] = {}
        self._decisions: dict[str, TransactionState] = {}
        self._topics = dict(QUEUES)
        self._tasks: list[asyncio.Task[Any]] = []
        self._left = 0
        self._pause_s = 0.2
        self._other_positions: dict[tuple[str, str], int] = {}
        self.put_off_share = 0.05
        """Share of its messages that the push consumer wants again later."""
        self.counts: dict[str, int] = {}
        """Operations by kind."""

    @property
    def is_idle(self) -> bool:
        """True if all operations are done."""
        return self._left <= 0

    def start(self, count: int, pause_s: float) -> None:
        """Start the clients.

        Args:
            count: Number of operations of all together.
            pause_s: Average pause of a client between two.
        """
        self._left, self._pause_s = count, pause_s
        bodies: list[Callable[[RemotingClient], Awaitable[object]]] = [
            lambda client: self._produce("p1", client),
            lambda client: self._produce("p2", client),
            self._pull,
            self._pop,
            self._transact,
            self._push,
        ]
        for client, body in zip(self._clients, bodies, strict=False):
            remoting = client.remoting
            assert client.process is not None
            work: Any = body(remoting)
            self._tasks.append(spawn(client.loop, client.process, work))

    async def stop(self) -> None:
        """Stop all clients; a request that waits for its reply has an unknown outcome."""
        self._left = 0
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self._tasks.clear()

    async def _next(self, kind: str) -> bool:
        """Pause; return False if all operations are done."""
        await asyncio.sleep(self._chance.expovariate(1 / self._pause_s))
        if self._left <= 0:
            return False
        self._left -= 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return True

    # Producers ----------------------------------------------------------------------------------

    async def _produce(self, name: str, client: RemotingClient) -> None:
        kinds = ["send"] * 6 + ["batch", "oneway", "delayed", "new", "sends"]
        while True:
            kind = self._chance.choice(kinds)
            if not await self._next(kind):
                return
            if kind == "sends":
                # No order: each has its own producer.
                names = [f"{name} {number}" for number in range(3)]
                await asyncio.gather(*(self.send(name, client) for name in names))
            else:
                await self.send(name, client, kind)

    async def send(
        self,
        producer: str,
        client: RemotingClient,
        kind: str = "send",
        node: BrokerHost | None = None,
    ) -> Send:
        """Send a message, or a batch, to the master; record and return the last outcome."""
        node, chance = node or self._master(), self._chance
        topic = {"delayed": DELAYED}.get(kind, TOPIC)
        numbers = [next(self._numbers) for _ in range(3 if kind == "batch" else 1)]
        if kind == "new":
            topic = f"New{numbers[0]}"
            self._topics[topic] = 2
        queue_id = chance.randrange(self._topics[topic])
        keys = [f"k{number}" for number in numbers]
        size = chance.choice(BODY_BYTES[:3] if kind == "batch" else BODY_BYTES)
        bodies = [f"{key}:{producer}".encode().ljust(size, b".") for key in keys]
        marks = [{"KEYS": key, "UNIQ_KEY": f"{key:0>32}"} for key in keys]
        if kind == "delayed":
            # No order: each has its own producer.
            producer = f"{producer} {keys[0]}"
            delay_ms = chance.choice(DELAYS_MS)
            marks[0]["TIMER_DELAY_MS"] = str(delay_ms)
            self.sight.due_ms[keys[0]] = self._clock() + delay_ms
        if kind == "oneway":
            producer = f"{producer} oneway {keys[0]}"
        request = _send_request(topic, queue_id, bodies, marks, node.clock.now_ms())
        started_ms = self._clock()
        status, reason, reply = Status.UNKNOWN, "cancelled", None
        try:
            if kind == "oneway":
                await client.send_oneway(node.address, request)
                reason = "oneway"
            else:
                reply = await client.invoke(node.address, request, SEND_MS)
                status, reason = status_of(reply), reply.remark or ""
        except (Unreachable, Overloaded) as error:
            status, reason = Status.UNSENT, str(error)
        except ReputError as error:
            reason = str(error)
        finally:
            queue_offset = physical_offset = None
            if reply is not None and "queueOffset" in (reply.ext_fields or {}):
                fields = headers.decode(headers.SendMessageReplyHeader, reply.ext_fields)
                # That of a delayed message is a place where it only waits.
                queue_offset = None if kind == "delayed" else fields.queue_offset
                ids = [part for part in fields.msg_id.split(",") if part]
                physical_offset = message_id.decode_offset_id(ids[0]).physical_offset
            for place, (key, body) in enumerate(zip(keys, bodies, strict=True)):
                self.history.sends.append(
                    Send(
                        key=key,
                        producer=producer,
                        broker=node.name,
                        topic=topic,
                        queue_id=queue_id,
                        body=digest(body),
                        started_ms=started_ms,
                        ended_ms=max(self._clock(), started_ms + 1),
                        status=status,
                        term=self.history.term,
                        queue_offset=None if queue_offset is None else queue_offset + place,
                        physical_offset=physical_offset,
                        reason=reason,
                    )
                )
        return self.history.sends[-1]

    # Transactions -------------------------------------------------------------------------------

    def _config(self, client: Client) -> ClientConfig:
        return ClientConfig(
            namesrv_addr=self._name_servers,
            client_ip=client.ip,
            instance_name=client.name,
            # Brokers ask only connected producers for the outcome of transactions.
            heartbeat_ms=5_000,
            poll_name_server_ms=5_000,
        )

    async def _transact(self, _: RemotingClient) -> None:
        client = self._clients[4]

        def state_of(message: Any) -> TransactionState:
            return self._decisions.get(" ".join(message.keys), TransactionState.ROLLBACK)

        async with TransactionProducer(
            TRANSACTORS,
            check=state_of,
            topics=[TRANSACTIONAL],
            config=ProducerConfig(retry_times_when_send_failed=0, send_timeout_ms=SEND_MS),
            client=self._config(client),
            clock=client.clock,
        ) as producer:
            while await self._next("transaction"):
                await self._transaction(producer)
            await asyncio.Event().wait()  # it answers checks

    async def _transaction(self, producer: TransactionProducer) -> None:
        key = f"k{next(self._numbers)}"
        body = f"{key}:transaction".encode()
        is_commit = self._chance.random() < 0.6
        reports_it = self._chance.random() < 0.7
        state = TransactionState.COMMIT if is_commit else TransactionState.ROLLBACK
        self._decisions[key] = state
        self.sight.decided.add(key)
        if not is_commit:
            self.sight.rolled_back.add(key)
        started_ms = self._clock()
        status, reason, broker = Status.UNKNOWN, "", self._master().name
        physical_offset: int | None = None
        message = Message(TRANSACTIONAL, body, keys=(key,), properties={"UNIQ_KEY": f"{key:0>32}"})
        try:
            half = await producer.send_half(message)
            physical_offset = message_id.decode_offset_id(half.offset_message_id).physical_offset
            # Without a decision now, the broker asks for it later.
            if reports_it or not is_commit:
                result = await producer.end(
                    half, state if reports_it else TransactionState.UNKNOWN, message=message
                )
                if is_commit and result.is_settled and half.status is SendStatus.SEND_OK:
                    status = Status.OK
        except ReputError as error:
            reason = str(error)
        finally:
            self.history.sends.append(
                Send(
                    key=key,
                    producer=f"transaction {key}",
                    broker=broker,
                    topic=TRANSACTIONAL,
                    queue_id=0,
                    body=digest(body),
                    started_ms=started_ms,
                    ended_ms=self._clock(),
                    status=status if is_commit else Status.UNKNOWN,
                    term=self.history.term,
                    physical_offset=physical_offset,
                    reason=reason,
                )
            )

    # Pulls --------------------------------------------------------------------------------------

    async def _pull(self, client: RemotingClient) -> None:
        """Read from the master, and at times from a slave; commit offsets; ask for them."""
        master: BrokerHost | None = None
        while await self._next("pull"):
            try:
                if master is not self._master():
                    master = None
                    for queue_id in range(QUEUES[TOPIC]):
                        self._positions[queue_id] = await self.observe(
                            client, self._master(), queue_id
                        )
                    master = self._master()
                for queue_id in range(QUEUES[TOPIC]):
                    begin = self._positions[queue_id]
                    self._positions[queue_id], _ = await self.read(
                        client, master, TOPIC, queue_id, begin
                    )
                for topic in (DELAYED, TRANSACTIONAL):
                    place = master.name, topic
                    begin = self._other_positions.get(place, 0)
                    self._other_positions[place], _ = await self.read(
                        client, master, topic, 0, begin
                    )
                draw = self._chance.random()
                if draw < 0.4:
                    await self._commit(client, master)
                elif draw < 0.6:
                    slave = self._chance.choice(self._replicas)
                    queue_id = self._chance.randrange(QUEUES[TOPIC])
                    await self.observe(client, slave, queue_id)
                    begin = max(self._positions[queue_id] - 5, 0)
                    await self.read(client, slave, TOPIC, queue_id, begin)
                elif draw < 0.7:
                    # The client starts again: it continues at the group's consumer offsets.
                    master = None
            except ReputError:
                master = None

    async def _commit(self, client: RemotingClient, master: BrokerHost) -> None:
        for queue_id, consumer_offset in self._positions.items():
            header = headers.UpdateConsumerOffsetHeader(
                consumer_group=PULLERS,
                topic=TOPIC,
                queue_id=queue_id,
                commit_offset=consumer_offset,
            )
            request = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=headers.encode(header))
            started_ms = self._clock()
            reply = await client.invoke(master.address, request, ASK_MS)
            if reply.code == ResponseCode.SUCCESS:
                self.history.commits.append(
                    Commit(master.name, PULLERS, TOPIC, queue_id, consumer_offset, started_ms)
                )

    async def observe(self, client: RemotingClient, node: BrokerHost, queue_id: int) -> int:
        """Return the group's consumer offset at a node, and record it. Raises ``ReputError``."""
        is_master = node is self._master() and node.broker is not None
        is_master = is_master and node.broker.identity.is_master  # not one that started again
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=PULLERS, topic=TOPIC, queue_id=queue_id
        )
        request = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=headers.encode(header))
        started_ms = self._clock()
        reply = await client.invoke(node.address, request, ASK_MS)
        consumer_offset = 0
        if reply.code == ResponseCode.SUCCESS:
            consumer_offset = headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset
        elif reply.code != ResponseCode.QUERY_NOT_FOUND:
            raise ReputError(reply.remark or f"code {reply.code}")
        end = await self.queue_end(client, node, TOPIC, queue_id)
        self.history.observations.append(
            Observation(
                node.name, PULLERS, TOPIC, queue_id, consumer_offset, end, started_ms,
                is_master=is_master,
            )
        )  # fmt: skip
        return consumer_offset

    async def queue_end(
        self, client: RemotingClient, node: BrokerHost, topic: str, queue_id: int
    ) -> int:
        """Return the end of a queue. Raises ``ReputError``."""
        fields = headers.encode(headers.QueueHeader(topic=topic, queue_id=queue_id))
        request = Command(RequestCode.GET_MAX_OFFSET, ext_fields=fields)
        reply = await client.invoke(node.address, request, ASK_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise ReputError(reply.remark or f"code {reply.code}")
        return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset

    async def read(
        self,
        client: RemotingClient,
        node: BrokerHost,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        is_final: bool = False,
    ) -> tuple[int, int]:
        """Pull once; record the messages; return the next queue offset and the end.

        Raises:
            ReputError: No reply, or a refusal.
        """
        header = pull_header(topic, queue_id, queue_offset, consumer_group=PULLERS)
        request = Command(RequestCode.PULL_MESSAGE, ext_fields=headers.encode(header))
        reply = await client.invoke(node.address, request, ASK_MS)
        if reply.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise ReputError(reply.remark or f"code {reply.code}")
        fields = headers.decode(headers.PullMessageReplyHeader, reply.ext_fields)
        if reply.code == ResponseCode.SUCCESS:
            for message in messages_in(reply.body):
                self._note(message, node.name, is_final=is_final)
        return fields.next_begin_offset, fields.max_offset

    def _note(
        self, message: StoredMessage, broker: str = "the master", *, is_final: bool = False
    ) -> None:
        """Record a message that a consumer got."""
        self.history.reads.append(
            Read(
                broker,
                message.topic,
                message.queue_id,
                message.queue_offset,
                message.physical_offset,
                " ".join(message.keys),
                digest(message.body),
                self._clock(),
                is_final=is_final,
            )
        )

    async def read_all(self, client: RemotingClient, node: BrokerHost) -> None:
        """Read all queues of a node, as final reads. Raises ``ReputError``."""
        for topic, count in list(self._topics.items()):
            for queue_id in range(count):
                try:
                    position, end = 0, await self.queue_end(client, node, topic, queue_id)
                    while position < end:
                        following, _ = await self.read(
                            client, node, topic, queue_id, position, is_final=True
                        )
                        if following == position:
                            raise RuntimeError(
                                f"{topic}/{queue_id} of {node.name} ends at {position}, not {end}"
                            )
                        position = following
                except ReputError as error:
                    if topic in QUEUES or "not exist" not in str(error):
                        raise

    # Pops ---------------------------------------------------------------------------------------

    async def _pop(self, client: RemotingClient) -> None:
        while await self._next("pop"):
            try:
                taken = await self.pop(client)
            except ReputError:
                continue
            for popped in taken:
                if self._chance.random() < 0.8:
                    await self._ack(client, popped)

    async def pop(self, client: RemotingClient, *, wait_ms: int = 0) -> list[PoppedMessage]:
        """Pop messages of the topic. Raises ``ReputError``."""
        header = PopMessageHeader(
            consumer_group=POPPERS,
            topic=TOPIC,
            queue_id=-1,
            max_msg_nums=8,
            invisible_time=INVISIBLE_MS,
            poll_time=wait_ms,
            born_time=self._master().clock.now_ms(),
            init_mode=0,
            exp_type="TAG",
            exp="*",
        )
        request = Command(RequestCode.POP_MESSAGE, ext_fields=headers.encode(header))
        reply = await client.invoke(self._master().address, request, ASK_MS + wait_ms)
        if reply.code not in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT):
            raise ReputError(reply.remark or f"code {reply.code}")
        if reply.code != ResponseCode.SUCCESS:
            return []
        taken = taken_of(reply, POPPERS, TOPIC)
        for popped in taken:
            if popped.topic == TOPIC:
                self._note(popped.message)
        now_ms = self._clock()
        self.sight.popped += [Delivery(" ".join(popped.message.keys), now_ms) for popped in taken]
        return taken

    async def _ack(self, client: RemotingClient, popped: PoppedMessage) -> None:
        header = AckMessageHeader(
            consumer_group=popped.group,
            topic=popped.topic,
            queue_id=popped.queue_id,
            extra_info=popped.handle,
            offset=popped.queue_offset,
        )
        request = Command(RequestCode.ACK_MESSAGE, ext_fields=headers.encode(header))
        try:
            reply = await client.invoke(self._master().address, request, ASK_MS)
        except ReputError:
            return
        if reply.code == ResponseCode.SUCCESS:
            self.sight.acked.append(Delivery(" ".join(popped.message.keys), self._clock()))

    async def drain_pops(self, client: RemotingClient, wanted: set[str]) -> None:
        """Pop until all wanted messages are acknowledged, or nothing more comes."""
        deadline_ms = self._clock() + 6 * INVISIBLE_MS
        while self._clock() < deadline_ms:
            if wanted <= {seen.key for seen in self.sight.acked}:
                return
            try:
                for popped in await self.pop(client, wait_ms=1_000):
                    await self._ack(client, popped)
            except ReputError:
                await asyncio.sleep(0.5)

    # A push consumer ----------------------------------------------------------------------------

    async def _push(self, _: RemotingClient) -> None:
        client = self._clients[5]
        seen = self.sight.groups.setdefault(PUSHERS, [])

        async def listen(messages: Any, context: Any) -> ConsumeResult:
            for message in messages:
                if not message.reconsume_times:  # else it is a copy in the retry topic
                    self._note(message.stored)
            if self._chance.random() < self.put_off_share:
                self.sight.put_off += [
                    Delivery(" ".join(message.keys), self._clock()) for message in messages
                ]
                return ConsumeResult.LATER
            seen.extend(Delivery(" ".join(message.keys), self._clock()) for message in messages)
            return ConsumeResult.SUCCESS

        consumer = PushConsumer(
            PUSHERS,
            listener=listen,
            config=ConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET),
            client=self._config(client),
            clock=client.clock,
        )
        await consumer.subscribe(TOPIC)
        while True:
            try:
                await consumer.start()
                break
            except ReputError:
                await asyncio.sleep(1)
        await asyncio.Event().wait()  # it works by itself

    def undelivered(self, group: str, wanted: set[str]) -> set[str]:
        """Return the messages that a group has not consumed."""
        return wanted - {seen.key for seen in self.sight.groups.get(group, [])}


def _send_request(
    topic: str, queue_id: int, bodies: list[bytes], marks: list[dict[str, str]], now_ms: int
) -> Command:
    is_batch = len(bodies) > 1
    header = send_header(
        topic,
        queue_id,
        {} if is_batch else marks[0],
        default_topic_queue_nums=2,
        born_timestamp=now_ms,
        batch=is_batch,
    )
    body = bodies[0]
    code = RequestCode.SEND_MESSAGE_V2
    if is_batch:
        code = RequestCode.SEND_BATCH_MESSAGE
        body = batch.encode(
            InnerMessage(0, body, props.encode(mark))
            for body, mark in zip(bodies, marks, strict=True)
        )
    return Command(code, ext_fields=headers.encode_v2(header), body=body)
