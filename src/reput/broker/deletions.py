"""Deletion of topics, groups and queues, mostly off the event loop; one request at a time.

    at once           clients do not find the topic any more
    disk thread       topics.json without it
    in time slices    consumer offsets, statistics
    at once           its queues are detached: a new topic of the same name is independent
    in time slices    memory of the queues
    disk thread       its tombstone; its folder is moved away

The topic's settings are deleted first: after a crash in between, the deletion can be requested
again. The reply is sent when everything is done.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from reput.broker.deliveries import Deliveries
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.offset.resets import ResetOffsets
from reput.broker.tables.saved_tables import SavedTables
from reput.broker.threads import WorkerThread
from reput.broker.topic.topics import Topics
from reput.clock import Clock
from reput.errors import WriteFailed
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, chunks
from reput.remoting.time_slices import run_in_slices, run_whole
from reput.store.message_store import MessageStore
from reput.store.tables.pop_tables import ConsumerOrderTable, RequestModeTable
from reput.store.tables.saved_table import SavedTable
from reput.store.writing.removal import Removal

TOPICS_AT_ONCE = 50
"""Topics without settings whose queues are deleted in one step."""


class Deletions:
    """Deletes topics, groups and queues with all that belongs to them.

    Args:
        store: The queues.
        topics: The topics.
        subscription_groups: The groups' settings.
        deliveries: The consumer offsets and the statistics.
        resets: Consumer offsets that operators have set.
        orders: The blocks that groups hold in order.
        request_modes: The request modes of groups.
        saved_tables: Makes the tables durable.
        disk_thread: The thread for work that waits for the disk.
        clock: The clock.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        subscription_groups: SubscriptionGroups,
        deliveries: Deliveries,
        resets: ResetOffsets,
        orders: ConsumerOrderTable,
        request_modes: RequestModeTable,
        saved_tables: SavedTables,
        disk_thread: WorkerThread,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = subscription_groups
        self._deliveries = deliveries
        self._resets = resets
        self._orders = orders
        self._request_modes = request_modes
        self._saved_tables = saved_tables
        self._disk_thread = disk_thread
        self._clock = clock

    async def delete_topics(self, topics: list[str]) -> None:
        """Delete topics that are already invisible to clients. Raises ``WriteFailed``."""
        await self._save(self._topics.table)
        await run_in_slices(
            self._deliveries.stats.update(), seconds=self._clock.work_s
        )  # before the store forgets these puts
        doomed = set(topics)
        await run_in_slices(
            self._forget_offsets(lambda topic, _: topic in doomed), seconds=self._clock.work_s
        )
        for topic in topics:
            self._resets.delete(topic=topic)
            await run_in_slices(
                self._deliveries.stats.forget_topic(topic), seconds=self._clock.work_s
            )
        await self._flush()
        # Without a break: from here on a send may create a topic again, whose offsets must be kept.
        recreated = {topic for topic in topics if self._topics.delete(topic, self._clock.now_ms())}
        if recreated:  # by a concurrent send
            self._forget_recreated(recreated)
        removal = self._store.begin_deletion(topics)
        await self._remove(removal)
        await self._save(self._deliveries.consumer_offsets)

    def _forget_recreated(self, topics: set[str]) -> None:
        """Delete the state of topics that were created again during their deletion, in one step."""
        for _ in self._forget_offsets(lambda topic, _: topic in topics):
            pass
        run_whole(self._deliveries.stats.update())
        for topic in topics:
            self._resets.delete(topic=topic)
            run_whole(self._deliveries.stats.forget_topic(topic))

    async def delete_copied_topics(self, ends: Mapping[str, int]) -> None:
        """Delete topics of a slave that its master has deleted. Raises ``WriteFailed``.

        Their settings are deleted last: no client requests a deletion again that a crash
        interrupts, but the next copy of the master's topics finds them.

        Args:
            ends: Topic -> physical offset before which the master has deleted it.
        """
        await run_in_slices(self._deliveries.stats.update(), seconds=self._clock.work_s)
        await run_in_slices(
            self._forget_offsets(lambda topic, _: topic in ends), seconds=self._clock.work_s
        )
        for topic, end in ends.items():
            self._resets.delete(topic=topic)
            await run_in_slices(
                self._deliveries.stats.forget_topic(topic), seconds=self._clock.work_s
            )
            await self._remove(self._store.begin_deletion_before(topic, end))
        await self._save(self._deliveries.consumer_offsets)
        for topic in ends:
            self._topics.delete(topic, self._clock.now_ms())

    async def delete_copied_groups(self, groups: Collection[str]) -> None:
        """Delete groups of a slave that its master has deleted. Raises ``WriteFailed``.

        Their consumer offsets are kept, as on a master that was not asked to delete them.
        """
        for group in groups:
            self._groups.delete(group, self._clock.now_ms())
            await self.delete_group(group, keeps_offsets=True)

    def forget_queues(self, topic: str, queue_ids: Sequence[int]) -> None:
        """Delete the consumer offsets of queues that have begun again at queue offset 0."""
        offsets = self._deliveries.consumer_offsets
        for reader_topic, group in offsets.readers():
            if reader_topic == topic:
                for queue_id in queue_ids:
                    offsets.delete_queue(topic, group, queue_id)

    async def delete_group(self, group: str, *, keeps_offsets: bool) -> None:
        """Delete the state of a group without settings. Raises ``WriteFailed``."""
        await self._save(self._groups.table)
        if not keeps_offsets:
            await run_in_slices(
                self._forget_offsets(lambda _, name: name == group), seconds=self._clock.work_s
            )
            await self._save(self._deliveries.consumer_offsets)
        self._resets.delete(group=group)
        self._orders.delete(group=group)
        self._request_modes.delete(group=group)
        await run_in_slices(self._deliveries.stats.forget_group(group), seconds=self._clock.work_s)

    def _forget_offsets(self, is_gone: Callable[[str, str], bool]) -> Iterable[None]:
        """Delete consumer offsets by topic and group."""
        offsets = self._deliveries.consumer_offsets
        for chunk in chunks(offsets.readers(), LIGHT_CHUNK):
            for topic, group in chunk:
                if is_gone(topic, group):
                    offsets.delete(topic=topic, group=group)
            yield

    async def _flush(self) -> None:
        """Flush in the disk thread, so that little is left to flush when queues are detached.

        Needed only under SYNC_FLUSH, where dispatch waits for the disk and must catch up then.
        """
        if self._store.flusher.is_sync:
            await self._disk_thread.run(self._store.sync)

    async def _save(self, table: SavedTable) -> None:
        if not await self._saved_tables.save(table):
            raise WriteFailed(table.path, "cannot be saved now; retry the request")

    async def clean_unknown_topics(self) -> None:
        """Delete the queues of topics that are in no table. Raises ``WriteFailed``."""
        unknown = self._store.unknown_topics(self._topics.all().keys())
        for topics in chunks(unknown, TOPICS_AT_ONCE):
            await self._flush()
            doomed = [topic for topic in topics if self._topics.get(topic) is None]
            await self._remove(self._store.begin_deletion(doomed))

    async def clean_unused_queues(self) -> None:
        """Delete queues whose messages have all expired. Raises ``WriteFailed``.

        Their consumer offsets are deleted too: a queue that is used again begins at 0.
        """
        store, offsets = self._store, self._deliveries.consumer_offsets
        unused = store.unused_queues()
        groups: dict[str, list[str]] = {queue.topic: [] for queue in unused}
        await run_in_slices(self._add_readers(groups), seconds=self._clock.work_s)
        for queues in chunks(unused, CHUNK):
            await self._flush()
            removal = store.begin_removal(queues)
            if removal is not None:  # in the same step: later commits are for the new queue
                for topic, queue_id in removal.queue_names():
                    for group in groups[topic]:
                        offsets.delete_queue(topic, group, queue_id)
            await self._remove(removal)
        await self._save(offsets)

    def _add_readers(self, groups: dict[str, list[str]]) -> Iterable[None]:
        """Add the groups that have read each topic."""
        for chunk in chunks(self._deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
            for topic, group in chunk:
                if topic in groups:
                    groups[topic].append(group)
            yield

    async def _remove(self, removal: Removal | None) -> None:
        removals = self._store.removals
        if removal is not None:
            await run_in_slices(removals.release(removal), seconds=self._clock.work_s)
        await self._disk_thread.run(removals.finish)  # including removals that failed before
