"""Where consumer offsets are kept: by the broker for a group, in a file for a broadcasting member.

Source: rocketmq 4.9.8 ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``.
"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from reput import small_file
from reput.client.core import offset_table, requests
from reput.client.core.offset_table import OffsetTable
from reput.client.core.route_cache import NoRoute
from reput.client.instance import ClientInstance
from reput.errors import BrokerError, InvalidBody, RemotingError, WriteFailed
from reput.format import headers
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

FOLDER = ".rocketmq_offsets"
"""Below the user's home; Java's ``rocketmq.client.localOffsetStoreDir``."""
FILE = "offsets.json"


class ConsumerOffsets(Protocol):
    """A table of consumer offsets, and the store behind it."""

    table: OffsetTable
    """What is known here; what is put into it is saved by ``save``."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return what the store has; ``None``: the group never was in this queue.

        Raises:
            RemotingError, NoRoute: The store cannot be asked now.
        """

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Tell the store what it has not heard; what fails is logged, and told again next time.

        Args:
            queues: Only of these.
        """


class BrokerOffsets:
    """Consumer offsets of a group, kept by the brokers of the queues.

    Args:
        instance: Whom brokers are asked through.
        group: The consumer group, by its full name.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.table = OffsetTable()
        self._instance = instance
        self._group = group
        # Brokers handle requests side by side, and take what comes last: so the next save begins
        # when this one is answered. Java sends them one-way, and may go back a little.
        self._turn = asyncio.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        """Return what the broker has. See ``ConsumerOffsets``."""
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id
        )
        try:
            return await ask_offset(
                self._instance, queue, RequestCode.QUERY_CONSUMER_OFFSET, header
            )
        except BrokerError as answer:
            if answer.response_code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Tell the brokers. See ``ConsumerOffsets``.

        What is on its way cannot be called back, so who is cancelled does not end it: the next save
        would overtake it.
        """
        await asyncio.shield(asyncio.create_task(self._save_in_turn(queues)))

    async def _save_in_turn(self, queues: Iterable[MessageQueue] | None) -> None:
        async with self._turn:
            unsaved = self.table.unsaved()
            chosen = unsaved if queues is None else [one for one in queues if one in unsaved]
            by_broker: dict[str, list[MessageQueue]] = {}
            for queue in chosen:
                by_broker.setdefault(queue.broker_name, []).append(queue)
            await asyncio.gather(*(self._save_each(some, unsaved) for some in by_broker.values()))

    async def _save_each(
        self, queues: list[MessageQueue], unsaved: dict[MessageQueue, int]
    ) -> None:
        # One by one: of first offsets of a group and topic that Java's broker takes side by side,
        # it keeps those of one request and loses the others (``ConsumerOffsetManager.commitOffset``
        # puts a new map for each).
        for queue in queues:
            await self._save(queue, unsaved[queue])

    async def _save(self, queue: MessageQueue, consumer_offset: int) -> None:
        header = headers.UpdateConsumerOffsetHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=consumer_offset,
        )
        request = requests.make(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        try:
            route = await self._instance.route(queue.topic)
            await self._instance.ask(route.master(queue.broker_name), request)
        except (RemotingError, NoRoute, InvalidBody) as error:
            log.warning("offset %d of %s is not saved yet: %s", consumer_offset, queue, error)
        else:
            self.table.note_saved(queue, consumer_offset)


class FileOffsets:
    """Consumer offsets of one member, in the file that Java's client keeps too.

    Args:
        path: The file; its folder is made when it is first written.
    """

    def __init__(self, path: Path) -> None:
        self.table = OffsetTable()
        self._path = path
        self._stored: dict[MessageQueue, int] | None = None
        self._turn = asyncio.Lock()  # One thread at a time writes.

    async def read(self, queue: MessageQueue) -> int | None:
        """Return what the file has. See ``ConsumerOffsets``."""
        return (await self._load()).get(queue)

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Write the file if there is anything new. See ``ConsumerOffsets``."""
        async with self._turn:
            unsaved = self.table.unsaved()
            if queues is not None:
                unsaved = {one: unsaved[one] for one in queues if one in unsaved}
            if not unsaved:
                return
            stored = await self._load()
            stored.update(unsaved)
            try:
                await asyncio.to_thread(
                    small_file.replace_file, self._path, offset_table.encode_file(stored)
                )
            except WriteFailed as error:
                log.error("consumer offsets: %s", error)
                return
            for queue, consumer_offset in unsaved.items():
                self.table.note_saved(queue, consumer_offset)

    async def _load(self) -> dict[MessageQueue, int]:
        if self._stored is None:
            self._stored = await asyncio.to_thread(_read, self._path)
        return self._stored


async def keep_saved(offsets: ConsumerOffsets, group: str, interval_ms: int) -> None:
    """Save a group's consumer offsets from time to time, until cancelled."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            await offsets.save()
        except Exception:  # a turn of the loop: the next one saves the same
            log.exception("consumer offsets of group %s", group)


def path_for(client_id: str, group: str, home: Path | None = None) -> Path:
    """Return where the member of a group keeps its offsets, as Java's client does."""
    return (home or Path.home() / FOLDER) / client_id / group / FILE


async def ask_offset(
    instance: ClientInstance, queue: MessageQueue, code: RequestCode, header: headers.Header
) -> int:
    """Return the offset that the master of a queue answers with.

    Raises:
        NoRoute: The broker is not there.
        BrokerError: It refuses.
        RemotingError: It does not answer.
    """
    route = await instance.route(queue.topic)
    reply = await instance.ask(route.master(queue.broker_name), requests.make(code, header))
    return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """Return the first queue offset that is there. Raises as ``ask_offset``."""
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return await ask_offset(instance, queue, RequestCode.GET_MIN_OFFSET, header)


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """Return the queue offset that the next message will have. Raises as ``ask_offset``."""
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return await ask_offset(instance, queue, RequestCode.GET_MAX_OFFSET, header)


async def offset_at(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the queue offset of the first message stored at a time. Raises as ``ask_offset``.

    Brokers up to 5.0 answer with the message stored nearest to it.
    """
    header = headers.SearchOffsetHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
    )
    return await ask_offset(instance, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


def _read(path: Path) -> dict[MessageQueue, int]:
    """Return the offsets in a file, or in the copy that Java leaves beside it."""
    for one in (path, small_file.backup_of(path)):
        try:
            data = one.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            log.error("consumer offsets in %s cannot be read: %s", one, error)
            continue
        try:
            if data:
                return offset_table.decode_file(data)
        except InvalidBody as error:
            log.error("consumer offsets in %s are damaged: %s", one, error)
    return {}
