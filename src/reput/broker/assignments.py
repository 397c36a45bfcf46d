"""Who of a group reads which queues, where the broker divides them: members ask with 400.

A group that pulls is divided as its members would do it. One that pops is not: each member pops
from any queue of every broker, or, where a share is set, from its own queues and those of the next
members. Source: rocketmq 5.5.0 ``QueryAssignmentProcessor``.
"""

from collections.abc import Callable, Mapping, Sequence

from reput.broker.config import BrokerConfig
from reput.broker.pop import ANY_QUEUE
from reput.format import allocation, names
from reput.format.bodies import MessageQueue, TopicRouteData
from reput.store.pop_tables import POP, PULL, RequestMode, RequestModeTable

_READ = 4
_STRATEGIES: Mapping[
    str, Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
] = {allocation.AVERAGELY: allocation.averagely, allocation.BY_CIRCLE: allocation.by_circle}


class RequestModes:
    """How groups read topics.

    Args:
        table: What somebody has said.
        config: What holds for all else.
    """

    def __init__(self, table: RequestModeTable, config: BrokerConfig) -> None:
        self.table = table
        self.config = config

    def find(self, topic: str, group: str) -> RequestMode:
        """Return how a group reads a topic; retry topics are always pulled."""
        said = self.table.get(topic, group)
        if said is not None:
            return said
        default = str(self.config.default_message_request_mode)
        mode = PULL if names.is_retry_topic(topic) else default
        share_count = self.config.default_pop_share_queue_num if mode == POP else 0
        return RequestMode(topic, group, mode, share_count)


def queues_of(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the queues of a topic that may be read, on all brokers."""
    return [
        MessageQueue(topic, one.broker_name, queue_id)
        for one in route.queue_datas
        if one.perm & _READ
        for queue_id in range(one.read_queue_nums)
    ]


def divide(
    mode: RequestMode,
    strategy: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
) -> list[MessageQueue] | None:
    """Return the queues of a member; None if it is to keep those it has.

    Args:
        mode: How the group reads the topic.
        strategy: How it wants to be divided, by Java's name.
        client_id: The member.
        queues: All of the topic.
        client_ids: All members of the group.
    """
    allocate = _STRATEGIES.get(strategy)
    if allocate is None or not client_ids:
        return None
    ordered, members = allocation.sorted_queues(queues), allocation.sorted_clients(client_ids)
    if mode.mode != POP:
        return allocate(client_id, ordered, members)
    if not 0 < mode.share_count < len(members) - 1:
        brokers = dict.fromkeys((one.topic, one.broker_name) for one in ordered)
        return [MessageQueue(topic, broker, ANY_QUEUE) for topic, broker in brokers]
    if client_id not in members:
        return []
    first = members.index(client_id)
    if len(members) > len(ordered):
        return [ordered[first % len(ordered)]] if ordered else []
    sharing = [members[(first + at) % len(members)] for at in range(mode.share_count + 1)]
    return [queue for one in sharing for queue in allocate(one, ordered, members)]
