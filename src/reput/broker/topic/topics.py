"""The topics of a broker: lookup, permissions, creation and deletion."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from reput.broker import limits, quotas
from reput.broker.quotas import OWN, AddressQuota, Reservation, Reservations
from reput.broker.settings.config import BrokerConfig
from reput.errors import LimitExceeded, RequestRefused, WriteFailed
from reput.format import limits as format_limits, names
from reput.format.bodies import DataVersion, TopicConfigData, TopicConfigTable
from reput.format.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, ResponseCode
from reput.store.tables.config_tables import Table, TopicConfig
from reput.store.tables.saved_table import DataVersion as TableVersion
from reput.store.tables.topics import TopicTable

SCHEDULE_QUEUE_COUNT = 18
_BENCHMARK_QUEUE_COUNT = 1024
_CLUSTER_QUEUE_COUNT = 16

_log = logging.getLogger(__name__)

READ_WRITE = PERM_READ | PERM_WRITE
ALL = READ_WRITE | PERM_INHERIT


class Topics:
    """The topic table, and its rules.

    Args:
        table: The saved table.
        config: Current settings, with the rules of automatic creation.
        has_light: True if each light queue is a topic.
    """

    def __init__(self, table: TopicTable, config: BrokerConfig, *, has_light: bool = False) -> None:
        self.table = table
        self.config = config
        self.on_change: list[Callable[[str], object]] = []
        """Called with the name of a topic that was created, changed or deleted."""
        self.on_written: list[Callable[[str], object]] = []
        """Called with the name of a topic created by a send, once it is in the file."""
        self.on_make: Callable[[], None] | None = None
        """Called when a send has created a topic: writes the file soon and calls ``written``. If
        None, the file is written at once."""
        self.made_count = 0
        """Number of topics created by requests of clients."""
        self.written_count = 0
        """Number of these topics that are in the file."""
        self._unwritten: dict[str, int] = {}  # name -> its number among the created ones
        self._has_light = has_light
        self.system_topics: frozenset[str] = frozenset()
        """The built-in topics of this broker."""
        self.queue_count = sum(_queues_of(topic) for topic in table.all().values())
        """Queues of all topics, counting the read or write queues of each, whichever are more."""
        self._made_by = AddressQuota()
        self._reserved = Reservations()

    def add_built_in(self, now_ms: int, delay_level_count: int = SCHEDULE_QUEUE_COUNT) -> None:
        """Create the topics that every broker has; existing ones are not changed."""
        config = self.config
        built_in = {
            names.SELF_TEST_TOPIC: (1, READ_WRITE),
            names.BENCHMARK_TOPIC: (_BENCHMARK_QUEUE_COUNT, READ_WRITE),
            names.OFFSET_MOVED_TOPIC: (1, READ_WRITE),
            names.SCHEDULE_TOPIC: (max(SCHEDULE_QUEUE_COUNT, delay_level_count), READ_WRITE),
            config.broker_cluster_name + names.REPLY_TOPIC_SUFFIX: (1, READ_WRITE),
            config.broker_cluster_name: (
                _CLUSTER_QUEUE_COUNT,
                (ALL if config.cluster_topic_enable else PERM_INHERIT),
            ),
            config.broker_name: (1, ALL if config.broker_topic_enable else PERM_INHERIT),
        }
        if config.auto_create_topic_enable:
            built_in[names.AUTO_CREATE_TOPIC] = (config.default_topic_queue_nums, ALL)
        if config.trace_topic_enable:
            built_in[config.msg_trace_topic_name] = (1, READ_WRITE)
        for name, (queue_count, perm) in built_in.items():
            if self.table.get(name) is None:
                self._store(_topic(name, queue_count, perm), now_ms)
        self.system_topics = frozenset(built_in) | names.SYSTEM_TOPICS

    # Lookup -----------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic, or None."""
        topic = self.table.get(name)
        return _light_topic(name) if topic is None and self._has_light else topic

    def all(self) -> dict[str, TopicConfig]:
        """Return all topics by name."""
        return self.table.all()

    def readable(self, name: str, reading: str = "pulling") -> TopicConfig:
        """Return a topic that can be read.

        Args:
            name: Name of the topic.
            reading: RocketMQ's word for the request, in the text of a refusal.

        Raises:
            RequestRefused: TOPIC_NOT_EXIST, NO_PERMISSION.
        """
        topic = self.get(name)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        if not topic.perm & PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] {reading} message is forbidden"
            )
        return topic

    def write_queue_count(self, name: str) -> int:
        """Return the number of write queues; 0 if sends to the topic need further checks."""
        topic = self.table.get(name)
        if (
            topic is None
            or name in self._unwritten  # a reply to a send waits for the file
            or not topic.perm & PERM_WRITE
            or not self.config.broker_permission & PERM_WRITE
            or topic.filter_type != "SINGLE_TAG"
            or not {name for name, _ in topic.attributes} <= _PLAIN_ATTRIBUTES
            or names.is_retry_topic(name)
            or names.is_dlq_topic(name)
            or (names.is_system_topic(name) and name != names.BENCHMARK_TOPIC)
        ):
            return 0
        return topic.write_queue_count

    # Creation ---------------------------------------------------------------------------------

    def for_sending(
        self,
        name: str,
        default_topic: str,
        queue_count: int,
        now_ms: int,
        *,
        is_unit: bool = False,
        address: str = OWN,
    ) -> TopicConfig:
        """Return the topic of a message; create it if necessary and allowed.

        Args:
            name: Name of the topic.
            default_topic: Topic whose settings a new one inherits.
            queue_count: Number of queues that the producer requests.
            now_ms: The time.
            is_unit: True if the producer is in unit mode.
            address: Address of the producer: the number of topics that it can create is limited.

        Raises:
            RequestRefused: The name is not allowed, or the topic does not exist and cannot be
                created.
            LimitExceeded: There are too many topics, or too many created by this address.
        """
        topic = self.get(name)
        if topic is not None:
            self._check_order_permission(topic)
            return topic
        self.check_name(name)
        topic = self._inherit(name, default_topic, queue_count)
        if topic is None and names.is_retry_topic(name):
            topic = _topic(name, 1, READ_WRITE)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        if is_unit:
            topic = dataclasses.replace(topic, sys_flag=_UNIT)
        config = self.config
        if len(self.table) >= config.reput_auto_created_topics_max:
            raise quotas.exceeded(
                limits.AUTO_CREATED_TOPICS, config.reput_auto_created_topics_max, name
            )
        self._make_for(topic, now_ms, address)
        return topic

    def _check_order_permission(self, topic: TopicConfig) -> None:
        if not self.config.broker_permission & PERM_WRITE and topic.order:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.config.broker_ip1}] sending message is forbidden",
            )

    def check_name(self, name: str) -> None:
        """Check the name of a topic to create or to send to.

        Raises:
            RequestRefused: The name is not allowed; the message lists allowed characters.
        """
        if not name.strip():
            raise invalid_topic("The specified topic is blank.")
        limit, shown = limits.TOPIC_NAME_LETTERS, names.printable(name)
        if len(name) > limit.maximum:
            raise LimitExceeded(
                limit.name,
                f"The specified topic: {shown}, is longer than topic max length: {limit.maximum}",
                ResponseCode.INVALID_PARAMETER,
                old_code=ResponseCode.SYSTEM_ERROR,
            )
        if not names.is_legal_topic(name):
            raise invalid_topic(
                f"The specified topic: {shown}, contains illegal characters, "
                "allowing only ^[%|a-zA-Z0-9_-]+$"
            )

    def _inherit(self, name: str, default_topic: str, queue_count: int) -> TopicConfig | None:
        parent = self.table.get(default_topic)
        if parent is None or not parent.perm & PERM_INHERIT:
            return None
        if default_topic == names.AUTO_CREATE_TOPIC and not self.config.auto_create_topic_enable:
            return None  # it may exist from a time when this was enabled
        count = max(0, min(queue_count, parent.write_queue_count))
        return _topic(name, count, parent.perm & ~PERM_INHERIT, parent.filter_type)

    def for_group(
        self,
        name: str,
        queue_count: int,
        perm: int,
        now_ms: int,
        sys_flag: int = 0,
        *,
        address: str = OWN,
    ) -> TopicConfig:
        """Return the retry or dead-letter topic of a group, or an internal topic.

        It is created if necessary.

        Args:
            name: Name of the topic.
            queue_count: Number of queues of a new topic.
            perm: Permissions of a new topic.
            now_ms: The time.
            sys_flag: Flags of a new topic.
            address: Address of the client that it is created for.

        Raises:
            RequestRefused: The group's name is not valid in a topic name.
            LimitExceeded: There are too many topics, or too many created by this address.
        """
        topic = self.table.get(name)
        if topic is None:
            queue_count = min(queue_count, format_limits.TOPIC_QUEUES.maximum)
            topic = dataclasses.replace(_topic(name, queue_count, perm), sys_flag=sys_flag)
            if names.is_retry_topic(name) or names.is_dlq_topic(name):
                if not names.is_legal_group_topic(name):
                    raise RequestRefused(
                        ResponseCode.SYSTEM_ERROR,
                        f"topic {names.printable(name)!r} of a group cannot be created; allowed: "
                        f"^[%|a-zA-Z0-9_-]+$, at most {names.LONG_TOPIC_LENGTH_MAX} characters",
                    )
                self._make_for(topic, now_ms, address)
            else:
                self._make(topic, now_ms)
        return topic

    def _make_for(self, topic: TopicConfig, now_ms: int, address: str) -> None:
        """Add a topic for a client. Raises ``LimitExceeded``."""
        self._check_making([topic], address)
        self._make(topic, now_ms)
        self._made_by.add(address)

    def check_making(self, queue_counts: Mapping[str, int], address: str) -> None:
        """Refuse to create missing topics of groups for a client beyond the limits.

        Args:
            queue_counts: Topic -> number of its queues.
            address: Address of the client.

        Raises:
            LimitExceeded: There would be too many topics, or too many created by this address.
        """
        new = [
            _topic(name, count, READ_WRITE)
            for name, count in queue_counts.items()
            if self.table.get(name) is None
        ]
        if new:
            self._check_making(new, address)

    def _check_making(self, topics: Sequence[TopicConfig], address: str) -> None:
        limit = limits.AUTO_CREATED_TOPICS_PER_ADDRESS
        maximum = self.config.reput_auto_created_topics_per_address_max
        self._made_by.check(address, limit, maximum, len(topics))
        self.check_room(topics)

    def check_room(self, topics: Iterable[TopicConfig]) -> None:
        """Refuse topics that exceed the limits of a broker, together with existing ones.

        Raises:
            LimitExceeded: There would be too many topics or queues.
        """
        self._check_room(topics)

    def reserve(self, topics: Iterable[TopicConfig]) -> Reservation:
        """Check like ``check_room``, and reserve room for these topics until it is released.

        Raises:
            LimitExceeded: There would be too many topics or queues.
        """
        return self._reserved.reserve(*self._check_room(topics))

    def release(self, reservation: Reservation) -> None:
        """Release the rest of a reservation."""
        self._reserved.release(reservation)

    def _check_room(self, topics: Iterable[TopicConfig]) -> tuple[int, int]:
        """Return the additional topics and queues. Raises ``LimitExceeded``."""
        new_count, queue_count = 0, 0
        for topic in topics:
            known = self.table.get(topic.name)
            new_count += known is None
            queue_count += _queues_of(topic) - (0 if known is None else _queues_of(known))
        topic_max, queue_max = self.config.reput_topics_max, self.config.reput_queues_max
        topics_all = len(self.table) + self._reserved.count + new_count
        if new_count and topics_all > topic_max:
            raise limits.TOPICS.at(topic_max).exceeded(topics_all)
        queues_all = self.queue_count + self._reserved.size + queue_count
        if queue_count > 0 and queues_all > queue_max:
            raise limits.QUEUES.at(queue_max).exceeded(queues_all)
        return new_count, queue_count

    # Changes ----------------------------------------------------------------------------------

    def put(self, topic: TopicConfig, now_ms: int, reservation: Reservation | None = None) -> None:
        """Add or replace a topic, using its reservation if there is one."""
        known = self.table.get(topic.name)
        if known != topic:
            if reservation is not None:
                more = _queues_of(topic) - (0 if known is None else _queues_of(known))
                self._reserved.use(reservation, known is None, more)
            self._store(topic, now_ms)
            self.notify(topic.name)

    def copy(self, topic: TopicConfig, stored: Table, now_ms: int) -> None:
        """Add or replace a topic of this broker's master, as the master stores it."""
        known = self.table.get(topic.name)
        if self.table.copy(topic, stored, now_ms):
            self.queue_count += _queues_of(topic) - (0 if known is None else _queues_of(known))
            self.notify(topic.name)

    def _store(self, topic: TopicConfig, now_ms: int) -> None:
        known = self.table.get(topic.name)
        self.queue_count += _queues_of(topic) - (0 if known is None else _queues_of(known))
        self.table.put(topic, now_ms)

    def _make(self, topic: TopicConfig, now_ms: int) -> None:
        """Add a topic that a client's request creates.

        It is in the file before a message in it is acknowledged: after a kill there is no message
        with an unknown topic. The file is written once for all topics of a turn of the event loop,
        in a thread; replies wait for ``written_count``.
        """
        if self.on_make is not None:
            self.made_count += 1
            self._unwritten[topic.name] = self.made_count
            self.put(topic, now_ms)
            self.on_make()
            return
        self.put(topic, now_ms)
        try:
            self.table.save(now_ms, is_durable=False)
        except WriteFailed as error:
            _log.error("topic %s is not saved at present: %s", topic.name, error)

    def written(self, made_count: int) -> None:
        """Record that the file has the first ``made_count`` topics created by sends."""
        self.written_count = max(self.written_count, made_count)
        for name, number in list(self._unwritten.items()):  # in order of creation
            if number > made_count:
                break
            del self._unwritten[name]
            for subscriber in self.on_written:
                subscriber(name)

    def delete(self, name: str, now_ms: int) -> bool:
        """Delete a topic; return False if it did not exist."""
        known = self.table.get(name)
        self._unwritten.pop(name, None)  # if it is created again, it must not keep its old number
        is_gone = self.table.delete(name, now_ms)
        if known is not None:
            self.queue_count -= _queues_of(known)
            self.notify(name)
        return is_gone

    def notify(self, name: str) -> None:
        """Notify the subscribers that a topic was created, changed or deleted."""
        for subscriber in self.on_change:
            subscriber(name)

    def take_ordered(self, names_in_order: Iterable[str], now_ms: int) -> None:
        """Mark topics that a name server lists as ordered.

        A topic that is not listed keeps its mark, as in 5.x; 4.9 removes it. Other name servers get
        the mark with the next registration: if two disagree, each would trigger the other.

        Args:
            names_in_order: The listed topics.
            now_ms: The time, ms since 1970.
        """
        for name in names_in_order:
            topic = self.get(name)
            if topic is not None and not topic.order:
                self.table.put(dataclasses.replace(topic, order=True), now_ms)

    def describe(self) -> TopicConfigTable:
        """Return all topics in the form of a reply."""
        return TopicConfigTable(
            data_version=data_version(self.table.version),
            topic_config_table={
                name: topic_data(topic) for name, topic in self.table.all().items()
            },
        )


