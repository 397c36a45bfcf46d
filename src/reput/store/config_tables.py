"""The JSON tables under config/, as brokers of all versions write them.

Their JSON is fastjson's: maps with integer keys have them without quotes. A table that is missing,
empty or cannot be parsed is taken from its ``.bak``, as brokers do; one that cannot be parsed
either way is an error, not an empty table (known-bugs.md#errors-as-empty-results). Writing is in
``table_files``.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reput.errors import CorruptRecord
from reput.format import fastjson, java, names
from reput.store import paths
from reput.store.files import Folder

GROUP_SEPARATOR = "@"

Table = dict[str, Any]


BATCH_QUEUES = "queue.type", "BatchCQ"
"""The attribute of topics of 5.x whose queues hold batches, as they are sent."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What topics.json says of a topic."""

    name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    """4 read, 2 write, 1 inherit."""
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """How far a group has read a queue."""

    topic: str
    group: str
    queue_id: int
    consumer_offset: int


def load(folder: Folder, path: str) -> Table | None:
    """Return a table, or None if neither it nor its backup is there (or both are empty).

    Raises:
        CorruptRecord: There is text, but no readable table.
    """
    found = find(folder, path)
    return None if found is None else found[0]


def find(folder: Folder, path: str) -> tuple[Table, str] | None:
    """Return a table, and whether it is from its own path or that of the backup. As ``load``."""
    problem: Exception | None = None
    for candidate in (path, path + paths.BACKUP_SUFFIX):
        entry = folder.entry(candidate)
        if entry is None or entry.is_folder:
            continue
        try:
            text = bytes(folder.read(candidate)).decode()
            table = _mended(text, fastjson.parse(text)) if text.strip() else None
        except (ValueError, RecursionError) as error:
            problem = problem or error
            continue
        if isinstance(table, dict):
            return table, candidate
        if table is not None:
            problem = problem or ValueError("not a JSON object")
    if problem is not None:
        raise CorruptRecord(
            f"not a table, and its .bak is no better: {problem}; repair one of them, or move both "
            "away: the next start derives what it can from the store",
            file=path,
        )
    return None


_ODD = re.compile(r"\\u[dD][89a-fA-F]|\d{19}")
"""What the text of a table holds that may have what Java has not: half of a surrogate pair, or a
number over 64 bits. Older brokers saved what clients said."""
_LONG_MAX = (1 << 63) - 1


def _mended(text: str, table: Any) -> Any:
    """Return a table as Java's types hold it: names that can be written, numbers of 64 bits."""
    return _mended_value(table) if _ODD.search(text) else table


def _mended_value(value: Any) -> Any:
    if isinstance(value, str):
        return java.encode_utf8(value).decode()
    if isinstance(value, dict):
        return {_mended_value(key): _mended_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_mended_value(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_LONG_MAX - 1, min(value, _LONG_MAX))
    return value


def topics(folder: Folder) -> dict[str, TopicConfig]:
    """Return the topics of topics.json by name."""
    table = member(load(folder, paths.TOPICS), "topicConfigTable", paths.TOPICS)
    with expected_kind(paths.TOPICS):
        return {name: topic_config(name, value) for name, value in sorted(table.items())}


def topic_config(name: str, value: Table) -> TopicConfig:
    """Return a topic from its entry in the table."""
    attributes = value.get("attributes") or {}
    return TopicConfig(
        name=name,
        read_queue_count=_queue_count(value.get("readQueueNums", 0)),
        write_queue_count=_queue_count(value.get("writeQueueNums", 0)),
        perm=int(value.get("perm", 0)),
        order=bool(value.get("order", False)),
        filter_type=str(value.get("topicFilterType") or "SINGLE_TAG"),
        sys_flag=int(value.get("topicSysFlag", 0)),
        attributes=tuple(sorted((str(k), str(v)) for k, v in attributes.items())),
    )


def _queue_count(value: Any) -> int:
    """Return a number of queues, which brokers go through one by one."""
    return max(0, min(int(value), names.QUEUE_ID_MAX + 1))


def consumer_offsets(folder: Folder) -> list[ConsumerOffset]:
    """Return every offset of consumerOffset.json, by topic, group and queue."""
    table = member(load(folder, paths.CONSUMER_OFFSETS), "offsetTable", paths.CONSUMER_OFFSETS)
    found = []
    with expected_kind(paths.CONSUMER_OFFSETS):
        for key, queues in table.items():
            topic, _, group = key.partition(GROUP_SEPARATOR)
            found += [
                ConsumerOffset(topic, group, int(queue_id), int(value))
                for queue_id, value in queues.items()
            ]
    return sorted(found, key=lambda one: (one.topic, one.group, one.queue_id))


def delay_offsets(folder: Folder) -> dict[int, int]:
    """Return how far each delay level has delivered: level -> offset in its schedule queue."""
    table = member(load(folder, paths.DELAY_OFFSETS), "offsetTable", paths.DELAY_OFFSETS)
    with expected_kind(paths.DELAY_OFFSETS):
        return dict(sorted((int(level), int(value)) for level, value in table.items()))


def subscription_groups(folder: Folder) -> dict[str, Table]:
    """Return the groups of subscriptionGroup.json by name, as stored."""
    path = paths.SUBSCRIPTION_GROUPS
    table = member(load(folder, path), "subscriptionGroupTable", path)
    with expected_kind(path):
        return {name: dict(value) for name, value in sorted(table.items())}


@contextlib.contextmanager
def expected_kind(path: str) -> Iterator[None]:
    """Turn what is raised by a table that is JSON, but no table of this kind, into an error."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRecord(f"not the expected kind of table: {error}", file=path) from error


def member(table: Table | None, name: str, path: str) -> Table:
    """Return a member of a table that is an object itself; empty if it is not there.

    Raises:
        CorruptRecord: It is something else.
    """
    if table is None:
        return {}
    value = table.get(name) or {}
    if not isinstance(value, dict):
        raise CorruptRecord(f"member {name} is not an object", file=path)
    return value
