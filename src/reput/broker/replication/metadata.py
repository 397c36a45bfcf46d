"""A slave's copies of its master's tables: topics, groups, consumer offsets, delay levels.

    topics, groups, offsets -> end of the master's log -> the slave has dispatched up to it
    new entries at once                                -> positions

A position may pass a message whose copy the slave lacks: a slave that became master then would
never deliver it. So positions are taken once the slave has all that the master had afterwards.
Nothing is copied unless the slave follows: the follower has checked then whose master that is.
Entries that the master lacks are kept.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from reput.broker.delay import DelaySchedule
from reput.broker.deliveries import Deliveries
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.broker.replication.master_tables import MasterTables, NamedEntries, Queues
from reput.broker.replication.state import SlaveState, SlaveStatus
from reput.broker.topic.topics import Topics
from reput.clock import Clock
from reput.errors import ReputError
from reput.format import names
from reput.remoting.client import RemotingClient
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, chunks
from reput.remoting.time_slices import run_in_slices
from reput.store.config_tables import Table
from reput.store.interface import BrokerStore

INTERVAL_MS = 3_000
"""Interval between two rounds, in ms."""

_log = logging.getLogger(__name__)


class Positions(NamedTuple):
    """Positions of a master."""

    log_end: int
    """Physical offset of the end of its log afterwards."""
    consumer_offsets: dict[tuple[str, str], Queues]
    delay_offsets: dict[int, int]


class MetadataSync:
    """Copies the master's tables while the slave follows it.

    Args:
        status: State of the slave, with the master's address.
        store: The store.
        topics: The topics.
        subscription_groups: The groups' settings.
        deliveries: The consumer offsets.
        delayed: The progress of delayed messages.
        clock: The clock.
    """

    def __init__(
        self,
        status: SlaveStatus,
        store: BrokerStore,
        topics: Topics,
        subscription_groups: SubscriptionGroups,
        deliveries: Deliveries,
        delayed: DelaySchedule,
        clock: Clock,
    ) -> None:
        self._status = status
        self._store = store
        self._topics = topics
        self._subscription_groups = subscription_groups
        self._deliveries = deliveries
        self._delayed = delayed
        self._clock = clock
        self._client: RemotingClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: Positions | None = None
        self._seen: dict[tuple[str, str], Queues] = {}
        """The master's consumer offsets when they were last taken."""
        self._problem = ""

    async def start(self) -> None:
        """Start copying."""
        self._client = RemotingClient()
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
            status = self._status
            if status.state is SlaveState.FOLLOWING and status.master_address:
                try:
                    await self.copy(MasterRequests(client, status.master_address))
                    self._problem = ""
                except ReputError as error:
                    self._report(str(error))
                except Exception as error:  # noqa: BLE001 - the outermost edge of a task
                    if self._report(f"{type(error).__name__}: {error}"):
                        _log.exception("copying the master's tables failed")
            else:
                self._waiting = None  # the next master may have another log
            await asyncio.sleep(INTERVAL_MS / 1000)

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
            Unanswered: A table cannot be fetched or read; those before it are copied.
        """
        tables = MasterTables(master)
        for what, fetch, own in (
            ("topics", tables.topics, self._topics),
            ("groups", tables.groups, self._subscription_groups),
        ):
            await run_in_slices(self._copy_entries(what, await fetch(), own))
        consumer_offsets = await tables.consumer_offsets()
        await run_in_slices(self._copy_new_offsets(consumer_offsets))
        if self._waiting is None:
            delay_offsets = await tables.delay_offsets()
            log_end = (await master.log_range()).max_offset
            self._waiting = Positions(log_end, consumer_offsets, delay_offsets)
        waiting = self._waiting
        if self._store.dispatcher.dispatched_offset >= waiting.log_end:
            self._waiting = None
            for level, queue_offset in waiting.delay_offsets.items():
                if self._delayed.table.get(level) != queue_offset:
                    self._delayed.table.put(level, queue_offset)
            await run_in_slices(self._copy_offsets(waiting.consumer_offsets))

    def _copy_entries(
        self, what: str, reply: NamedEntries, own: Topics | SubscriptionGroups
    ) -> Iterable[None]:
        """Store the entries of a reply and its version if all entries are valid."""
        table = own.table
        entries: list[tuple[Any, Table]] = []
        for items in chunks(reply.entries.items()):
            try:
                entries += [(table.entry_of(name, value), value) for name, value in items]
            except ReputError as error:
                raise Unanswered(f"the master's {what}: {error}") from error
            yield
        if not entries:
            raise Unanswered(f"the master has no {what}, not even those of each broker")
        now_ms = self._clock.now_ms()
        for chunk in chunks(entries):
            for entry, stored in chunk:
                own.copy(entry, stored, now_ms)
            yield
        table.adopt_version(reply.version)

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
                seen = self._seen.get(key, {})
                for queue_id, value in queues.items():
                    own = table.get(*key, queue_id)
                    consumer_offset = merged(own, value, seen.get(queue_id))
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
        seen: The master's when it was last taken; None if it was not.
    """
    if own is None or theirs >= own:
        return theirs
    is_kept = seen is None or (own != seen and theirs == seen)
    return own if is_kept else theirs
