"""The tables of a master as it sends them in replies: fetched, decoded and checked as a whole.

Replies may have megabytes, so a thread decodes them. Masters before 5.0 write integer keys without
quotes, and no data version in their tables of offsets.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.errors import CorruptRecord
from reput.format import fastjson
from reput.format.codes import RequestCode
from reput.store.config_tables import GROUP_SEPARATOR, Table, expected_kind, member
from reput.store.table_files import DataVersion

Queues = dict[int, int]
"""Queue id -> consumer offset."""

_T = TypeVar("_T")


class NamedEntries(NamedTuple):
    """The topics or groups of a master."""

    version: DataVersion
    entries: dict[str, Table]
    """Entries by name, with all members that the master sent."""


class MasterTables:
    """Requests the tables of a master.

    Args:
        master: The requests.
    """

    def __init__(self, master: MasterRequests) -> None:
        self._master = master

    async def topics(self) -> NamedEntries:
        """Return the topics. Raises ``Unanswered``."""
        return await self._fetch(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", named)

    async def groups(self) -> NamedEntries:
        """Return the groups. Raises ``Unanswered``."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._fetch(code, "subscriptionGroupTable", named)

    async def consumer_offsets(self) -> dict[tuple[str, str], Queues]:
        """Return the consumer offsets by topic and group. Raises ``Unanswered``."""
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return await self._fetch(code, "offsetTable", consumer_offsets)

    async def delay_offsets(self) -> dict[int, int]:
        """Return delay level -> queue offset. Raises ``Unanswered``."""
        return await self._fetch(RequestCode.GET_ALL_DELAY_OFFSET, "offsetTable", numbers)

    async def _fetch(
        self, code: RequestCode, entries_member: str, decode: Callable[[Table, str], _T]
    ) -> _T:
        body = await self._master.table(code, entries_member)
        try:
            return await asyncio.to_thread(lambda: decode(_parsed(body), entries_member))
        except (CorruptRecord, ValueError) as error:
            problem = f"{self._master.address} answers for {entries_member}, but: {error}"
            raise Unanswered(problem) from error


def _parsed(body: bytes) -> Table:
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:  # numbers as keys
        value = fastjson.parse(body.decode())
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def named(table: Table, entries_member: str) -> NamedEntries:
    """Return the entries of a reply with topics or groups. Raises ``CorruptRecord``."""
    entries = member(table, entries_member, entries_member)
    version = member(table, "dataVersion", entries_member)
    with expected_kind(entries_member):
        if not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError("an entry is not an object")
        data_version = DataVersion(
            int(version.get("counter", 0)),
            int(version.get("timestamp", 0)),
            int(version.get("stateVersion", 0)),
        )
    return NamedEntries(data_version, entries)


def numbers(table: Table, entries_member: str) -> dict[int, int]:
    """Return a map of numbers. Raises ``CorruptRecord``."""
    with expected_kind(entries_member):
        return _numbers(member(table, entries_member, entries_member))


def consumer_offsets(table: Table, entries_member: str) -> dict[tuple[str, str], Queues]:
    """Return the consumer offsets of a reply. Raises ``CorruptRecord``."""
    offsets: dict[tuple[str, str], Queues] = {}
    with expected_kind(entries_member):
        for key, queues in member(table, entries_member, entries_member).items():
            topic, separator, group = key.partition(GROUP_SEPARATOR)
            if not (topic and separator and group):
                raise ValueError(f"{key!r} is not topic@group")
            offsets[topic, group] = _numbers(queues)
    return offsets


def _numbers(table: dict[Any, Any]) -> dict[int, int]:
    values = {int(key): int(value) for key, value in table.items()}
    for key, value in values.items():
        if key < 0 or value < 0:
            raise ValueError(f"{key}: {value} is negative")
    return values
