"""Which records a slave may acknowledge: those whose topics it has, so that it can serve them.

    bytes received -> the first record of a queue -> its topic is in the table -> acknowledged
                                                  -> it is not -> copied from the master -> likewise

A master that waits for its slaves must not acknowledge a message that no client could read after
its death. So a slave that gets a record of a topic or queue that it does not have copies the topics
of its master first. A master has a topic before it stores a message of it: a topic that the master
lacks was deleted there, and no record waits for it.
"""

from collections.abc import Callable

from reput.broker.topic.topics import Topics
from reput.format import names
from reput.store.message_store import MessageStore


class TopicCheck:
    """Checks the topics of the records that a connection receives.

    Args:
        store: The store.
        topics: The topics of the slave.
        known_end: Physical offset: of the records before it, the slave has each topic that its
            master has.
        copy_topics: Called when a record must wait: copies the topics, then calls ``copied``.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        known_end: int,
        copy_topics: Callable[[], object],
    ) -> None:
        self._store = store
        self._topics = topics
        self._known_end = known_end
        self._copy_topics = copy_topics
        self._checked = store.dispatcher.dispatched_offset
        """Physical offset of the first record that was not examined."""
        self._unknown: dict[tuple[str, int], int] = {}
        """Topic and queue id -> physical offset of the first record that waits for them."""
        self._deleted: set[tuple[str, int]] = set()
        """Topics and queues that the master lacks, unless the topics change here."""
        self._change_count = topics.table.change_count

    def acknowledged_end(self, end: int) -> int:
        """Return the physical offset up to which an end of the log may be acknowledged.

        To be called when records have come, before they are dispatched: that creates their queues.
        """
        is_waiting = bool(self._unknown)
        self._look()
        if self._unknown and not is_waiting:
            self._copy_topics()
        return min(end, *self._unknown.values()) if self._unknown else end

    def copied(self, log_end: int) -> None:
        """Continue, after the topics were copied, or could not be copied.

        Args:
            log_end: The end of the log before the master was asked.
        """
        self._known_end = max(self._known_end, log_end)
        self._unknown = {
            place: first
            for place, first in self._unknown.items()
            if not self._may_pass(*place, first)
        }
        if self._unknown:
            self._copy_topics()

    def _look(self) -> None:
        # Dispatch may have skipped damaged records.
        self._checked = max(self._checked, self._store.dispatcher.dispatched_offset)
        while True:
            self._checked, stored = self._store.replica_log.find_unqueued(self._checked)
            if stored is None:
                return
            if not self._may_pass(stored.topic, stored.queue_id, stored.physical_offset):
                self._unknown.setdefault((stored.topic, stored.queue_id), stored.physical_offset)
            self._checked += stored.store_size

    def _may_pass(self, topic: str, queue_id: int, physical_offset: int) -> bool:
        known = self._topics.get(topic)
        if known is not None and queue_id < max(known.read_queue_count, known.write_queue_count):
            return True
        if names.is_system_topic(topic) or topic in self._topics.system_topics:
            return True  # brokers create them
        if self._change_count != self._topics.table.change_count:
            self._change_count = self._topics.table.change_count
            self._deleted.clear()
        if physical_offset < self._known_end:
            self._deleted.add((topic, queue_id))
        return (topic, queue_id) in self._deleted
