"""The topics of a broker: which there are, who may use them, how they come to be."""

import dataclasses
import logging
from collections.abc import Callable

from reput.broker import light_queues
from reput.broker.config import PERM_INHERIT, PERM_READ, PERM_WRITE, BrokerConfig
from reput.errors import RequestRefused, WriteFailed
from reput.format import names
from reput.format.bodies import DataVersion, TopicConfigData, TopicConfigTable
from reput.format.codes import ResponseCode
from reput.store.config_tables import TopicConfig
from reput.store.table_files import TopicTable

SCHEDULE_QUEUE_COUNT = 18
_BENCHMARK_QUEUE_COUNT = 1024
_CLUSTER_QUEUE_COUNT = 16
_TOPIC_LENGTH_MAX = names.TOPIC_LENGTH_MAX

_log = logging.getLogger(__name__)

READ_WRITE = PERM_READ | PERM_WRITE
ALL = READ_WRITE | PERM_INHERIT


class Topics:
    """The topic table, and its rules.

    Args:
        table: What is saved.
        config: Who may create topics, and how large.
        on_change: Called with the name of a topic that was made, changed or deleted.
        has_light: Whether each light queue is a topic.
    """

    def __init__(
        self,
        table: TopicTable,
        config: BrokerConfig,
        on_change: Callable[[str], None],
        *,
        has_light: bool = False,
    ) -> None:
        self.table = table
        self.config = config
        self._on_change = on_change
        self._has_light = has_light
        self.system_topics: frozenset[str] = frozenset()
        """The built-in topics of this broker."""

    def add_built_in(self, now_ms: int, delay_level_count: int = SCHEDULE_QUEUE_COUNT) -> None:
        """Make the topics that every broker has; those that exist stay as they are."""
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
                self.table.put(_topic(name, queue_count, perm), now_ms)
        self.system_topics = frozenset(built_in) | names.SYSTEM_TOPICS

    # Looking up -------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic, or None."""
        topic = self.table.get(name)
        return light_queues.topic_of(name) if topic is None and self._has_light else topic

    def all(self) -> dict[str, TopicConfig]:
        """Return all topics by name."""
        return self.table.all()

    def readable(self, name: str) -> TopicConfig:
        """Return a topic that may be read.

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
                ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden"
            )
        return topic

    def write_queue_count(self, name: str) -> int:
        """Return how many queues of a topic anybody may send to without being looked at; else 0."""
        topic = self.table.get(name)
        if (
            topic is None
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

    # Sending ----------------------------------------------------------------------------------

    def for_sending(
        self,
        name: str,
        default_topic: str,
        queue_count: int,
        now_ms: int,
        *,
        is_unit: bool = False,
    ) -> TopicConfig:
        """Return the topic that a message goes to, made if need be.

        Args:
            name: Of the topic.
            default_topic: Whose settings a new one gets.
            queue_count: How many queues the producer would like.
            now_ms: The time.
            is_unit: The producer is in unit mode.

        Raises:
            RequestRefused: The name is not allowed, or the topic does not exist and cannot be made.
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
        self._make(topic, now_ms)
        return topic

    def _check_order_permission(self, topic: TopicConfig) -> None:
        if not self.config.broker_permission & PERM_WRITE and topic.order:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.config.broker_ip1}] sending message is forbidden",
            )

    def check_name(self, name: str) -> None:
        """Check the name of a topic that somebody wants to send to or make.

        Raises:
            RequestRefused: It is not allowed; says what is.
        """
        if not name.strip():
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The specified topic is blank.")
        if not names.is_legal_topic(name, 1 << 30):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The specified topic[{name}] contains illegal characters, allowing only "
                "^[%|a-zA-Z0-9_-]+$",
            )
        if len(name) > _TOPIC_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The specified topic is longer than topic max length {_TOPIC_LENGTH_MAX}.",
            )

    def _inherit(self, name: str, default_topic: str, queue_count: int) -> TopicConfig | None:
        parent = self.table.get(default_topic)
        if parent is None or not parent.perm & PERM_INHERIT:
            return None
        if default_topic == names.AUTO_CREATE_TOPIC and not self.config.auto_create_topic_enable:
            return None  # it may be left over from when it was enabled
        count = max(0, min(queue_count, parent.write_queue_count))
        return _topic(name, count, parent.perm & ~PERM_INHERIT, parent.filter_type)

    def for_group(
        self, name: str, queue_count: int, perm: int, now_ms: int, sys_flag: int = 0
    ) -> TopicConfig:
        """Return the retry or dead-letter topic of a group, made if need be."""
        topic = self.table.get(name)
        if topic is None:
            topic = dataclasses.replace(_topic(name, queue_count, perm), sys_flag=sys_flag)
            self._make(topic, now_ms)
        return topic

    # Changing ---------------------------------------------------------------------------------

    def put(self, topic: TopicConfig, now_ms: int) -> None:
        """Add or replace a topic."""
        if self.table.get(topic.name) != topic:
            self.table.put(topic, now_ms)
            self._on_change(topic.name)

    def _make(self, topic: TopicConfig, now_ms: int) -> None:
        """Add a topic that a client's request makes.

        It is in the file before anybody is answered: after a kill nobody finds a message whose
        topic is not known. The disk is not waited for here: ``loops`` does, before it answers those
        whose messages wait for the disk as well.
        """
        self.put(topic, now_ms)
        try:
            self.table.save(now_ms, is_durable=False)
        except WriteFailed as error:
            # The message may have room where the table has none; it is tried again in a second.
            _log.error("topic %s stays unsaved for now: %s", topic.name, error)

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove a topic; return whether it was there."""
        is_gone = self.table.delete(name, now_ms)
        if is_gone:
            self._on_change(name)
        return is_gone

    def describe(self) -> TopicConfigTable:
        """Return all topics as brokers tell them."""
        version = self.table.version
        return TopicConfigTable(
            data_version=DataVersion(counter=version.counter, timestamp=version.timestamp_ms),
            topic_config_table={
                name: topic_data(topic) for name, topic in self.table.all().items()
            },
        )


_UNIT = 1
_PLAIN_ATTRIBUTES = frozenset({"message.type", "reserve.time"})
"""Attributes that change nothing in how a message is stored: proxies look at them."""


def _topic(name: str, queue_count: int, perm: int, filter_type: str = "SINGLE_TAG") -> TopicConfig:
    return TopicConfig(
        name=name,
        read_queue_count=queue_count,
        write_queue_count=queue_count,
        perm=perm,
        filter_type=filter_type,
    )


def topic_data(topic: TopicConfig) -> TopicConfigData:
    """Return a topic as it travels."""
    return TopicConfigData(
        attributes=dict(topic.attributes) or None,
        order=topic.order,
        perm=topic.perm,
        read_queue_nums=topic.read_queue_count,
        topic_filter_type=topic.filter_type,
        topic_name=topic.name,
        topic_sys_flag=topic.sys_flag,
        write_queue_nums=topic.write_queue_count,
    )
