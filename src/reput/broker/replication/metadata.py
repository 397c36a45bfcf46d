"""A slave's copies of its master's tables: topics, groups, offsets, delays, timers, modes."""

from reput.broker.assignments import RequestModes
from reput.broker.delay import DelaySchedule
from reput.broker.deliveries import Deliveries
from reput.broker.group.subscription_groups import SubscriptionGroups
from reput.broker.replication.state import SlaveStatus
from reput.broker.settings.live import LiveConfig
from reput.broker.timer.timers import Timers
from reput.broker.topic.topics import Topics
from reput.clock import Clock


class MetadataSync:
    """Copies the tables of the master, as long as the slave follows it.

    Args:
        settings: The settings in force.
        status: The slave's state: the master's address is there.
        topics: The topics.
        subscription_groups: The groups' settings.
        deliveries: The consumer offsets.
        delayed: The progress of delayed messages.
        timers: The progress of the timer.
        request_modes: The request modes.
        clock: The clock.
    """

    def __init__(
        self,
        settings: LiveConfig,
        status: SlaveStatus,
        topics: Topics,
        subscription_groups: SubscriptionGroups,
        deliveries: Deliveries,
        delayed: DelaySchedule,
        timers: Timers,
        request_modes: RequestModes,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._status = status
        self._topics = topics
        self._subscription_groups = subscription_groups
        self._deliveries = deliveries
        self._delayed = delayed
        self._timers = timers
        self._request_modes = request_modes
        self._clock = clock

    async def start(self) -> None:
        """Begin to copy."""

    async def stop(self) -> None:
        """Stop copying."""
