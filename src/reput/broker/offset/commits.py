"""Rules for the consumer offsets that clients commit: existing queues, valid numbers, a limit.

A client that commits an invalid offset gets an error, unless the offset came with a pull: the pull
is answered nevertheless.
"""

from collections.abc import Callable

from reput.broker import limits
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.quotas import OWN, AddressQuota
from reput.broker.settings.config import BrokerConfig
from reput.config import JAVA_LONG_MAX
from reput.errors import LimitExceeded, RequestRefused
from reput.format import names
from reput.format.codes import ResponseCode
from reput.limits import Refusals
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.offsets import ConsumerOffsetTable


class OffsetCommits:
    """Puts consumer offsets into their table.

    Args:
        table: Returns the table.
        groups: The subscription groups, with the rules for their names.
        config: Settings, with the limits of offsets.
        refusals: Counts refused offsets.
    """

    def __init__(
        self,
        table: Callable[[], ConsumerOffsetTable],
        groups: SubscriptionGroups,
        config: BrokerConfig,
        refusals: Refusals,
    ) -> None:
        self.config = config
        self._table = table
        self._groups = groups
        self._refusals = refusals
        self._first_commits = AddressQuota()

    def check_group(self, group: str) -> None:
        """Check the name of a group whose offsets a client sets.

        Raises:
            RequestRefused: The name is not valid, or the group is internal.
        """
        if group in names.GROUPS_OF_BROKERS:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"only brokers set consumer offsets of group {group}"
            )
        self._groups.check_name(group)

    def commit(
        self,
        topic: TopicConfig,
        group: str,
        queue_id: int,
        consumer_offset: int,
        address: str = OWN,
    ) -> None:
        """Set the consumer offset of a group in a queue.

        Args:
            topic: Topic of the queue.
            group: Consumer group.
            queue_id: Id of the queue.
            consumer_offset: The next queue offset that the group reads.
            address: Address of the client.

        Raises:
            RequestRefused: There is no such queue, or the group name or offset is not valid.
            LimitExceeded: There are too many offsets.
        """
        table = self._table()
        is_new = table.get(topic.name, group, queue_id) is None
        if is_new or group in names.GROUPS_OF_BROKERS:
            self.check_group(group)
        queue_count = max(topic.read_queue_count, topic.write_queue_count)
        if not 0 <= queue_id < queue_count:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{queue_id}] is illegal, topic:[{topic.name}] has {queue_count} queues",
            )
        if not 0 <= consumer_offset <= JAVA_LONG_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOffset is {consumer_offset}; allowed: 0 to {JAVA_LONG_MAX}",
            )
        if is_new:
            self.check_room(1)
            self._first_commits.check(
                address,
                limits.CONSUMER_OFFSETS_PER_ADDRESS,
                self.config.reput_consumer_offsets_per_address_max,
            )
        table.put(topic.name, group, queue_id, consumer_offset)
        if is_new:
            self._first_commits.add(address)

    def commit_along(
        self, topic: TopicConfig, group: str, queue_id: int, consumer_offset: int, address: str
    ) -> None:
        """Set the offset that came with a pull; ignore it if ``commit`` refuses it."""
        try:
            self.commit(topic, group, queue_id, consumer_offset, address)
        except LimitExceeded as error:
            self._refusals.add(error.limit)
        except RequestRefused:
            pass  # a pull with an offset of another queue does not fail

    def check_reading(self, topic: TopicConfig, group: str, queue_id: int) -> None:
        """Refuse a group to read queues if there is no room for its offsets.

        Args:
            topic: Topic of the queues.
            group: Consumer group.
            queue_id: Id of the queue; below 0: any queue.

        Raises:
            LimitExceeded: There would be too many offsets.
        """
        table = self._table()
        if table.count + topic.read_queue_count <= self.config.reput_consumer_offsets_max:
            return
        if queue_id < 0:
            self.check_room(topic.read_queue_count - table.queue_count(topic.name, group))
        elif table.get(topic.name, group, queue_id) is None:
            self.check_room(1)

    def check_room(self, new_count: int) -> None:
        """Refuse more offsets than the limit.

        Raises:
            LimitExceeded: There would be too many offsets.
        """
        count, maximum = self._table().count, self.config.reput_consumer_offsets_max
        if new_count > 0 and count + new_count > maximum:
            raise limits.CONSUMER_OFFSETS.at(maximum).exceeded(count + new_count)
