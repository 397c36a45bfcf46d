"""Producers and a consumer that record what they see in a history."""

import asyncio
import itertools
import random
from collections.abc import Callable

from faults.harness import QUEUE_COUNT, TOPIC, Node, Pair, text_of
from faults.history import (
    Commit,
    History,
    Observation,
    Read,
    Send,
    Status,
    digest,
)
from reput.errors import Overloaded, ReputError, Unreachable
from reput.format import headers, message_id
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from world import messages_in, pull_header, send_header

GROUP = "faultGroup"
PRODUCERS = 4
SEND_TIMEOUT_MS = 4_000
PULL_TIMEOUT_MS = 3_000
PAUSE_S = 0.03
RETRY_S = 0.1
COMMIT_EVERY_S = 0.5
NEW_TOPIC_EVERY = 8
"""Number of sends of which one creates a topic, on average."""
BODY_BYTES = (1, 40, 300, 3_000, 40_000)
NOT_ENOUGH = "in-sync replicas not enough"

_MISSING = ("not exist", "is illegal")
"""Texts of refusals that a topic or queue is missing: an acknowledged message of it is lost."""

STATUSES = {
    ResponseCode.SUCCESS: Status.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Status.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Status.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Status.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SYSTEM_BUSY: Status.REFUSED,
    ResponseCode.SERVICE_NOT_AVAILABLE: Status.REFUSED,
    ResponseCode.NO_PERMISSION: Status.REFUSED,
    ResponseCode.TOPIC_NOT_EXIST: Status.REFUSED,
}


