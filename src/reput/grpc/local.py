"""The front of a broker in the same process."""

from reput.broker.lite.subscriptions import BIND_TOPIC, CLIENT_QUOTA
from reput.broker.server import Broker
from reput.broker.topic.attributes import MESSAGE_TYPE
from reput.grpc.backend import (
    LITE_QUOTA,
    BrokerQueues,
    GroupFacts,
    TopicFacts,
    UnknownBroker,
)
from reput.remoting.channel import Channel, Owner
from reput.remoting.connection import READ_BYTES

_TYPE_DEFAULT = "NORMAL"


class LocalBackend:
    """Topics, groups and connections of a broker.

    Args:
        broker: The broker, which has started.
    """

    keeps_handles = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._buffer = bytearray(READ_BYTES)

    async def topic(self, name: str) -> TopicFacts | None:
        """Return a topic; None if it does not exist."""
        topic = self._broker.parts.topics.get(name)
        if topic is None:
            return None
        broker = self._broker.settings.broker
        queues = BrokerQueues(
            broker.broker_name,
            topic.read_queue_count,
            topic.write_queue_count,
            topic.perm & broker.broker_permission,
        )
        return TopicFacts(name, dict(topic.attributes).get(MESSAGE_TYPE, _TYPE_DEFAULT), (queues,))

    async def group(self, name: str, address: str) -> GroupFacts | None:
        """Return a group; create it if ``autoCreateSubscriptionGroup`` allows it.

        Raises:
            RequestRefused: Its name is not allowed, or there are too many groups.
        """
        parts = self._broker.parts
        group = parts.subscription_groups.obtain(name, parts.clock.now_ms(), address)
        if group is None:
            return None
        attributes = dict(group.attributes)
        return GroupFacts(
            name,
            group.consume_orderly,
            group.retry_max,
            group.retry_policy,
            attributes.get(BIND_TOPIC, ""),
            int(attributes.get(CLIENT_QUOTA, LITE_QUOTA)),
        )

    async def connect(self, broker_name: str, owner: Owner, address: tuple[str, int]) -> Channel:
        """Return a connection inside of the process. Raises ``UnknownBroker``."""
        own_name = self._broker.settings.broker.broker_name
        if broker_name != own_name:
            raise UnknownBroker(broker_name, own_name)
        return self._broker.connect_here(owner, self._buffer, address)
