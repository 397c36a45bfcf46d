"""A slave's copies of its master's topics and groups: new and changed ones, and deletions.

    reply of the master       -> new and changed entries, at once
    entries that it lacks     -> groups: deleted at once
                              -> topics: end of the master's log -> the slave has dispatched up to
                                 it, and the next reply lacks them too -> deleted up to that end

An entry that the master lacks was not necessarily deleted there: the master may have lost its
tables, or be another one than before. So it is deleted here only if the version of the master's
table shows a deletion, compared with that of the last copy:

* neither stateVersion nor timestamp is smaller, and
* the counter has risen by at least the number of entries to be deleted, as each deletion raises it.
  A lost table counts from 0 again; one of another master has too many differences.

Otherwise the entry is kept, now and later, until the master has it again; so are entries that the
master never had. A reply with a part of the entries deletes nothing. Built-in topics and groups are
never deleted. Once the slave has all that the master has, its tables have the master's versions,
and equal versions need no copy.

The queues of a topic are deleted with it, but only those without messages at or after the end of
the master's log: the topic may exist again, and queues that began again are not the deleted ones.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from reput.broker.deletions import Deletions
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.replication.master_requests import MasterRequests, Unanswered
from reput.broker.replication.master_tables import MasterTables, NamedEntries
from reput.broker.topic.topics import Topics
from reput.clock import Clock
from reput.errors import ReputError
from reput.format import names
from reput.remoting.long_replies import chunks
from reput.remoting.time_slices import run_in_slices
from reput.store.message_store import MessageStore
from reput.store.tables.config_tables import Table
from reput.store.tables.saved_table import DataVersion

_NAMES_LOGGED = 10

_log = logging.getLogger(__name__)


def deletes(new: DataVersion, old: DataVersion, count: int) -> bool:
    """Return True if a master's table lacks entries because they were deleted.

    Args:
        new: The version of the master's table.
        old: The version of its last copy.
        count: Number of entries that it lacks.
    """
    return (
        new.state_version >= old.state_version
        and new.timestamp_ms >= old.timestamp_ms
        and new.counter - old.counter >= count
    )


class _Copy:
    """The copy of one table.

    Args:
        what: The entries, for messages.
        own: The slave's entries.
        is_built_in: Returns True for the name of an entry that brokers create for themselves.
    """

    def __init__(
        self, what: str, own: Topics | SubscriptionGroups, is_built_in: Callable[[str], bool]
    ) -> None:
        self._what = what
        self._own = own
        self._is_built_in = is_built_in
        self._base: DataVersion | None = None
        """The master's version at the last complete copy; None in the first round."""
        self._current: tuple[DataVersion, int] | None = None
        """The master's version, and number of changes here, after the last whole copy."""
        self._names: set[str] | None = None
        """Entries that the master had then or since; None in the first round: all of the slave."""
        self.missing: set[str] = set()
        """Entries that the master has deleted, but this slave has not."""

    def is_current(self, reply: NamedEntries) -> bool:
        """Return True if nothing has changed on either side since the last copy."""
        return self._current == (reply.version, self._own.table.change_count)

    def take(self, reply: NamedEntries, now_ms: int) -> Iterable[None]:
        """Take the entries of a reply once all of them are valid; find those it lacks.

        Raises:
            Unanswered: An entry is invalid; nothing has changed.
        """
        table = self._own.table
        entries: list[tuple[Any, Table]] = []
        for items in chunks(reply.entries.items()):
            try:
                entries += [(table.entry_of(name, value), value) for name, value in items]
            except ReputError as error:
                raise Unanswered(f"the master's {self._what}: {error}") from error
            yield
        if not entries:
            raise Unanswered(f"the master has no {self._what}, not even those of each broker")
        base = table.version if self._base is None else self._base
        for chunk in chunks(entries):
            for entry, stored in chunk:
                self._own.copy(entry, stored, now_ms)
            yield
        self._base = base
        table.adopt_version(base)  # of the last copy that was whole
        self.missing = set()
        if reply.is_whole:
            self._find_missing(reply)

    def _find_missing(self, reply: NamedEntries) -> None:
        assert self._base is not None
        own = self._own.table.all().keys()
        if self._names is not None:
            self._names |= reply.entries.keys()
        copied = own if self._names is None else own & self._names
        self.missing = {
            name for name in copied - reply.entries.keys() if not self._is_built_in(name)
        }
        if self.missing and not deletes(reply.version, self._base, len(self.missing)):
            _log.warning(
                "the master lacks %s that this slave has, but its version %s does not follow from "
                "%s by deletions; they are kept: %s",
                self._what, reply.version, self._base, _listed(self.missing),
            )  # fmt: skip
            self.missing = set()

    def finish(self, reply: NamedEntries) -> None:
        """Adopt the version of a whole reply once nothing is missing."""
        if reply.is_whole and not self.missing:
            self._base, self._names = reply.version, set(reply.entries)
            self._own.table.adopt_version(reply.version)
            self._current = reply.version, self._own.table.change_count