class Traffic:
    """Clients of a pair, until they are cancelled.

    Args:
        pair: The brokers.
        history: Gets all sends, reads, commits and observations.
        chance: Source of sizes.
        clock: Returns the time in ms.
    """

    def __init__(
        self, pair: Pair, history: History, chance: random.Random, clock: Callable[[], int]
    ) -> None:
        self._pair = pair
        self.history = history
        self._chance = chance
        self._clock = clock
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._positions: dict[int, int] = {}
        self._new_topics: list[str] = []
        """Topics that a send has created, or tried to."""

    def start(self) -> None:
        """Start all clients."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._produce(f"p{number}")) for number in range(PRODUCERS)]
        self._tasks.append(loop.create_task(self._consume()))

    async def stop(self) -> None:
        """Stop all clients; a send that waits for its reply is recorded as unknown."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    # --- producers ---------------------------------------------------------------

    async def _produce(self, name: str) -> None:
        while True:
            send = await self.send(name, self._pair.master)
            failed = send.status in (Status.UNSENT, Status.UNKNOWN, Status.REFUSED)
            await asyncio.sleep(RETRY_S if failed else PAUSE_S)

    async def send(self, producer: str, node: Node, term: int | None = None) -> Send:
        """Send a message to a node, the master of a term (by default the current one)."""
        number = next(self._numbers)
        key = f"k{number}"
        size = self._chance.choice(BODY_BYTES)
        body = f"{key}:{number * 7919}".encode().ljust(size, b".")
        topic, queue_id = TOPIC, self._chance.randrange(QUEUE_COUNT)
        # A slave of Java copies topics every minute.
        if self._pair.is_reput and not self._chance.randrange(NEW_TOPIC_EVERY):
            topic = f"New{number}"
            self._new_topics.append(topic)
        term = self._pair.term if term is None else term
        start_ms = self._clock()
        status, reason = Status.UNKNOWN, "cancelled"
        queue_offset: int | None = None
        physical_offset: int | None = None
        try:
            reply = await self._pair.client.invoke(
                node.address,
                _send_request(key, body, topic, queue_id, start_ms),
                SEND_TIMEOUT_MS,
            )
            status, reason = status_of(reply), reply.remark or ""
            if "queueOffset" in (reply.ext_fields or {}):
                fields = headers.decode(headers.SendMessageReplyHeader, reply.ext_fields)
                queue_offset = fields.queue_offset
                physical_offset = message_id.decode_offset_id(fields.msg_id).physical_offset
        except (Unreachable, Overloaded) as error:
            status, reason = Status.UNSENT, text_of(error)
        except ReputError as error:
            reason = text_of(error)
        finally:
            send = Send(
                key=key,
                producer=producer,
                broker=node.name,
                topic=topic,
                queue_id=queue_id,
                body=digest(body),
                started_ms=start_ms,
                ended_ms=self._clock(),
                status=status,
                term=term,
                queue_offset=queue_offset,
                physical_offset=physical_offset,
                reason=reason,
            )
            self.history.sends.append(send)
        return send

    # --- consumers ---------------------------------------------------------------

    async def _consume(self) -> None:
        """Read from the master, and at times from the slave; commit offsets; ask for them."""
        loop = asyncio.get_running_loop()
        master: Node | None = None
        committed_s = loop.time()
        while True:
            try:
                if master is not self._pair.master:
                    await self._continue(self._pair.master)
                    master = self._pair.master
                for queue_id in range(QUEUE_COUNT):
                    await self._read_on(master, queue_id)
                if loop.time() - committed_s > COMMIT_EVERY_S:
                    committed_s = loop.time()
                    await self._commit(master)
                    await self._check(self._pair.slave)
            except ReputError:
                master = None
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(PAUSE_S)

    async def _continue(self, node: Node) -> None:
        for queue_id in range(QUEUE_COUNT):
            self._positions[queue_id] = await self.observe(node, queue_id)

    async def _read_on(self, node: Node, queue_id: int) -> None:
        self._positions[queue_id], _ = await self.read(node, queue_id, self._positions[queue_id])

    async def _commit(self, node: Node) -> None:
        for queue_id, consumer_offset in self._positions.items():
            header = headers.UpdateConsumerOffsetHeader(
                consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, commit_offset=consumer_offset
            )
            request = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=headers.encode(header))
            start_ms = self._clock()
            reply = await self._pair.client.invoke(node.address, request, PULL_TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                commit = Commit(node.name, GROUP, TOPIC, queue_id, consumer_offset, start_ms)
                self.history.commits.append(commit)

    async def _check(self, slave: Node) -> None:
        """Read the offsets and the end of a queue of the slave; it may be dead."""
        if slave.is_frozen or not slave.is_running:
            return
        queue_id = self._chance.randrange(QUEUE_COUNT)
        try:
            await self.observe(slave, queue_id)
            await self.read(slave, queue_id, max(self._positions[queue_id] - 10, 0))
        except ReputError:
            return

    async def observe(self, node: Node, queue_id: int) -> int:
        """Return the group's consumer offset at a node, and record it. Raises ``ReputError``."""
        is_master = node is self._pair.master
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=GROUP, topic=TOPIC, queue_id=queue_id
        )
        request = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=headers.encode(header))
        start_ms = self._clock()
        reply = await self._pair.client.invoke(node.address, request, PULL_TIMEOUT_MS)
        consumer_offset = 0
        if reply.code == ResponseCode.SUCCESS:
            consumer_offset = headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset
        elif reply.code != ResponseCode.QUERY_NOT_FOUND:
            raise ReputError(reply.remark or f"code {reply.code}")
        queue_end = await self._pair.queue_end(node, queue_id)
        self.history.observations.append(
            Observation(
                node.name,
                GROUP,
                TOPIC,
                queue_id,
                consumer_offset,
                queue_end,
                start_ms,
                is_master=is_master,
            )
        )
        return consumer_offset

    async def read(
        self,
        node: Node,
        queue_id: int,
        queue_offset: int,
        *,
        topic: str = TOPIC,
        is_final: bool = False,
    ) -> tuple[int, int]:
        """Pull once, and record the messages.

        Returns:
            The next queue offset, and the end of the queue.

        Raises:
            ReputError: No reply, or a refusal.
        """
        header = pull_header(topic, queue_id, queue_offset, consumer_group=GROUP)
        request = Command(RequestCode.PULL_MESSAGE, ext_fields=headers.encode(header))
        reply = await self._pair.client.invoke(node.address, request, PULL_TIMEOUT_MS)
        pulled = (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )
        if reply.code not in pulled:
            raise ReputError(reply.remark or f"code {reply.code}")
        fields = headers.decode(headers.PullMessageReplyHeader, reply.ext_fields)
        if reply.code == ResponseCode.SUCCESS:
            for message in messages_in(reply.body):
                self.history.reads.append(
                    Read(
                        node.name,
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
        return fields.next_begin_offset, fields.max_offset

    async def read_all(self, node: Node) -> None:
        """Read all queues of a node, as final reads. Raises ``ReputError``."""
        for queue_id in range(QUEUE_COUNT):
            position, end = 0, await self._pair.queue_end(node, queue_id)
            while position < end:
                following, _ = await self.read(node, queue_id, position, is_final=True)
                if following == position:
                    raise ReputError(
                        f"queue {queue_id} of {node.name} ends at {position}, not {end}"
                    )
                position = following
        for topic in self._new_topics:
            for queue_id in range(QUEUE_COUNT):
                try:
                    await self.read(node, queue_id, 0, topic=topic, is_final=True)
                except ReputError as error:
                    if not any(text in str(error) for text in _MISSING):
                        raise


def status_of(reply: Command) -> Status:
    """Return the outcome of a send from its reply."""
    if reply.code == ResponseCode.SYSTEM_ERROR and NOT_ENOUGH in (reply.remark or ""):
        return Status.REFUSED
    return STATUSES.get(ResponseCode(reply.code), Status.UNKNOWN)


def _send_request(key: str, body: bytes, topic: str, queue_id: int, time_ms: int) -> Command:
    header = send_header(
        topic,
        queue_id,
        {"KEYS": key, "UNIQ_KEY": f"{key:0>32}"},
        default_topic_queue_nums=QUEUE_COUNT,
        born_timestamp=1_700_000_000_000 + time_ms,
    )
    return Command(RequestCode.SEND_MESSAGE_V2, ext_fields=headers.encode_v2(header), body=body)
