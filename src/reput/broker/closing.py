"""The end of a broker's work: last replies, last acknowledgements of slaves, last saves."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from reput.broker.loops import Loops
from reput.broker.parts import Parts
from reput.errors import WriteFailed
from reput.remoting.server import RemotingServer
from reput.store.message_store import MessageStore

LAST_ACKS_MS = 1_000
"""Time for which a master that stops waits for the slaves' acknowledgements."""
_LOOK_S = 0.01

_log = logging.getLogger(__name__)


async def close(
    parts: Parts, store: MessageStore, loops: Loops, servers: Sequence[RemotingServer]
) -> None:
    """Stop all parts, loops and ports, but not the store."""
    now_ms, is_master = parts.clock.now_ms, parts.identity.is_master
    parts.identity.is_stopping = True
    parts.pull_subscriptions.close()
    await parts.registration.stop()
    if not is_master:
        await parts.replication.stop()
    await parts.table_writes.stop()
    parts.held_pulls.answer_all()
    parts.pops.held.answer_all()
    parts.lite.held.answer_all()
    await _await_slaves(parts, lambda: not len(parts.pending_replies))
    await loops.stop()
    settle(parts, store)
    # Together: a message that came in between would wait for a sync that never happens.
    await asyncio.gather(*(server.stop() for server in servers))
    await _await_slaves(parts, lambda: _slaves_have_all(parts))
    await parts.replication.stop()
    if is_master:  # a slave's tables have the progress of its master
        parts.pops.revive.save_acks(now_ms())
        parts.delayed.close()
        parts.pops.publish_progress()
        parts.transactions.close()
    parts.timers.close(now_ms())
    parts.saved_tables.save_all()


def _slaves_have_all(parts: Parts) -> bool:
    """Return True if all connected slaves have acknowledged the whole log."""
    end = parts.store.max_physical_offset
    acked = (replica.acked_offset for replica in parts.store.replicas.replicas)
    return all(offset is None or offset >= end for offset in acked)


async def _await_slaves(parts: Parts, is_done: Callable[[], bool]) -> None:
    """Wait a second at most for the slaves of a master that stops."""
    port, clock = parts.replication.slave_port, parts.clock
    deadline_ms = clock.monotonic_ms() + LAST_ACKS_MS
    while parts.identity.is_master and parts.store.replicas.replicas and not is_done():
        if clock.monotonic_ms() >= deadline_ms:
            return
        port.pump()
        await asyncio.sleep(_LOOK_S)


def settle(parts: Parts, store: MessageStore) -> None:
    """Make all puts durable, and send the replies that wait for it.

    Puts that not enough slaves have acknowledged are late: whether they are replicated is unknown.
    """
    topics = parts.topics
    # The second step is needed if the disk fails.
    for step in (store.sync, store.step_memory):
        try:
            step()
        except WriteFailed as error:
            _log.error("%s", error)
    store.end_waiting()
    try:
        topics.table.save(parts.clock.now_ms(), is_durable=store.flusher.is_sync)
    except WriteFailed as error:
        _log.error("topics are not saved: %s", error)
    topics.written(topics.made_count)
    parts.pending_replies.settle_all()
