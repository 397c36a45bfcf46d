"""Assignment of queues to the members of a group by the broker, requested with code 400.

A group that pulls is divided in the same way as by its members. A group that pops is not: each
member pops from any queue of every broker, or, if a share is configured, from its own queues and
those of the next members. Source: rocketmq 5.5.0 ``QueryAssignmentProcessor``.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from reput.broker.pop.pops import ANY_QUEUE
from reput.broker.settings.config import BrokerConfig
from reput.format import allocation, names
from reput.format.bodies import MessageQueue, TopicRouteData
from reput.store.tables.pop_tables import POP, PULL, RequestMode, RequestModeTable

_READ = 4
_STRATEGIES: Mapping[str, Callable[[int, int, Sequence[int]], Sequence[int]]] = {
    allocation.AVERAGELY: allocation.averagely_at,
    allocation.BY_CIRCLE: allocation.by_circle_at,
}


class RequestModes:
    """Request modes (pull or pop) of groups.

    Args:
        table: Modes that operators have set.
        config: The defaults.
    """

    def __init__(self, table: RequestModeTable, config: BrokerConfig) -> None:
        self.table = table
        self.config = config

    def find(self, topic: str, group: str) -> RequestMode:
        """Return the request mode of a group for a topic; retry topics are pulled by default."""
        configured = self.table.get(topic, group)
        if configured is not None:
            return configured
        default = str(self.config.default_message_request_mode)
        mode = PULL if names.is_retry_topic(topic) else default
        share_count = self.config.default_pop_share_queue_num if mode == POP else 0
        return RequestMode(topic, group, mode, share_count)


class TopicQueues:
    """The queues of a topic, numbered in the order of ``allocation.sorted_queues``.

    There may be 65,535 on each of many brokers: they are created on demand.

    Args:
        topic: The topic.
        counts: Queues by broker.
    """

    def __init__(self, topic: str, counts: Mapping[str, int]) -> None:
        self.topic = topic
        self.brokers = sorted(
            (broker for broker in counts if counts[broker] > 0), key=allocation.utf16
        )
        self._ends = list(accumulate(counts[broker] for broker in self.brokers))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def select(self, numbers: Iterable[int]) -> Iterator[MessageQueue]:
        """Yield queues by their numbers."""
        for number in numbers:
            broker_index = bisect_right(self._ends, number)
            first = self._ends[broker_index - 1] if broker_index else 0
            yield MessageQueue(self.topic, self.brokers[broker_index], number - first)


def queues_of(topic: str, route: TopicRouteData) -> TopicQueues:
    """Return the readable queues of a topic on all brokers."""
    readable = (queue_data for queue_data in route.queue_datas if queue_data.perm & _READ)
    return TopicQueues(
        topic, {queue_data.broker_name: queue_data.read_queue_nums for queue_data in readable}
    )


def divide(
    mode: RequestMode,
    strategy: str,
    client_id: str,
    queues: TopicQueues,
    client_ids: Sequence[str],
) -> Iterator[MessageQueue] | None:
    """Return the queues of a member; None if it keeps its current queues.

    Args:
        mode: Request mode of the group for the topic.
        strategy: Java's name of the allocation strategy.
        client_id: The member.
        queues: All queues of the topic.
        client_ids: All members of the group.
    """
    allocate = _STRATEGIES.get(strategy)
    if allocate is None or not client_ids:
        return None
    members, numbers = allocation.sorted_clients(client_ids), range(len(queues))
    if mode.mode == POP and not 0 < mode.share_count < len(members) - 1:
        return iter([MessageQueue(queues.topic, broker, ANY_QUEUE) for broker in queues.brokers])
    indexes = {member: index for index, member in reversed(list(enumerate(members)))}
    if client_id not in indexes:
        return iter(())
    first = indexes[client_id]
    if mode.mode != POP:
        return queues.select(allocate(first, len(members), numbers))
    if len(members) > len(numbers):
        return queues.select([first % len(numbers)] if numbers else [])
    sharing = (
        members[(first + distance) % len(members)] for distance in range(mode.share_count + 1)
    )
    shares = (allocate(indexes[member], len(members), numbers) for member in sharing)
    return queues.select(chain.from_iterable(shares))
