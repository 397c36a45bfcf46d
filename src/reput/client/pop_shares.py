"""What a member of a group pops from: any queue of each broker, or what brokers say.

Source: rocketmq 5.5.0 ``RebalanceImpl.getRebalanceResultFromBroker``.
"""

import logging

from reput.client.core.route_cache import NoRoute
from reput.client.instance import ClientInstance
from reput.client.membership import POP, Apply, Membership, Rebalance
from reput.client.popping import ANY_QUEUE
from reput.format.bodies import MessageQueue

log = logging.getLogger(__name__)


class PopShares(Rebalance):
    """Finds out what to pop from, again and again.

    Args:
        instance: Whom brokers are asked through.
        membership: Whose.
        apply: As with ``Rebalance``.
        asks_brokers: Ask with 400; else any queue of each broker is popped from.
    """

    def __init__(
        self, instance: ClientInstance, membership: Membership, apply: Apply, *, asks_brokers: bool
    ) -> None:
        super().__init__(instance, membership, apply)
        self._asks_brokers = asks_brokers

    async def share(self, topic: str) -> set[MessageQueue]:
        """Return what is popped of a topic: queues, or with ``ANY_QUEUE`` as id whole brokers.

        Raises:
            NoRoute, RemotingError, InvalidBody: It cannot be found out.
        """
        route = await self._instance.route(topic)
        if not self._asks_brokers:
            names = {one.broker_name for one in route.subscribe_queues}
            return {MessageQueue(topic=topic, broker_name=one, queue_id=ANY_QUEUE) for one in names}
        answer = await self.assignments(topic)
        if answer is None:
            raise NoRoute(topic, "its brokers have not heard of this member yet")
        new = self._new_mode(topic, answer, POP)
        if new == POP:
            log.warning("group %s is to pop topic %s again", self._membership.group, topic)
        elif new:
            log.warning(
                "group %s is to pull topic %s, not to pop it (setConsumeMode): this member pops"
                " from the queues that are its own",
                self._membership.group,
                topic,
            )
        return {one.message_queue for one in answer}

    async def _look_at_mode(self, topic: str) -> None:
        """Nothing: this member pops in any case."""
