"""Routes of topics: replies of name servers, prepared for producers and consumers.

Source: rocketmq 4.9.8 ``MQClientInstance.topicRouteData2TopicPublishInfo`` and
``topicRouteData2TopicSubscribeInfo``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from reput.errors import RemotingError
from reput.format.bodies import (
    BrokerData,
    MessageQueue,
    QueueData,
    TopicRouteData,
    ordered_queue_counts,
)
from reput.format.codes import MASTER_ID, PERM_READ, PERM_WRITE


class NoRoute(RemotingError):
    """No name server has the topic, or none of its brokers is writable or readable.

    Args:
        topic: The topic.
        reason: The missing part, if it is more than the topic.
    """

    retriable = True
    refresh_route = True

    def __init__(self, topic: str, reason: str = "no name server knows it") -> None:
        self.topic = topic
        super().__init__(f"no route to topic {topic!r}: {reason}")


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers and queues of a topic, from one reply of a name server."""

    topic: str
    data: TopicRouteData
    """The reply."""
    brokers: Mapping[str, Mapping[int, str]]
    """Broker name to broker id to address."""
    publish_queues: tuple[MessageQueue, ...]
    """Writable queues with a master, by broker name, then queue id."""
    subscribe_queues: tuple[MessageQueue, ...]
    """Readable queues, by broker name, then queue id."""
    is_default: bool = False
    """True if made from the template topic's route: the topic does not exist yet."""

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of a broker by name and id, None if unknown."""
        return self.brokers.get(broker_name, {}).get(broker_id)

    def master(self, broker_name: str) -> str:
        """Return the address of a master. Raises ``NoRoute`` if there is none."""
        address = self.address(broker_name)
        if address is None:
            raise NoRoute(self.topic, _no_master(broker_name))
        return address

    @property
    def brokers_without_master(self) -> list[str]:
        """The names of brokers of which only slaves are there."""
        return [name for name, addresses in self.brokers.items() if MASTER_ID not in addresses]

    def any_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of the broker with this id, or of another broker with its messages.

        That is the broker with the following id if a slave is wanted, else the one with the lowest
        id: the master, if it is there.

        Raises:
            NoRoute: There is no broker of this name.
        """
        addresses = self.brokers.get(broker_name, {})
        following = () if broker_id == MASTER_ID else (broker_id + 1,)
        for wanted in (broker_id, *following, *sorted(addresses)):
            if wanted in addresses:
                return addresses[wanted]
        raise NoRoute(self.topic, f"broker {broker_name!r} is not there at the moment")


def no_publish_queues(route: TopicRoute) -> NoRoute:
    """Return the error of a send to a topic without queues that can be written to."""
    reason = "none of its queues can be written to"
    reasons = [reason, *map(_no_master, sorted(route.brokers_without_master))]
    return NoRoute(route.topic, "; ".join(reasons))


def _no_master(broker_name: str) -> str:
    return f"broker {broker_name!r} has no master at the moment"


def topic_route(topic: str, data: TopicRouteData, *, is_default: bool = False) -> TopicRoute:
    """Return the route in a name server's reply."""
    brokers = {broker.broker_name: _addresses(broker) for broker in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda queue: queue.broker_name)
    if data.order_topic_conf:
        publish = _ordered_queues(topic, data.order_topic_conf)
    else:
        publish = tuple(
            MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue_id)
            for queue in queue_datas
            if queue.perm & PERM_WRITE and MASTER_ID in brokers.get(queue.broker_name, {})
            for queue_id in range(queue.write_queue_nums)
        )
    subscribe = tuple(
        MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue_id)
        for queue in queue_datas
        if queue.perm & PERM_READ
        for queue_id in range(queue.read_queue_nums)
    )
    return TopicRoute(topic, data, brokers, publish, subscribe, is_default)


def default_route(topic: str, template: TopicRoute, queue_count_max: int) -> TopicRoute:
    """Return the route of a topic that the first message will create.

    Args:
        topic: The new topic.
        template: Route of the topic whose settings it inherits (``TBW102``).
        queue_count_max: Number of queues that the producer requests; at most the template's.
    """
    return topic_route(
        topic,
        msgspec.structs.replace(
            template.data,
            queue_datas=[
                _with_queues(queue_data, queue_count_max)
                for queue_data in template.data.queue_datas
            ],
        ),
        is_default=True,
    )


class RouteCache:
    """The cached routes of topics."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}

    def get(self, topic: str) -> TopicRoute | None:
        """Return the newest route of a topic, None if it was never requested."""
        return self._routes.get(topic)

    def put(self, route: TopicRoute) -> bool:
        """Store a route; return whether it differs from the cached one."""
        known = self._routes.get(route.topic)
        self._routes[route.topic] = route
        return known is None or known.data != route.data

    def topics(self) -> list[str]:
        """Return the topics with a cached route."""
        return list(self._routes)

    def brokers(self) -> dict[str, dict[int, str]]:
        """Return broker name to broker id to address, of all cached routes."""
        by_name: dict[str, dict[int, str]] = {}
        for route in self._routes.values():
            for name, addresses in route.brokers.items():
                by_name.setdefault(name, {}).update(addresses)
        return by_name

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return a broker's address from any route."""
        return self.brokers().get(broker_name, {}).get(broker_id)

    def forget_all_but(self, topics: Iterable[str]) -> None:
        """Drop the routes of all other topics."""
        keep = set(topics)
        self._routes = {topic: route for topic, route in self._routes.items() if topic in keep}


def _addresses(broker: BrokerData) -> dict[int, str]:
    return {int(broker_id): address for broker_id, address in broker.broker_addrs.items()}


def _ordered_queues(topic: str, text: str) -> tuple[MessageQueue, ...]:
    """Return the queues in ``orderTopicConf``."""
    return tuple(
        MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
        for name, count in ordered_queue_counts(text)
        for queue_id in range(count)
    )


def _with_queues(queue_data: QueueData, count_max: int) -> QueueData:
    count = min(queue_data.read_queue_nums, count_max)
    return msgspec.structs.replace(queue_data, read_queue_nums=count, write_queue_nums=count)