def invalid_topic(remark: str) -> RequestRefused:
    """Return the refusal of a topic's name: code 1 before 5.0."""
    return RequestRefused(
        ResponseCode.INVALID_PARAMETER, remark, old_code=ResponseCode.SYSTEM_ERROR
    )


_UNIT = 1
_PLAIN_ATTRIBUTES = frozenset({"message.type", "reserve.time"})
"""Attributes that do not affect how messages are stored; proxies use them."""


def _queues_of(topic: TopicConfig) -> int:
    return max(topic.read_queue_count, topic.write_queue_count)


def _topic(name: str, queue_count: int, perm: int, filter_type: str = "SINGLE_TAG") -> TopicConfig:
    return TopicConfig(
        name=name,
        read_queue_count=queue_count,
        write_queue_count=queue_count,
        perm=perm,
        filter_type=filter_type,
    )


def data_version(version: TableVersion) -> DataVersion:
    """Return the version of a table in the form of a message body."""
    return DataVersion(
        counter=version.counter,
        state_version=version.state_version,
        timestamp=version.timestamp_ms,
    )


def topic_data(topic: TopicConfig) -> TopicConfigData:
    """Return a topic in the form of a message body."""
    return TopicConfigData(
        attributes=dict(topic.attributes),
        order=topic.order,
        perm=topic.perm,
        read_queue_nums=topic.read_queue_count,
        topic_filter_type=topic.filter_type,
        topic_name=topic.name,
        topic_sys_flag=topic.sys_flag,
        write_queue_nums=topic.write_queue_count,
    )


def _light_topic(name: str) -> TopicConfig | None:
    """Return the topic of a light queue; None if the name is not one of a light queue.

    A message lists its light queues (LMQ) in INNER_MULTI_DISPATCH; the store adds a unit to each.
    With ``enableLmq`` each has a topic ``%LMQ%name`` with one queue, and each ``%LMQ%name`` is a
    group: both exist implicitly, and are neither saved nor registered with name servers. Source:
    ``LmqTopicConfigManager``, ``LmqSubscriptionGroupManager``.
    """
    if not names.is_light(name):
        return None
    return TopicConfig(name=name, read_queue_count=1, write_queue_count=1, perm=READ_WRITE)


def refuse_closed(topic: str) -> None:
    """Refuse a topic to which only brokers send: their loops trust the messages in it.

    Raises:
        RequestRefused: NO_PERMISSION, as in Java.
    """
    if names.is_written_by_brokers(topic):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )
