"""Single pulls: choice of the broker, and the request.

Source: rocketmq 4.9.8 ``PullAPIWrapper``.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from reput.client.core import pull_replies, requests
from reput.client.core.pull_replies import PulledRecords, PullStatus
from reput.client.core.subscription import Subscription
from reput.client.instance import ClientInstance
from reput.client.message import R, ReceivedMessage, received
from reput.errors import CorruptRecord
from reput.format import headers
from reput.format.bodies import MessageQueue
from reput.format.codes import MASTER_ID, PullFlag, RequestCode
from reput.format.command import Command
from reput.remoting.client import cancel


@dataclass(frozen=True, slots=True)
class Pulled:
    """Result of a pull."""

    status: PullStatus
    messages: list[ReceivedMessage]
    """Messages that match the subscription, in the order of their offsets."""
    next_offset: int
    """Queue offset of the next pull."""
    min_offset: int
    max_offset: int


class Puller:
    """Pulls for one group.

    Args:
        instance: Client instance for requests.
        group: The consumer group, by its full name.
        is_subscribed: True if brokers have the subscription from heartbeats; otherwise each pull
            contains it.
    """

    def __init__(self, instance: ClientInstance, group: str, *, is_subscribed: bool) -> None:
        self._instance = instance
        self._group = group
        self._is_subscribed = is_subscribed
        self._broker_ids: dict[MessageQueue, int] = {}  # brokers that replies suggested

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: Subscription,
        *,
        count_max: int,
        commit_offset: int | None,
        hold_ms: int,
        timeout_ms: int,
    ) -> Pulled:
        """Pull messages of a queue from ``queue_offset`` on.

        Args:
            queue: The queue.
            queue_offset: Queue offset of the first message.
            subscription: Subscription to the topic.
            count_max: Maximum number of messages; brokers have their own limit, usually 32.
            commit_offset: The group's consumer offset to commit along with the pull.
            hold_ms: Time for which the broker may hold the pull until a message arrives, in ms; 0:
                none.
            timeout_ms: Timeout of the reply, in ms.

        Raises:
            NoRoute: The queue's broker is unknown.
            BrokerError: The broker refused; ``response_code`` has the reason.
            CorruptRecord: The reply has incomplete records.
            RemotingError: No reply arrived.
        """
        pulled = await self.pull_records(
            queue,
            queue_offset,
            subscription,
            count_max=count_max,
            commit_offset=commit_offset,
            hold_ms=hold_ms,
            timeout_ms=timeout_ms,
        )
        return Pulled(
            pulled.status,
            self.messages(pulled.records, queue.broker_name, subscription),
            pulled.next_offset,
            pulled.min_offset,
            pulled.max_offset,
        )

    def messages(
        self, data: bytes, broker_name: str, subscription: Subscription
    ) -> list[ReceivedMessage]:
        """Return those messages of a reply that match. Raises ``CorruptRecord``."""
        messages = received(data, broker_name)
        set_namespace(messages, self._instance.config.namespace)
        return wanted_among(messages, subscription)

    async def pull_records(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: Subscription,
        *,
        count_max: int,
        commit_offset: int | None,
        hold_ms: int,
        timeout_ms: int,
    ) -> PulledRecords:
        """Pull as ``pull`` does, without decoding the reply. Raises the same, but no damage."""
        address, is_master = await self._address(queue)
        request = self._request(
            queue,
            queue_offset,
            subscription,
            is_master=is_master,
            count_max=count_max,
            commit_offset=commit_offset,
            hold_ms=hold_ms,
        )
        reply = await self._instance.remoting.invoke(address, request, timeout_ms)
        return self._result(queue, reply, address)

    async def pull_ahead(
        self,
        queue: MessageQueue,
        ranges: Sequence[tuple[int, int]],
        subscription: Subscription,
        *,
        timeout_ms: int,
    ) -> AsyncGenerator[PulledRecords, None]:
        """Send a pull for each range of queue offsets at once; yield the results in this order.

        A result may end before its range does. Nothing is committed, and brokers hold no pull.
        Raises as ``pull_records``.
        """
        address, is_master = await self._address(queue)
        first = self._request(
            queue, 0, subscription, is_master=is_master, count_max=0, commit_offset=None, hold_ms=0
        )
        fields = first.ext_fields or {}
        pulls = [
            Command(
                first.code,
                ext_fields={**fields, "queueOffset": str(low), "maxMsgNums": str(high - low)},
            )
            for low, high in ranges
        ]
        replies = await self._instance.remoting.send_requests(address, pulls, timeout_ms)
        try:
            for reply in replies:
                yield self._result(queue, await reply, address)
        finally:
            cancel(replies)

    async def _address(self, queue: MessageQueue) -> tuple[str, bool]:
        """Return the address to pull from, and whether it belongs to the master."""
        route = await self._instance.route(queue.topic)
        broker_id = self._broker_ids.get(queue, MASTER_ID)
        address = route.any_address(queue.broker_name, broker_id)
        return address, address == route.address(queue.broker_name)

    def _request(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: Subscription,
        *,
        is_master: bool,
        count_max: int,
        commit_offset: int | None,
        hold_ms: int,
    ) -> Command:
        flag = int(PullFlag.SUSPEND) if hold_ms else 0
        if commit_offset is not None and is_master:  # a slave would drop it
            flag |= PullFlag.COMMIT_OFFSET
        if not self._is_subscribed:
            flag |= PullFlag.HAS_SUBSCRIPTION
        header = headers.PullMessageHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=count_max,
            sys_flag=flag,
            commit_offset=commit_offset or 0,
            suspend_timeout_millis=hold_ms,
            subscription=None if self._is_subscribed else subscription.expression,
            sub_version=subscription.version,
            expression_type=subscription.expression_type,
        )
        return requests.make(RequestCode.PULL_MESSAGE, header)

    def _result(self, queue: MessageQueue, reply: Command, address: str) -> PulledRecords:
        pulled = pull_replies.read(reply, address)
        self._broker_ids[queue] = pulled.broker_id
        return pulled

    def forget(self, queue: MessageQueue) -> None:
        """Pull from the master again."""
        self._broker_ids.pop(queue, None)


def set_namespace(messages: Sequence[ReceivedMessage], namespace: str) -> None:
    """Remove the namespace of the client from the topics of messages."""
    if namespace:
        for message in messages:
            message.namespace = namespace


def wanted_among(messages: list[R], subscription: Subscription) -> list[R]:
    """Return messages that match a subscription, and damaged ones: the listener notices."""
    try:
        return subscription.matching(messages)
    except CorruptRecord:
        return [message for message in messages if _is_wanted(message, subscription)]


def _is_wanted(message: ReceivedMessage, subscription: Subscription) -> bool:
    try:
        return bool(subscription.matching([message]))
    except CorruptRecord:
        return True