class NamedTables:
    """Copies topics and groups.

    Args:
        store: The store.
        topics: The topics.
        subscription_groups: The groups' settings.
        deletions: Deletes what the master has deleted.
        clock: The clock.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        subscription_groups: SubscriptionGroups,
        deletions: Deletions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._groups = subscription_groups
        self._deletions = deletions
        self._clock = clock
        self._topic_copy = _Copy(
            "topics",
            topics,
            lambda name: name in topics.system_topics or names.is_system_topic(name),
        )
        self._group_copy = _Copy("groups", subscription_groups, names.is_system_group)
        self._doomed: dict[str, int] = {}
        """Topic that the master has deleted -> end of the master's log afterwards."""
        self.deleted_topics: set[str] = set()
        """Topics that were deleted as the master did, and do not exist again; their consumer
        offsets go once the master lacks them."""
        self.deleted_groups: set[str] = set()
        """Groups, likewise: a master may also keep the consumer offsets of a deleted group."""

    async def copy_topics(self, master: MasterRequests) -> bool:
        """Copy the topics. Raises ``Unanswered``, ``WriteFailed``.

        Returns:
            True if the slave has all topics of the master now.
        """
        copy, reply = self._topic_copy, await MasterTables(master).topics()
        if copy.is_current(reply):
            return True
        await run_in_slices(copy.take(reply, self._clock.now_ms()), seconds=self._clock.work_s)
        self.deleted_topics -= reply.entries.keys()
        self._doomed = {name: end for name, end in self._doomed.items() if name in copy.missing}
        dispatched_offset = self._store.dispatcher.dispatched_offset
        ready = {name: end for name, end in self._doomed.items() if end <= dispatched_offset}
        if ready:
            _log.info("the master has deleted topics: %s", _listed(ready))
            await self._deletions.delete_copied_topics(ready)
            copy.missing -= ready.keys()
            self.deleted_topics |= ready.keys()
            self._doomed = {name: end for name, end in self._doomed.items() if name not in ready}
        copy.finish(reply)
        if new := copy.missing - self._doomed.keys():
            log_end = (await master.log_range()).max_offset
            self._doomed.update(dict.fromkeys(new, log_end))
        return reply.is_whole

    async def copy_groups(self, master: MasterRequests) -> None:
        """Copy the groups. Raises ``Unanswered``, ``WriteFailed``.

        The consumer offsets of deleted groups are kept: the master may have kept them.
        """
        copy, reply = self._group_copy, await MasterTables(master).groups()
        if copy.is_current(reply):
            return
        await run_in_slices(copy.take(reply, self._clock.now_ms()), seconds=self._clock.work_s)
        if reply.forbidden is not None:
            self._groups.copy_forbidden(reply.forbidden)
        deleted = copy.missing
        if deleted:
            _log.info("the master has deleted groups: %s", _listed(deleted))
            await self._deletions.delete_copied_groups(deleted)
            copy.missing = set()
        self.deleted_groups = (self.deleted_groups | deleted) - reply.entries.keys()
        copy.finish(reply)

    def forget_master(self) -> None:
        """Forget the deletions of another master."""
        self._doomed.clear()


def _listed(all_names: Collection[str]) -> str:
    shown = ", ".join(sorted(all_names)[:_NAMES_LOGGED])
    more = len(all_names) - _NAMES_LOGGED
    return f"{shown} and {more} more" if more > 0 else shown
