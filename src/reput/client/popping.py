"""Pops, acknowledgements and changes of invisible times, as requests to brokers.

Source: rocketmq 5.5.0 ``MQClientAPIImpl``, ``DefaultMQPushConsumerImpl``.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from reput.client.core import pop_handles, requests
from reput.client.core.pop_handles import ReplyHandles
from reput.client.core.subscription import Subscription
from reput.client.instance import ClientInstance
from reput.client.message import ReceivedMessage, received
from reput.client.pulling import set_namespace, wanted_among
from reput.errors import BrokerError, CorruptRecord, broker_error
from reput.format import bodies, headers, pop_codec, properties as props
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReplyHeader,
    NotificationHeader,
    PopMessageHeader,
    PopMessageReplyHeader,
)
from reput.format.pop_codec import BatchAckBody, Handle

ANY_QUEUE = -1
"""Queue id for any queue of a broker."""
_FROM_FIRST, _FROM_LAST = 0, 1
_EMPTY = (
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
)


class PoppedMessage(ReceivedMessage):
    """A popped message, invisible to other members for a while."""

    __slots__ = (
        "asked_topic",
        "call_id",
        "handed_out_ms",
        "handle",
        "held_until_ms",
        "order_count",
    )

    def hold(self, asked_topic: str, handle: Handle, popped_ms: int, order_count: int) -> None:
        """Record the handle of the message at its broker.

        Args:
            asked_topic: Topic of the pop, with namespace; also for a retried message.
            handle: The handle.
            popped_ms: Time of the pop by the local clock, in ms.
            order_count: Number of earlier deliveries, in order.
        """
        self.asked_topic = asked_topic
        self.handle = handle
        self.held_until_ms = popped_ms + handle.invisible_ms
        """End of the invisible time by the local clock, in ms since the epoch."""
        self.order_count = order_count
        self.handed_out_ms = 0
        self.call_id = ""
        """Id that connects the traces of one delivery."""

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries."""
        return self.order_count or super().reconsume_times


@dataclass(frozen=True, slots=True)
class Popped:
    """Result of a pop."""

    messages: list[PoppedMessage]
    unwanted: list[PoppedMessage]
    """Messages with a matching hash of their tags but other tags."""
    is_refused: bool = False
    """True if the broker did not hold the pop because too many are held."""


