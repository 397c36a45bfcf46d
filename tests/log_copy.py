"""Copies a master's log to a slave's, in frames of any size, as a connection of the two does."""

from collections.abc import Iterator
from itertools import repeat

from reput.store.message_store import MessageStore


def log_bytes(store: MessageStore, start: int | None = None, stop: int | None = None) -> bytes:
    """Return the bytes of a store's log between two physical offsets, by default all."""
    position = store.log.min_offset if start is None else start
    end = store.log.readable_offset if stop is None else stop
    parts = []
    while position < end:
        view = store.log_view(position, end - position)
        assert view is not None
        parts.append(bytes(view.data))
        position += len(view.data)
        assert view.release()
    return b"".join(parts)


def copy_log(
    master: MessageStore,
    slave: MessageStore,
    sizes: Iterator[int] | None = None,
    *,
    stop: int | None = None,
) -> None:
    """Send a slave what it lacks, up to a physical offset or the end."""
    sizes = sizes or repeat(32 * 1024)
    log = slave.replica_log
    while log.end < (master.replication_limit if stop is None else stop):
        size = next(sizes) if stop is None else min(next(sizes), stop - log.end)
        view = master.log_view(log.end, size)
        assert view is not None
        log.buffer(len(view.data))[:] = view.data
        log.publish(len(view.data))
        assert view.release()


def assert_same(master: MessageStore, slave: MessageStore) -> None:
    """Check that a slave has its master's log, and queues and index that follow from it."""
    assert log_bytes(slave) == log_bytes(master)
    assert slave.dispatcher.dispatched_offset == slave.log.written_offset
    assert slave.queue_counts() == master.queue_counts()
    for topic, count in master.queue_counts().items():
        for queue_id in range(count):
            end = master.max_offset(topic, queue_id)
            assert slave.max_offset(topic, queue_id) == end, (topic, queue_id)
            start = master.min_offset(topic, queue_id)
            assert slave.min_offset(topic, queue_id) == start, (topic, queue_id)
            for queue_offset in range(start, end):
                theirs = master.get(topic, queue_id, queue_offset, 1).records
                assert slave.get(topic, queue_id, queue_offset, 1).records == theirs
