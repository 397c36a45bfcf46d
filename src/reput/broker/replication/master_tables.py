"""The tables of a master as it sends them in replies: fetched, decoded and checked as a whole.

Replies may have megabytes, so a thread decodes them. Masters before 5.0 write integer keys without
quotes, and no data version in their tables of offsets.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from reput.broker.access.acls import acl_of
from reput.broker.access.policy import Acl
from reput.broker.access.users import User, user_of
from reput.broker.replication.master_requests import MasterRequests, RequestDenied, Unanswered
from reput.errors import CorruptRecord, InvalidOption
from reput.format import fastjson, timer_check
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.store.tables import pop_tables
from reput.store.tables.config_tables import GROUP_SEPARATOR, Table, expected_kind, member
from reput.store.tables.pop_tables import RequestModesByTopic
from reput.store.tables.saved_table import DataVersion
from reput.store.tables.timer_table import TimerProgress

Queues = dict[int, int]
"""Queue id -> consumer offset."""

_T = TypeVar("_T")


class NamedEntries(NamedTuple):
    """The topics or groups of a master."""

    version: DataVersion
    entries: dict[str, Table]
    """Entries by name, with all members that the master sent."""
    forbidden: dict[str, dict[str, int]] | None = None
    """Group -> topic -> operations that the group must not do, as bits of a permission; None if the
    master does not have it."""
    is_whole: bool = True
    """False if the master has more entries: 5.5 can send them in parts."""


class DatedOffsets(NamedTuple):
    """Consumer offsets, and when they changed."""

    changed_ms: int
    """Time of the last change, ms since 1970."""
    offsets: dict[tuple[str, str], Queues]
    """Consumer offsets by topic and group."""


class MasterTables:
    """Requests the tables of a master.

    Args:
        master: The requests.
    """

    def __init__(self, master: MasterRequests) -> None:
        self._master = master

    async def topics(self) -> NamedEntries:
        """Return the topics. Raises ``Unanswered``."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return await self._named(code, "topicConfigTable", "totalTopicNum")

    async def groups(self) -> NamedEntries:
        """Return the groups. Raises ``Unanswered``."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._named(code, "subscriptionGroupTable", "totalGroupNum")

    async def _named(
        self, code: RequestCode, entries_member: str, total_field: str
    ) -> NamedEntries:
        reply = await self._master.table(code, entries_member)
        named_entries = await self._decoded(
            reply, entries_member, lambda body: named(_parsed(body), entries_member)
        )
        total = (reply.ext_fields or {}).get(total_field, "")
        if total.isdecimal() and int(total) > len(named_entries.entries):
            return named_entries._replace(is_whole=False)
        return named_entries

    async def consumer_offsets(self) -> dict[tuple[str, str], Queues]:
        """Return the consumer offsets by topic and group. Raises ``Unanswered``."""
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return await self._fetch(code, "offsetTable", consumer_offsets)

    async def dated_consumer_offsets(self) -> DatedOffsets:
        """Return the consumer offsets with their time.

        Raises:
            Unanswered: There is no answer, or one without a version, as before 5.0.
        """
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return await self._fetch(code, "offsetTable", dated_consumer_offsets)

    async def delay_offsets(self) -> dict[int, int]:
        """Return delay level -> queue offset. Raises ``Unanswered``."""
        return await self._fetch(RequestCode.GET_ALL_DELAY_OFFSET, "offsetTable", numbers)

    async def request_modes(self) -> RequestModesByTopic | None:
        """Return the request modes; None if the master does not have them. Raises ``Unanswered``.

        To be called only if the master ``has_newer_tables``.
        """
        code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        try:
            return await self._fetch(code, "messageRequestModeMap", request_modes)
        except RequestDenied:
            return None

    async def timer_progress(self) -> TimerProgress | None:
        """Return the progress of the timer; None if the master has none. Raises ``Unanswered``.

        To be called only if the master ``has_newer_tables``.
        """
        what = "the progress of its timer"
        try:
            reply = await self._master.table(RequestCode.GET_TIMER_CHECK_POINT, what)
        except RequestDenied:  # its timer is disabled
            return None
        try:
            return timer_progress(reply)
        except (CorruptRecord, ValueError) as error:
            raise Unanswered(f"{self._master.address} answers for {what}, but: {error}") from error

    async def users(self) -> list[User]:
        """Return the users of access control 2.0.

        To be called only if the master ``has_newer_tables``.

        Raises:
            Unanswered: There is no answer, or one without passwords.
        """
        return await self._list(RequestCode.AUTH_LIST_USER, "its users", users)

    async def acls(self) -> dict[str, Acl]:
        """Return subject -> rules of access control 2.0; as ``users``. Raises ``Unanswered``."""
        return await self._list(RequestCode.AUTH_LIST_ACL, "the rules of its users", acls)

    async def _list(self, code: RequestCode, what: str, decode: Callable[[list[Table]], _T]) -> _T:
        reply = await self._master.table(code, what)
        return await self._decoded(reply, what, lambda body: decode(_parsed_list(body)))

    async def _fetch(
        self, code: RequestCode, entries_member: str, decode: Callable[[Table, str], _T]
    ) -> _T:
        reply = await self._master.table(code, entries_member)
        return await self._decoded(
            reply, entries_member, lambda body: decode(_parsed(body), entries_member)
        )

    async def _decoded(self, reply: Command, what: str, decode: Callable[[bytes], _T]) -> _T:
        """Decode a body in a thread, and return the result. Raises ``Unanswered``."""
        body = bytes(reply.body)
        try:
            return await asyncio.to_thread(decode, body)
        except (CorruptRecord, ValueError) as error:
            raise Unanswered(f"{self._master.address} answers for {what}, but: {error}") from error


def _parsed(body: bytes) -> Table:
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:  # numbers as keys
        value = fastjson.parse(body.decode())
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _parsed_list(body: bytes) -> list[Table]:
    """Return the objects of a list; an empty body is an empty one."""
    value = msgspec.json.decode(body) if body else []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError("not a list of objects")
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
        forbidden = None
        if isinstance(table.get("forbiddenTable"), dict):
            forbidden = {
                group: {topic: int(bits) for topic, bits in topics.items()}
                for group, topics in table["forbiddenTable"].items()
            }
    return NamedEntries(data_version, entries, forbidden)


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


def dated_consumer_offsets(table: Table, entries_member: str) -> DatedOffsets:
    """Return the consumer offsets of a reply with a version.

    Raises:
        CorruptRecord: They cannot be read.
        ValueError: There is no version.
    """
    version = table.get("dataVersion")
    changed_ms = version.get("timestamp") if isinstance(version, dict) else None
    if not isinstance(changed_ms, int):
        raise ValueError("they have no version, as those of RocketMQ before 5.0")
    return DatedOffsets(changed_ms, consumer_offsets(table, entries_member))


def request_modes(table: Table, entries_member: str) -> RequestModesByTopic:
    """Return the request modes of a reply. Raises ``CorruptRecord``."""
    with expected_kind(entries_member):
        return pop_tables.request_modes(member(table, entries_member, entries_member))


def users(entries: list[Table]) -> list[User]:
    """Return the users of a reply.

    Raises:
        ValueError: An entry is not a user, or lacks its password. The message has no password.
    """
    listed = []
    for entry in entries:
        name = entry.get("username")
        if not isinstance(name, str) or not name.strip():
            raise ValueError("a user has no name")
        if not entry.get("password"):
            raise ValueError(
                "passwords are shown to super users only: let innerClientAuthenticationCredentials "
                "be those of one"
            )
        try:
            listed.append(user_of(name, entry))
        except InvalidOption as error:
            raise ValueError(f"user {name!r}: {error}") from None
    if not listed:
        raise ValueError("there are none, not even that of this request")
    return listed


def acls(entries: list[Table]) -> dict[str, Acl]:
    """Return subject -> rules of a reply. Raises ``ValueError``."""
    listed = {}
    for entry in entries:
        subject = entry.get("subject")
        if not isinstance(subject, str):
            raise ValueError("rules have no subject")
        try:
            listed[subject] = acl_of(entry)
        except (InvalidOption, KeyError, TypeError) as error:
            raise ValueError(f"rules of {subject!r}: {error}") from None
    return listed


def timer_progress(reply: Command) -> TimerProgress:
    """Return the progress of the timer in a reply of reput or RocketMQ.

    Raises:
        CorruptRecord: The body is too short.
        ValueError: A field is not a number, or negative.
    """
    progress = TimerProgress.of_fields(reply.ext_fields or {})
    if progress is None:
        check = timer_check.decode(reply.body)
        progress = TimerProgress(check.read_time_ms, 0, check.queue_offset)
    if min(progress) < 0:
        raise ValueError(f"{progress} has a negative number")
    return progress


def _numbers(table: dict[Any, Any]) -> dict[int, int]:
    values = {int(key): int(value) for key, value in table.items()}
    for key, value in values.items():
        if key < 0 or value < 0:
            raise ValueError(f"{key}: {value} is negative")
    return values
