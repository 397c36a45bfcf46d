"""The JSON tables in config/, as brokers of all versions write them.

Their JSON is fastjson's: integer keys of maps have no quotes. If a table is missing, empty or
invalid, its ``.bak`` is read, as brokers do; if the backup is invalid too, that is an error and not
an empty table (known-bugs.md#errors-as-empty-results). ``saved_table`` writes tables.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reput.errors import CorruptRecord
from reput.format import fastjson, java, names
from reput.store.files import paths
from reput.store.files.files import Folder

GROUP_SEPARATOR = "@"

Table = dict[str, Any]


BATCH_QUEUES = "queue.type", "BatchCQ"
"""Attribute of 5.x topics whose queues are batch queues."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """An entry of topics.json."""

    name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    """Permissions: 4 read, 2 write, 1 inherit."""
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """The next queue offset that a group reads from a queue."""

    topic: str
    group: str
    queue_id: int
    consumer_offset: int


def load(folder: Folder, path: str) -> Table | None:
    """Return a table; None if neither it nor its backup exists (or both are empty).

    Raises:
        CorruptRecord: A file exists, but no valid table.
    """
    table_and_path = find(folder, path)
    return None if table_and_path is None else table_and_path[0]


def find(folder: Folder, path: str) -> tuple[Table, str] | None:
    """Return a table and the path of its file or backup. Raises the errors of ``load``."""
    problem: Exception | None = None
    for candidate in (path, path + paths.BACKUP_SUFFIX):
        entry = folder.entry(candidate)
        if entry is None or entry.is_folder:
            continue
        try:
            text = bytes(folder.read(candidate)).decode()
            table = _repaired(text, fastjson.parse(text)) if text.strip() else None
        except (ValueError, RecursionError) as error:
            problem = problem or error
            continue
        if isinstance(table, dict):
            return table, candidate
        if table is not None:
            problem = problem or ValueError("not a JSON object")
    if problem is not None:
        raise CorruptRecord(
            f"not a table, and its .bak is not one either: {problem}; repair one of them, or move "
            "both away: the next start derives what it can from the store",
            file=path,
        )
    return None


_ODD = re.compile(r"\\u[dD][89a-fA-F]|\d{19}")
"""Matches text of a table that may contain values which Java does not have: half of a surrogate
pair, or a number of more than 64 bits. Older brokers saved whatever clients sent."""
_LONG_MAX = (1 << 63) - 1


def _repaired(text: str, table: Any) -> Any:
    """Return a table in Java's value range: names that can be encoded, numbers of 64 bits."""
    return _repaired_value(table) if _ODD.search(text) else table


def _repaired_value(value: Any) -> Any:
    if isinstance(value, str):
        return java.encode_utf8(value).decode()
    if isinstance(value, dict):
        return {_repaired_value(key): _repaired_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_repaired_value(item) for item in value]
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
    """Return a valid number of queues; brokers loop over all of them."""
    return max(0, min(int(value), names.QUEUE_ID_MAX + 1))


def consumer_offsets(folder: Folder) -> list[ConsumerOffset]:
    """Return all offsets of consumerOffset.json, by topic, group and queue."""
    table = member(load(folder, paths.CONSUMER_OFFSETS), "offsetTable", paths.CONSUMER_OFFSETS)
    offsets = []
    with expected_kind(paths.CONSUMER_OFFSETS):
        for key, queues in table.items():
            topic, _, group = key.partition(GROUP_SEPARATOR)
            offsets += [
                ConsumerOffset(topic, group, int(queue_id), int(value))
                for queue_id, value in queues.items()
            ]
    return sorted(offsets, key=lambda entry: (entry.topic, entry.group, entry.queue_id))


def delay_offsets(folder: Folder) -> dict[int, int]:
    """Return the queue offset that each delay level delivers next: level -> offset."""
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
    """Raise ``CorruptRecord`` for JSON that is not a table of the expected kind."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRecord(f"not the expected kind of table: {error}", file=path) from error


def member(table: Table | None, name: str, path: str) -> Table:
    """Return a member of a table that is an object; empty if it does not exist.

    Raises:
        CorruptRecord: It is not an object.
    """
    if table is None:
        return {}
    value = table.get(name) or {}
    if not isinstance(value, dict):
        raise CorruptRecord(f"member {name} is not an object", file=path)
    return value
