"""Compare the entries of tables: topics, offsets, groups."""

from collections.abc import Iterator
from typing import Any

from reput.errors import CorruptRecord
from reput.spark.jobs.compare.findings import DIFFERENT, ONLY_LEFT, ONLY_RIGHT, Mismatch, short
from reput.spark.jobs.compare.two_stores import TwoStores
from reput.store.files import paths
from reput.store.reader import StoreReader
from reput.store.tables.config_tables import ConsumerOffset

TABLES = (paths.TOPICS, paths.CONSUMER_OFFSETS, paths.DELAY_OFFSETS, paths.SUBSCRIPTION_GROUPS)

_GROUP_DEFAULTS = {
    "attributes": {},
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
}
"""Settings of a group that not all brokers save, or not if they have Java's default; a slave saves
all that its master's reply has."""


def in_table(both: TwoStores, path: str) -> Iterator[Mismatch]:
    """Yield the entries of a table that only one side has, or that differ."""
    tables = []
    for reader in both.readers:
        try:
            tables.append(_entries(reader, path))
        except CorruptRecord as error:
            tables.append({("cannot be read", None): error.reason})
    ours, theirs = tables
    for key in sorted({*ours, *theirs}, key=str):
        a, b = ours.get(key), theirs.get(key)
        if a == b:
            continue
        kind = DIFFERENT if key in ours and key in theirs else ONLY_RIGHT
        kind = ONLY_LEFT if key not in theirs else kind
        name, where = key
        topic, queue_id = where or (None, None)
        label = f"{name} {topic}/{queue_id}" if where else name
        yield Mismatch(
            "tables",
            kind,
            f"{path}: {label}: left {short(a)}, right {short(b)}",
            file=path,
            topic=topic,
            queue_id=queue_id,
            field=name,
            left=short(a),
            right=short(b),
        )


_Key = tuple[str, tuple[str, int] | None]


def _entries(reader: StoreReader, path: str) -> dict[_Key, Any]:
    """Return a table's entries by name, and by queue if they have one."""
    if path == paths.TOPICS:
        return {(name, None): topic for name, topic in reader.topics().items()}
    if path == paths.CONSUMER_OFFSETS:
        return {_offset_key(entry): entry.consumer_offset for entry in reader.consumer_offsets()}
    if path == paths.DELAY_OFFSETS:
        return {(f"level {level}", None): done for level, done in reader.delay_offsets().items()}
    groups = reader.subscription_groups()
    return {(name, None): {**_GROUP_DEFAULTS, **group} for name, group in groups.items()}


def _offset_key(entry: ConsumerOffset) -> _Key:
    return f"group {entry.group}", (entry.topic, entry.queue_id)
