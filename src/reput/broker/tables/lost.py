"""Recovery of lost tables from the store, or a report if that is impossible.

A broker that starts without its topics would refuse every message because its topic does not exist;
one without its consumer offsets would let groups start where ``consumeFromWhere`` points. So:

    topics.json             topics and their numbers of queues are derived from the queue folders;
                            permissions, order and attributes are lost, except batch queues
    subscriptionGroup.json  groups are derived from consumerOffset.json, with default settings
    consumerOffset.json     cannot be derived: reported

A slave that becomes master may lack the newest topics of its master: they are added likewise.

Each is a warning in the log and in ``/health`` until the next start. A damaged file is not treated
as lost: the start is refused, since its text may still be readable.
"""

import dataclasses
import logging

from reput.broker.topic.topics import READ_WRITE
from reput.format import limits, names
from reput.store.message_store import MessageStore
from reput.store.tables.config_tables import BATCH_QUEUES, TopicConfig
from reput.store.tables.groups import SubscriptionGroup, SubscriptionGroupTable
from reput.store.tables.offsets import ConsumerOffsetTable, DelayOffsetTable
from reput.store.tables.saved_table import SavedTable
from reput.store.tables.timer_table import TimerTable
from reput.store.tables.topics import TopicTable

_NAMED_MAX = 5

_log = logging.getLogger(__name__)


def recover_topics(table: TopicTable, store: MessageStore, now_ms: int) -> list[str]:
    """Put the topics that have queues into an empty table; return the warnings."""
    if len(table):
        return []
    counts = {
        topic: min(count, limits.TOPIC_QUEUES.maximum)
        for topic, count in store.queue_counts().items()
        if not names.is_system_topic(topic) and not topic.startswith(names.LMQ_PREFIX)
    }
    for topic, count in sorted(counts.items()):
        attributes = (BATCH_QUEUES,) if store.has_batch_queues(topic) else ()
        table.put(
            TopicConfig(
                name=topic,
                read_queue_count=count,
                write_queue_count=count,
                perm=READ_WRITE,
                attributes=attributes,
            ),
            now_ms,
        )
    if not counts:
        return []
    return _warned(
        f"{_absence(table)} while the store has queues: {len(counts)} topics were derived from "
        f"the folders of their queues ({_some(sorted(counts))}); check permissions, order and "
        "attributes"
    )


def add_topics(table: TopicTable, store: MessageStore, since: int, now_ms: int) -> list[str]:
    """Add the topics and queues that a former slave has messages of, and save them.

    Its master died before it had copied them.

    Args:
        table: The topics.
        store: The queues, with all records of the log.
        since: Physical offset: topics of older messages were copied, or deleted by the master.
        now_ms: The time, ms.

    Returns:
        The warnings.

    Raises:
        WriteFailed: The disk failed.
    """
    added = []
    for topic, count in sorted(store.queue_counts(since).items()):
        if names.is_system_topic(topic) or topic.startswith(names.LMQ_PREFIX):
            continue
        count = min(count, limits.TOPIC_QUEUES.maximum)
        known = table.get(topic)
        if known is None:
            attributes = (BATCH_QUEUES,) if store.has_batch_queues(topic) else ()
            known = TopicConfig(
                name=topic,
                read_queue_count=0,
                write_queue_count=0,
                perm=READ_WRITE,
                attributes=attributes,
            )
        if max(known.read_queue_count, known.write_queue_count) < count:
            wider = dataclasses.replace(known, read_queue_count=count, write_queue_count=count)
            table.put(wider, now_ms)
            added.append(topic)
    if not added:
        return []
    table.save(now_ms)
    return _warned(
        f"the master died before its topics were copied: {len(added)} topics have the queues of "
        f"their messages ({_some(added)}); check numbers of queues, permissions and attributes"
    )


def recover_groups(
    table: SubscriptionGroupTable, offsets: ConsumerOffsetTable, now_ms: int
) -> list[str]:
    """Put the groups that have consumer offsets into an empty table; return the warnings."""
    if len(table):
        return []
    groups = sorted({group for _, group in offsets.readers()})
    for group in groups:
        table.put(SubscriptionGroup(name=group), now_ms)
    if not groups:
        return []
    return _warned(
        f"{_absence(table)} while groups have consumer offsets: {len(groups)} groups were derived "
        f"with default settings ({_some(groups)})"
    )


def warnings_of_lost_tables(
    store: MessageStore,
    groups: SubscriptionGroupTable,
    offsets: ConsumerOffsetTable,
    delays: DelayOffsetTable,
    timer: TimerTable,
) -> list[str]:
    """Return warnings about tables that cannot be derived; call it before deriving groups."""
    warnings = [table.damage for table in (delays, timer) if table.damage]
    known = [name for name in groups.all() if not names.is_system_group(name)]
    has_offsets = any(True for _ in offsets.readers())
    if offsets.is_new and not has_offsets and known and store.max_physical_offset:
        warnings += _warned(
            f"{_absence(offsets)} while the store has messages and {len(known)} groups: each "
            "starts where its consumers' consumeFromWhere points, or where an operator resets it to"
        )
    if delays.is_new and not delays.damage and store.queue_counts().get(names.SCHEDULE_TOPIC):
        warnings += _warned(
            f"{_absence(delays)} while the store has delayed messages: messages in the log "
            "are delivered again"
        )
    return warnings


def _absence(table: SavedTable) -> str:
    return f"{table.path} is missing" if table.is_new else f"{table.path} has no entries"


def _some(all_names: list[str]) -> str:
    more = len(all_names) - _NAMED_MAX
    return ", ".join(all_names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _warned(text: str) -> list[str]:
    _log.warning("%s", text)
    return [text]