class Popper:
    """Pops and acknowledges for one group.

    Args:
        instance: Client instance for requests.
        group: The consumer group, by its full name.
        is_ordered: True to pop the messages of a queue in order.
        starts_at_end: True if a group without consumer offsets starts at the end of queues.
    """

    def __init__(
        self, instance: ClientInstance, group: str, *, is_ordered: bool, starts_at_end: bool
    ) -> None:
        self._instance = instance
        self.outages = instance.outages
        self._clock = instance.clock
        self._group = group
        self._is_ordered = is_ordered
        self._init_mode = _FROM_LAST if starts_at_end else _FROM_FIRST

    async def pop(
        self,
        queue: MessageQueue,
        wanted: Subscription,
        *,
        count_max: int,
        invisible_ms: int,
        hold_ms: int,
        timeout_ms: int,
        attempt_id: str,
    ) -> Popped:
        """Pop messages of a queue, or of any queue of a broker.

        Args:
            queue: The queue; its id may be ``ANY_QUEUE``.
            wanted: Subscription to the topic.
            count_max: Maximum number of messages, 1 to 32.
            invisible_ms: Invisible time in ms.
            hold_ms: Time for which the broker may hold the pop until messages arrive, in ms.
            timeout_ms: Timeout of the reply, in ms.
            attempt_id: In order: a pop whose reply was lost is repeated with the same id.

        Raises:
            NoRoute: The queue's broker is unknown.
            BrokerError: The broker refused; ``response_code`` has the reason.
            CorruptRecord, InvalidHeader: The reply cannot be decoded.
            RemotingError: No reply arrived.
        """
        address = await self._address(queue.topic, queue.broker_name)
        header = PopMessageHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=count_max,
            invisible_time=invisible_ms,
            poll_time=hold_ms,
            born_time=self._clock.now_ms(),
            init_mode=self._init_mode,
            exp_type=wanted.expression_type,
            exp=wanted.expression,
            order=self._is_ordered,
            attempt_id=attempt_id if self._is_ordered else None,
        )
        request = requests.make(RequestCode.POP_MESSAGE, header)
        reply = await self._instance.remoting.invoke(address, request, timeout_ms)
        if reply.code in _EMPTY:
            return Popped([], [], is_refused=reply.code == ResponseCode.POLLING_FULL)
        if reply.code != ResponseCode.SUCCESS:
            raise broker_error(reply.code, reply.remark, address)
        messages = received(reply.body, queue.broker_name, PoppedMessage)
        set_namespace(messages, self._instance.config.namespace)
        answer = headers.decode(PopMessageReplyHeader, reply.ext_fields)
        handles = ReplyHandles(answer, queue.broker_name)
        now_ms = self._clock.now_ms()
        for message in messages:
            handle = _handle(message, handles)
            message.hold(queue.topic, handle, now_ms, handles.taken_count(handle))
        matching = wanted_among(messages, wanted)
        unwanted = (
            [message for message in messages if message not in matching]
            if matching is not messages
            else []
        )
        return Popped(matching, unwanted)

    async def check(self, queue: MessageQueue) -> None:
        """Check that the broker would answer a pop: that the group and topic exist and are allowed.

        Args:
            queue: The queue; its id may be ``ANY_QUEUE``.

        Raises:
            NoRoute, BrokerError, RemotingError: As ``pop``.
        """
        address = await self._address(queue.topic, queue.broker_name)
        header = NotificationHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            poll_time=0,
            born_time=self._clock.now_ms(),
        )
        try:
            await self._instance.ask(address, requests.make(RequestCode.NOTIFICATION, header))
        except BrokerError as error:
            # Clocks that differ by half a second are no obstacle: pops have more time.
            if error.response_code not in _EMPTY:
                raise

    async def ack(self, messages: Sequence[PoppedMessage]) -> None:
        """Acknowledge messages; messages that are no longer invisible are ignored.

        Args:
            messages: At least one, all of one broker.

        Raises:
            NoRoute: The broker is unknown.
            BrokerError: The broker refused.
            RemotingError: No reply arrived.
        """
        first = messages[0]
        if len(messages) == 1:
            await self._ack_one(first)
            return
        held = ((message.asked_topic, message.handle) for message in messages)
        body = BatchAckBody(
            broker_name=first.broker_name, acks=pop_handles.batch_acks(self._group, held)
        )
        address = await self._address(first.asked_topic, first.broker_name)
        request = requests.make(RequestCode.BATCH_ACK_MESSAGE, body=bodies.encode(body))
        try:
            await self._instance.ask(address, request)
        except BrokerError as error:
            if error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            for message in messages:  # a broker of 5.0
                await self._ack_one(message)

    async def _ack_one(self, message: PoppedMessage) -> None:
        handle = message.handle
        header = AckMessageHeader(
            consumer_group=self._group,
            topic=self._real_topic(message),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.queue_offset,
        )
        address = await self._address(message.asked_topic, message.broker_name)
        await self._instance.ask(address, requests.make(RequestCode.ACK_MESSAGE, header))

    async def change(
        self, message: PoppedMessage, invisible_ms: int, *, is_attempt: bool = True
    ) -> None:
        """Change the invisible time of a message.

        Args:
            message: The message; it gets a new handle.
            invisible_ms: New invisible time, counted from now; 0: visible at once.
            is_attempt: Whether the delivery counts as an attempt; brokers before 5.5 always count
                it.

        Raises:
            NoRoute: Its broker is unknown.
            BrokerError: The broker refused: the message is no longer invisible.
            RemotingError: No reply arrived.
        """
        handle = message.handle
        header = ChangeInvisibleTimeHeader(
            consumer_group=self._group,
            topic=self._real_topic(message),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
            suspend=None if is_attempt else True,
        )
        address = await self._address(message.asked_topic, message.broker_name)
        request = requests.make(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        reply = await self._instance.ask(address, request)
        answer = headers.decode(ChangeInvisibleTimeReplyHeader, reply.ext_fields)
        message.handle = pop_handles.changed(handle, answer)
        message.held_until_ms = self._clock.now_ms() + invisible_ms

    def _real_topic(self, message: PoppedMessage) -> str:
        return pop_codec.topic_of(message.handle.kind, message.asked_topic, self._group)

    async def _address(self, topic: str, broker_name: str) -> str:
        return (await self._instance.route(topic)).master(broker_name)


def _handle(message: PoppedMessage, handles: ReplyHandles) -> Handle:
    """Return the handle of a message; for a damaged one, made from its position."""
    checkpoint, kind = None, pop_codec.NORMAL
    with contextlib.suppress(CorruptRecord):
        checkpoint = message.properties.get(props.POP_CHECKPOINT)
        if checkpoint is None and handles.kinds != {kind}:
            kind = pop_codec.kind_of(message.stored.topic)
    return handles.of(kind, message.queue_id, message.queue_offset, checkpoint)
