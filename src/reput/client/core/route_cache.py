"""Where topics are: what name servers say, made ready for who sends and who consumes.

Source: rocketmq 4.9.8 ``MQClientInstance.topicRouteData2TopicPublishInfo`` and
``topicRouteData2TopicSubscribeInfo``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from reput.errors import RemotingError
from reput.format.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from reput.format.codes import MASTER_ID, PERM_READ, PERM_WRITE


class NoRoute(RemotingError):
    """No name server knows the topic, or no broker that may be sent to or read from is there.

    Args:
        topic: The topic.
        reason: What is missing, where it is more than the topic.
    """

    retriable = True
    refresh_route = True

    def __init__(self, topic: str, reason: str = "no name server knows it") -> None:
        self.topic = topic
        super().__init__(f"no route to topic {topic!r}: {reason}")


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers and queues of a topic, as of one answer of a name server."""

    topic: str
    data: TopicRouteData
    """As it came."""
    brokers: Mapping[str, Mapping[int, str]]
    """Broker name -> broker id -> address."""
    publish_queues: tuple[MessageQueue, ...]
    """May be written to, and have a master; by broker name, then queue id."""
    subscribe_queues: tuple[MessageQueue, ...]
    """May be read from; by broker name, then queue id."""
    is_default: bool = False
    """Made from another topic's route: the topic does not exist yet."""

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of one broker of a group of master and slaves, if it is there."""
        return self.brokers.get(broker_name, {}).get(broker_id)

    def master(self, broker_name: str) -> str:
        """Return the address of a master. Raises ``NoRoute`` if there is none."""
        address = self.address(broker_name)
        if address is None:
            raise NoRoute(self.topic, f"broker {broker_name!r} has no master at the moment")
        return address

    def any_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of the wanted broker, else the master's, else any slave's.

        Raises:
            NoRoute: No broker of this name is there.
        """
        addresses = self.brokers.get(broker_name, {})
        for wanted in (broker_id, MASTER_ID, *sorted(addresses)):
            if wanted in addresses:
                return addresses[wanted]
        raise NoRoute(self.topic, f"broker {broker_name!r} is not there at the moment")


def topic_route(topic: str, data: TopicRouteData, *, is_default: bool = False) -> TopicRoute:
    """Make a route from what a name server answered."""
    brokers = {one.broker_name: _addresses(one) for one in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda one: one.broker_name)
    if data.order_topic_conf:
        publish = _ordered_queues(topic, data.order_topic_conf)
    else:
        publish = tuple(
            MessageQueue(topic=topic, broker_name=one.broker_name, queue_id=queue_id)
            for one in queue_datas
            if one.perm & PERM_WRITE and MASTER_ID in brokers.get(one.broker_name, {})
            for queue_id in range(one.write_queue_nums)
        )
    subscribe = tuple(
        MessageQueue(topic=topic, broker_name=one.broker_name, queue_id=queue_id)
        for one in queue_datas
        if one.perm & PERM_READ
        for queue_id in range(one.read_queue_nums)
    )
    return TopicRoute(topic, data, brokers, publish, subscribe, is_default)


def default_route(topic: str, template: TopicRoute, queue_count_max: int) -> TopicRoute:
    """Return the route of a topic that the first message will create.

    Args:
        topic: The new topic.
        template: The route of the topic whose settings it inherits (``TBW102``).
        queue_count_max: What the producer asks for; the broker gives no more than it has.
    """
    return topic_route(
        topic,
        msgspec.structs.replace(
            template.data,
            queue_datas=[_with_queues(one, queue_count_max) for one in template.data.queue_datas],
        ),
        is_default=True,
    )


class RouteCache:
    """The routes of topics in use."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}

    def get(self, topic: str) -> TopicRoute | None:
        """Return the newest route of a topic, if it was ever asked for."""
        return self._routes.get(topic)

    def put(self, route: TopicRoute) -> bool:
        """Take a route in; returns whether it differs from what was known."""
        known = self._routes.get(route.topic)
        self._routes[route.topic] = route
        return known is None or known.data != route.data

    def topics(self) -> list[str]:
        """Return the topics whose routes are known."""
        return list(self._routes)

    def brokers(self) -> dict[str, dict[int, str]]:
        """Return broker name -> broker id -> address of all known routes."""
        found: dict[str, dict[int, str]] = {}
        for route in self._routes.values():
            for name, addresses in route.brokers.items():
                found.setdefault(name, {}).update(addresses)
        return found

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return a broker's address from whichever route has it."""
        return self.brokers().get(broker_name, {}).get(broker_id)

    def forget_all_but(self, topics: Iterable[str]) -> None:
        """Drop the routes of topics that nobody uses any more."""
        keep = set(topics)
        self._routes = {topic: route for topic, route in self._routes.items() if topic in keep}


def _addresses(broker: BrokerData) -> dict[int, str]:
    return {int(broker_id): address for broker_id, address in broker.broker_addrs.items()}


def _ordered_queues(topic: str, text: str) -> tuple[MessageQueue, ...]:
    """Return the queues that ``orderTopicConf`` fixes: ``broker-a:4;broker-b:4``."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        name, _, count = part.partition(":")
        if name and count.strip().isdecimal():
            queues.extend(
                MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
                for queue_id in range(int(count))
            )
    return tuple(queues)


def _with_queues(queue_data: QueueData, count_max: int) -> QueueData:
    count = min(queue_data.read_queue_nums, count_max)
    return msgspec.structs.replace(queue_data, read_queue_nums=count, write_queue_nums=count)
