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

from reput.broker.parts import Parts
from reput.errors import WriteFailed
from reput.remoting.long_replies import CHUNK, LIGHT_CHUNK, chunks
from reput.remoting.time_slices import run_in_slices, run_whole
from reput.store.removal import Removal
from reput.store.table_files import SavedTable

TOPICS_AT_ONCE = 50
"""Topics without settings whose queues are deleted in one step."""


async def delete_topics(parts: Parts, topics: list[str]) -> None:
    """Delete topics that are already invisible to clients. Raises ``WriteFailed``."""
    await _save(parts, parts.topics.table)
    await run_in_slices(parts.deliveries.stats.update())  # before the store forgets these puts
    doomed = set(topics)
    await run_in_slices(_forget_offsets(parts, lambda topic, _: topic in doomed))
    for topic in topics:
        parts.resets.delete(topic=topic)
        await run_in_slices(parts.deliveries.stats.forget_topic(topic))
    await _flush(parts)
    # Without a break: from here on a send may create a topic again, whose offsets must be kept.
    recreated = {topic for topic in topics if parts.topics.delete(topic, parts.clock.now_ms())}
    if recreated:  # by a concurrent send
        _forget_recreated(parts, recreated)
    removal = parts.store.begin_deletion(topics)
    await _remove(parts, removal)
    await _save(parts, parts.deliveries.consumer_offsets)


def _forget_recreated(parts: Parts, topics: set[str]) -> None:
    """Delete the state of topics that were created again during their deletion, in one step."""
    for _ in _forget_offsets(parts, lambda topic, _: topic in topics):
        pass
    run_whole(parts.deliveries.stats.update())
    for topic in topics:
        parts.resets.delete(topic=topic)
        run_whole(parts.deliveries.stats.forget_topic(topic))


async def delete_copied_topics(parts: Parts, ends: Mapping[str, int]) -> None:
    """Delete topics of a slave that its master has deleted. Raises ``WriteFailed``.

    Their settings are deleted last: no client requests a deletion again that a crash interrupts,
    but the next copy of the master's topics finds them.

    Args:
        parts: The parts.
        ends: Topic -> physical offset before which the master has deleted it.
    """
    await run_in_slices(parts.deliveries.stats.update())
    await run_in_slices(_forget_offsets(parts, lambda topic, _: topic in ends))
    for topic, end in ends.items():
        parts.resets.delete(topic=topic)
        await run_in_slices(parts.deliveries.stats.forget_topic(topic))
        await _remove(parts, parts.store.begin_deletion_before(topic, end))
    await _save(parts, parts.deliveries.consumer_offsets)
    for topic in ends:
        parts.topics.delete(topic, parts.clock.now_ms())


async def delete_copied_groups(parts: Parts, groups: Collection[str]) -> None:
    """Delete groups of a slave that its master has deleted. Raises ``WriteFailed``.

    Their consumer offsets are kept, as on a master that was not asked to delete them.
    """
    for group in groups:
        parts.subscription_groups.delete(group, parts.clock.now_ms())
        await delete_group(parts, group, keeps_offsets=True)


def forget_queues(parts: Parts, topic: str, queue_ids: Sequence[int]) -> None:
    """Delete the consumer offsets of queues that have begun again at queue offset 0."""
    offsets = parts.deliveries.consumer_offsets
    for reader_topic, group in offsets.readers():
        if reader_topic == topic:
            for queue_id in queue_ids:
                offsets.delete_queue(topic, group, queue_id)


async def delete_group(parts: Parts, group: str, *, keeps_offsets: bool) -> None:
    """Delete the state of a group without settings. Raises ``WriteFailed``."""
    await _save(parts, parts.subscription_groups.table)
    if not keeps_offsets:
        await run_in_slices(_forget_offsets(parts, lambda _, name: name == group))
        await _save(parts, parts.deliveries.consumer_offsets)
    parts.resets.delete(group=group)
    parts.pops.orders.table.delete(group=group)
    parts.request_modes.table.delete(group=group)
    await run_in_slices(parts.deliveries.stats.forget_group(group))


def _forget_offsets(parts: Parts, is_gone: Callable[[str, str], bool]) -> Iterable[None]:
    """Delete consumer offsets by topic and group."""
    offsets = parts.deliveries.consumer_offsets
    for chunk in chunks(offsets.readers(), LIGHT_CHUNK):
        for topic, group in chunk:
            if is_gone(topic, group):
                offsets.delete(topic=topic, group=group)
        yield


async def _flush(parts: Parts) -> None:
    """Flush in the disk thread, so that little is left to flush when queues are detached.

    Needed only under SYNC_FLUSH, where dispatch waits for the disk and must catch up then.
    """
    if parts.store.flusher.is_sync:
        await parts.disk_thread.run(parts.store.sync)


async def _save(parts: Parts, table: SavedTable) -> None:
    if not await parts.saved_tables.save(table):
        raise WriteFailed(table.path, "cannot be saved now; retry the request")


async def clean_unknown_topics(parts: Parts) -> None:
    """Delete the queues of topics that are in no table. Raises ``WriteFailed``."""
    unknown = parts.store.unknown_topics(parts.topics.all().keys())
    for topics in chunks(unknown, TOPICS_AT_ONCE):
        await _flush(parts)
        doomed = [topic for topic in topics if parts.topics.get(topic) is None]
        await _remove(parts, parts.store.begin_deletion(doomed))


async def clean_unused_queues(parts: Parts) -> None:
    """Delete queues whose messages have all expired. Raises ``WriteFailed``.

    Their consumer offsets are deleted too: a queue that is used again begins at 0.
    """
    store, offsets = parts.store, parts.deliveries.consumer_offsets
    unused = store.unused_queues()
    groups: dict[str, list[str]] = {queue.topic: [] for queue in unused}
    await run_in_slices(_add_readers(parts, groups))
    for queues in chunks(unused, CHUNK):
        await _flush(parts)
        removal = store.begin_removal(queues)
        if removal is not None:  # in the same step: later commits are for the new queue
            for topic, queue_id in removal.queue_names():
                for group in groups[topic]:
                    offsets.delete_queue(topic, group, queue_id)
        await _remove(parts, removal)
    await _save(parts, offsets)


def _add_readers(parts: Parts, groups: dict[str, list[str]]) -> Iterable[None]:
    """Add the groups that have read each topic."""
    for chunk in chunks(parts.deliveries.consumer_offsets.readers(), LIGHT_CHUNK):
        for topic, group in chunk:
            if topic in groups:
                groups[topic].append(group)
        yield


async def _remove(parts: Parts, removal: Removal | None) -> None:
    removals = parts.store.removals
    if removal is not None:
        await run_in_slices(removals.release(removal))
    await parts.disk_thread.run(removals.finish)  # including removals that failed before
