"""A slave's copies of its master's tables: topics, groups, request modes, users, offsets, delays.

    topics, groups, offsets -> end of the master's log -> the slave has dispatched up to it
    new entries at once                                -> positions: of groups, levels, the timer

A position may pass a message whose copy the slave lacks: a slave that became master then would
never deliver it. So positions are taken once the slave has all that the master had afterwards.
Nothing is copied unless the slave follows: the follower has checked then whose master that is.
Consumer offsets and delay levels that the master lacks are kept; for topics and groups see
``named_tables``.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from reput.broker.delay import DelaySchedule
from reput.broker.deliveries import Deliveries
from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.broker.replication.master_tables import MasterTables, Queues
from reput.broker.replication.named_tables import NamedTables
from reput.broker.replication.state import SlaveState, SlaveStatus
from reput.broker.replication.users_copy import UsersCopy
from reput.broker.timer.timers import Timers
from reput.clock import Clock
from reput.errors import ReputError
from reput.format import names
from reput.format.signing import Signer
from reput.remoting.client import RemotingClient
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, chunks
from reput.remoting.time_slices import run_in_slices
from reput.store.message_store import MessageStore
from reput.store.tables.pop_tables import RequestModeTable
from reput.store.tables.timer_table import TimerProgress

INTERVAL_MS = 3_000
"""Interval between two rounds, in ms."""
_LOOK_MS = 100
"""Interval of the checks whether the log has reached the positions that wait for it."""
_T = TypeVar("_T")

_NO_OFFSET = -1

_log = logging.getLogger(__name__)


class Positions(NamedTuple):
    """Positions of a master."""

    log_end: int
    """Physical offset of the end of its log afterwards."""
    consumer_offsets: dict[tuple[str, str], Queues] | None
    """None if unknown, like the other positions."""
    delay_offsets: dict[int, int] | None
    timer: TimerProgress | None


class MetadataSync:
    """Copies the master's tables while the slave follows it.

    Args:
        status: State of the slave, with the master's address.
        store: The store.
        named_tables: Copies topics and groups.
        deliveries: The consumer offsets.
        delayed: The progress of delayed messages.
        timers: The progress of the timer.
        request_modes: The request modes of groups.
        clock: The clock.
        on_topics: Called after each copy of all topics with the end of the log before it: makes
            them durable. Raises ``WriteFailed``.
        tls: Certificates of the requests; None without TLS.
        signer: Signs the requests; None: they are not signed.
        users_copy: Copies users and rules; None without access control 2.0.
    """

    def __init__(
        self,
        status: SlaveStatus,
        store: MessageStore,
        named_tables: NamedTables,
        deliveries: Deliveries,
        delayed: DelaySchedule,
        timers: Timers,
        request_modes: RequestModeTable,
        clock: Clock,
        on_topics: Callable[[int], Awaitable[None]],
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
        users_copy: UsersCopy | None = None,
    ) -> None:
        self._users_copy = users_copy
        self._tls = tls
        self._signer = signer
        self._status = status
        self._store = store
        self._named_tables = named_tables
        self._deliveries = deliveries
        self._delayed = delayed
        self._timers = timers
        self._request_modes = request_modes
        self._clock = clock
        self._on_topics = on_topics
        self._copying_topics = asyncio.Lock()
        self._client: RemotingClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: Positions | None = None
        self._seen: dict[tuple[str, str], Queues] | None = None
        """Consumer offsets of the master when they were last copied; None before the first copy."""
        self._problem = ""

    async def start(self) -> None:
        """Start copying."""
        self._client = RemotingClient(tls=self._tls, signer=self._signer)
        self._task = asyncio.create_task(self._run(self._client))

    async def stop(self) -> None:
        """Stop copying."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _run(self, client: RemotingClient) -> None:
        while True:
            try:
                await self._round(client)
            except ReputError as error:
                self._report(str(error))
                await asyncio.sleep(INTERVAL_MS / 1000)
            except Exception as error:  # noqa: BLE001 - the outermost edge of a task
                if self._report(f"{type(error).__name__}: {error}"):
                    _log.exception("copying the master's tables failed")
                await asyncio.sleep(INTERVAL_MS / 1000)

    async def _round(self, client: RemotingClient) -> None:
        """Copy all tables periodically."""
        status = self._status
        if status.state is SlaveState.FOLLOWING and status.master_address:
            await self.copy(MasterRequests(client, status.master_address))
            self._problem = ""
        else:
            self._waiting = None  # the next master may have another log
            self._named_tables.forget_master()
        for _ in range(max(INTERVAL_MS // _LOOK_MS, 1)):
            await asyncio.sleep(min(INTERVAL_MS, _LOOK_MS) / 1000)
            await self._take_positions()

    def _report(self, problem: str) -> bool:
        """Log a problem once; return True if it is new."""
        if problem == self._problem:
            return False
        self._problem = problem
        _log.warning("the master's tables are not copied: %s", problem)
        return True

    async def copy(self, master: MasterRequests) -> None:
        """Copy all tables once.

        Raises:
            Unanswered: Tables cannot be fetched or read; all others are copied.
        """
        tables, problems = MasterTables(master), list[str]()

        async def done(work: Callable[[], Awaitable[_T]]) -> _T | None:
            try:
                return await work()
            except ReputError as error:  # also of a disk: the other tables are copied
                problems.append(str(error))
                return None

        log = await done(master.log_range)
        is_newer = log is not None and log.has_newer_tables
        users_copy = self._users_copy
        if is_newer and users_copy is not None:
            await done(lambda: users_copy.copy(master))
        await done(lambda: self.copy_topics(master))
        await done(lambda: self._named_tables.copy_groups(master))
        if is_newer and (modes := await done(tables.request_modes)) is not None:
            self._request_modes.replace(modes)
        consumer_offsets = await done(tables.consumer_offsets)
        if consumer_offsets is not None:
            await run_in_slices(self._forget_deleted(consumer_offsets), seconds=self._clock.work_s)
            await run_in_slices(
                self._copy_new_offsets(consumer_offsets), seconds=self._clock.work_s
            )
        await self._take_positions()
        if self._waiting is None:
            delay_offsets = await done(tables.delay_offsets)
            timer = await done(tables.timer_progress) if is_newer else None
            log = await done(master.log_range)
            if log is not None:
                self._waiting = Positions(log.max_offset, consumer_offsets, delay_offsets, timer)
            await self._take_positions()
        if problems:
            raise Unanswered("; ".join(problems))

    async def copy_topics(self, master: MasterRequests) -> None:
        """Copy the current topics of the master, or a later version of them.

        Raises:
            Unanswered: They cannot be fetched or read.
            WriteFailed: The disk failed.
        """
        async with self._copying_topics:  # an answer that is under way may lack the newest
            log_end = self._store.replica_log.end
            has_all = await self._named_tables.copy_topics(master)
            if has_all:
                await self._on_topics(log_end)

    async def _take_positions(self) -> None:
        """Apply the positions that wait, once the log has reached them and is durable.

        A power failure must not leave tables that are ahead of the log.
        """
        waiting, store = self._waiting, self._store
        if waiting is None:
            return
        if min(store.dispatcher.dispatched_offset, store.log.flushed_offset) < waiting.log_end:
            return
        self._waiting = None
        if waiting.delay_offsets is not None:
            self._delayed.copy_positions(waiting.delay_offsets)
        if waiting.timer is not None:
            self._timers.copy_progress(waiting.timer)
        if waiting.consumer_offsets is not None:
            await run_in_slices(
                self._copy_offsets(waiting.consumer_offsets), seconds=self._clock.work_s
            )

    def _forget_deleted(self, theirs: dict[tuple[str, str], Queues]) -> Iterable[None]:
        """Delete the consumer offsets of deleted topics and groups that the master lacks, too.

        Positions that still wait for the log are older than the deletion.
        """
        tables, waiting = self._named_tables, self._waiting
        if waiting is not None and waiting.consumer_offsets is not None:
            kept = {key: value for key, value in waiting.consumer_offsets.items() if key in theirs}
            self._waiting = waiting._replace(consumer_offsets=kept)
        topics, groups = tables.deleted_topics, tables.deleted_groups
        if not (topics or groups):
            return
        own = self._deliveries.consumer_offsets
        for chunk in chunks(own.readers(), LIGHT_CHUNK):
            for topic, group in chunk:
                if (topic in topics or group in groups) and (topic, group) not in theirs:
                    own.delete(topic=topic, group=group)
            yield
        topics &= {topic for topic, _ in theirs}
        groups &= {group for _, group in theirs}

    def _copy_new_offsets(self, theirs: dict[tuple[str, str], Queues]) -> Iterable[None]:
        """Add the consumer offsets of ordinary groups that are missing here."""
        for chunk in chunks(theirs.items(), LIGHT_CHUNK // 10):
            table = self._deliveries.consumer_offsets
            for (topic, group), queues in chunk:
                if group in names.GROUPS_OF_BROKERS:
                    continue
                for queue_id, consumer_offset in queues.items():
                    if table.get(topic, group, queue_id) is None:
                        table.put(topic, group, queue_id, consumer_offset)
            yield

    def _copy_offsets(self, theirs: dict[tuple[str, str], Queues]) -> Iterable[None]:
        for chunk in chunks(theirs.items(), CHUNK):
            table = self._deliveries.consumer_offsets
            for key, queues in chunk:
                seen = None if self._seen is None else self._seen.get(key, {})
                for queue_id, value in queues.items():
                    own = table.get(*key, queue_id)
                    consumer_offset = value
                    if key[1] not in names.GROUPS_OF_BROKERS:
                        last = None if seen is None else seen.get(queue_id, _NO_OFFSET)
                        consumer_offset = merged(own, value, last)
                    if consumer_offset != own:
                        table.put(*key, queue_id, consumer_offset)
            yield
        self._seen = theirs


def merged(own: int | None, theirs: int, seen: int | None) -> int:
    """Return a consumer offset of a slave.

    A larger one that a client committed here, while it could not reach the master, is kept until
    the master's changes.

    Args:
        own: The consumer offset here; None if there is none.
        theirs: The master's.
        seen: The master's when it was last taken, negative if it had none; None if it was not.
    """
    if own is None or theirs >= own:
        return theirs
    is_kept = seen is None or (own != seen and theirs == seen)
    return own if is_kept else theirs
