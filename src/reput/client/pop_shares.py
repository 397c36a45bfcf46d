"""The sources that a member pops from: any queue of each broker, or the brokers' assignments.

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
    """Determines the sources of this member, periodically.

    Args:
        instance: Client instance for requests.
        membership: Group and subscriptions.
        apply: As for ``Rebalance``.
        asks_brokers: Request assignments (400); otherwise pop from any queue of each broker.
    """

    def __init__(
        self, instance: ClientInstance, membership: Membership, apply: Apply, *, asks_brokers: bool
    ) -> None:
        super().__init__(instance, membership, apply)
        self._asks_brokers = asks_brokers

    async def share(self, topic: str) -> set[MessageQueue]:
        """Return the sources of a topic: queues, or brokers with queue id ``ANY_QUEUE``.

        Raises:
            NoRoute, RemotingError, InvalidBody: They cannot be determined.
        """
        route = await self._instance.route(topic)
        if not self._asks_brokers:
            names = {queue.broker_name for queue in route.subscribe_queues}
            return {
                MessageQueue(topic=topic, broker_name=name, queue_id=ANY_QUEUE) for name in names
            }
        answer = await self.assignments(topic)
        if answer is None:
            raise NoRoute(topic, "its brokers have no heartbeat of this member yet")
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
        return {share.message_queue for share in answer}

    async def _check_mode(self, topic: str) -> None:
        """Do nothing: this member always pops."""
