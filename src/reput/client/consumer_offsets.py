"""Stores of consumer offsets: brokers for a group, a file for a broadcasting member.

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
from reput.client.outages import ROUTES
from reput.errors import BrokerError, InvalidBody, RemotingError, ReputError, WriteFailed
from reput.format import headers
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

FOLDER = ".rocketmq_offsets"
"""Folder in the user's home; Java's ``rocketmq.client.localOffsetStoreDir``."""
FILE = "offsets.json"


class ConsumerOffsets(Protocol):
    """A table of consumer offsets and its store."""

    table: OffsetTable
    """Local table; ``save`` writes its changes to the store."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset; None if the group has none for this queue.

        Raises:
            RemotingError, NoRoute: The store is not reachable.
        """

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Write changed offsets to the store; failures are logged and retried by the next call.

        Args:
            queues: Queues to save; None: all.
        """


class BrokerOffsets:
    """Consumer offsets of a group, stored by the brokers of the queues.

    While a master is away, a slave stores them: another member may begin there. They do not count
    as saved then, so that the master gets them when it is back.

    Args:
        instance: Client instance for requests.
        group: The consumer group, by its full name.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.table = OffsetTable()
        self._instance = instance
        self._group = group
        # Brokers handle requests concurrently and the last one wins, so that a save starts only
        # after the reply to the previous one. Java sends one-way commits, which can go back a
        # little.
        self._turn = asyncio.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of the master, or of a slave while the master is unavailable."""
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id
        )
        try:
            route = await self._instance.route(queue.topic)
            address = route.any_address(queue.broker_name)
            code = RequestCode.QUERY_CONSUMER_OFFSET
            return await _ask_offset(self._instance, address, code, header)
        except BrokerError as answer:
            if answer.response_code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Commit to the brokers. See ``ConsumerOffsets``.

        Requests in flight cannot be recalled, so that cancelling the caller does not end them: the
        next save would overtake them.
        """
        await asyncio.shield(asyncio.create_task(self._save_in_turn(queues)))

    async def _save_in_turn(self, queues: Iterable[MessageQueue] | None) -> None:
        async with self._turn:
            unsaved = self.table.unsaved()
            chosen = unsaved if queues is None else [key for key in queues if key in unsaved]
            by_broker: dict[str, list[MessageQueue]] = {}
            for queue in chosen:
                by_broker.setdefault(queue.broker_name, []).append(queue)
            await asyncio.gather(*(self._save_each(some, unsaved) for some in by_broker.values()))

    async def _save_each(
        self, queues: list[MessageQueue], unsaved: dict[MessageQueue, int]
    ) -> None:
        # One by one: if Java's broker handles the first offsets of a group and topic concurrently,
        # it keeps those of one request and loses the others (``ConsumerOffsetManager.commitOffset``
        # creates a new map for each).
        is_refreshed = False
        for queue in queues:
            error = await self._save(queue, unsaved[queue])
            if error is not None and error.refresh_route and not is_refreshed:
                is_refreshed = True
                await self._refresh(queue.topic)

    async def _refresh(self, topic: str) -> None:
        """Fetch a route: if the master is unavailable, the next offsets go to a slave."""
        try:
            await self._instance.route(topic, refresh=True)
        except (RemotingError, NoRoute, InvalidBody) as error:
            text = "route of topic %s"
            self._instance.outages.warn(log, error, text, topic, kind=ROUTES)

    async def _save(self, queue: MessageQueue, consumer_offset: int) -> ReputError | None:
        """Save one offset; return the error if that failed."""
        header = headers.UpdateConsumerOffsetHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=consumer_offset,
        )
        request = requests.make(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        try:
            route = await self._instance.route(queue.topic)
            address = route.any_address(queue.broker_name)
            await self._instance.ask(address, request)
        except (RemotingError, NoRoute, InvalidBody) as error:
            text = "offset %d of %s is not saved yet"
            self._instance.outages.warn(log, error, text, consumer_offset, queue)
            return error
        if address == route.address(queue.broker_name):
            self.table.note_saved(queue, consumer_offset)
        return None


class FileOffsets:
    """Consumer offsets of one member, in the file format of Java's client.

    Args:
        path: The file; the first write creates its folder.
    """

    def __init__(self, path: Path) -> None:
        self.table = OffsetTable()
        self._path = path
        self._stored: dict[MessageQueue, int] | None = None
        self._turn = asyncio.Lock()  # Only one thread writes at a time.

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset in the file. See ``ConsumerOffsets``."""
        return (await self._load()).get(queue)

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Write the file if offsets have changed. See ``ConsumerOffsets``."""
        async with self._turn:
            unsaved = self.table.unsaved()
            if queues is not None:
                unsaved = {key: unsaved[key] for key in queues if key in unsaved}
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
    """Save a group's consumer offsets periodically until cancelled."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            await offsets.save()
        except Exception:  # a time slice; the next save repeats it
            log.exception("consumer offsets of group %s", group)


def path_for(client_id: str, group: str, home: Path | None = None) -> Path:
    """Return the path of a member's offset file, as in Java's client."""
    return (home or Path.home() / FOLDER) / client_id / group / FILE


async def ask_offset(
    instance: ClientInstance, queue: MessageQueue, code: RequestCode, header: headers.Header
) -> int:
    """Request an offset from the master of a queue.

    Raises:
        NoRoute: The broker is unknown.
        BrokerError: The broker refused.
        RemotingError: No reply arrived.
    """
    route = await instance.route(queue.topic)
    return await _ask_offset(instance, route.master(queue.broker_name), code, header)


async def _ask_offset(
    instance: ClientInstance, address: str, code: RequestCode, header: headers.Header
) -> int:
    reply = await instance.ask(address, requests.make(code, header))
    return headers.decode(headers.OffsetReplyHeader, reply.ext_fields).offset


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """Return the first queue offset of a queue. Raises as ``ask_offset``."""
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return await ask_offset(instance, queue, RequestCode.GET_MIN_OFFSET, header)


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """Return the queue offset after the last message. Raises as ``ask_offset``."""
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return await ask_offset(instance, queue, RequestCode.GET_MAX_OFFSET, header)


async def offset_at(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the queue offset of the first message stored at a time. Raises as ``ask_offset``.

    Brokers up to 5.0 return the message stored nearest to it.
    """
    header = headers.SearchOffsetHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
    )
    return await ask_offset(instance, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


def _read(path: Path) -> dict[MessageQueue, int]:
    """Return the offsets in a file or in its backup by Java."""
    for candidate in (path, small_file.backup_of(path)):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            log.error("consumer offsets in %s cannot be read: %s", candidate, error)
            continue
        try:
            if data:
                return offset_table.decode_file(data)
        except InvalidBody as error:
            log.error("consumer offsets in %s are damaged: %s", candidate, error)
    return {}
