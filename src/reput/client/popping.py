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
from reput.client.pulling import wanted_among
from reput.errors import BrokerError, CorruptRecord
from reput.format import bodies, headers, pop_codec, properties as props
from reput.format.bodies import MessageQueue
from reput.format.codes import RequestCode, ResponseCode
from reput.format.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReplyHeader,
    PopMessageHeader,
    PopMessageReplyHeader,
)
from reput.format.pop_codec import BatchAckBody, Handle

ANY_QUEUE = -1
"""Instead of a queue id: whichever queue of the broker has messages."""
_FROM_FIRST, _FROM_LAST = 0, 1
_EMPTY = (
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
)


class PoppedMessage(ReceivedMessage):
    """A message that is held: nobody else of the group sees it for a while."""

    __slots__ = (
        "asked_topic",
        "call_id",
        "handed_out_ms",
        "handle",
        "held_until_ms",
        "order_count",
    )

    def hold(self, asked_topic: str, handle: Handle, popped_ms: int, order_count: int) -> None:
        """Take note of what names the message at its broker.

        Args:
            asked_topic: What was popped, with namespace; also of a retried message.
            handle: The name.
            popped_ms: When, by this machine's clock.
            order_count: In order: how often it was taken before.
        """
        self.asked_topic = asked_topic
        self.handle = handle
        self.held_until_ms = popped_ms + handle.invisible_ms
        """When others see it, by this machine's clock, ms since the epoch."""
        self.order_count = order_count
        self.handed_out_ms = 0
        self.call_id = ""
        """What its traces have in common."""

    @property
    def reconsume_times(self) -> int:
        """How often it was handed out before."""
        return self.order_count or super().reconsume_times


@dataclass(frozen=True, slots=True)
class Popped:
    """What a pop brought."""

    messages: list[PoppedMessage]
    unwanted: list[PoppedMessage]
    """The broker took them for wanted, by the hashes of their tags."""
    is_refused: bool = False
    """So many wait already that the broker did not let this one wait."""


class Popper:
    """Pops for one group, and tells brokers what became of it.

    Args:
        instance: Whom brokers are asked through.
        group: The consumer group, by its full name.
        is_ordered: Whether the messages of a queue are taken in their order.
        starts_at_end: Whether a group that has read nothing begins at what comes next.
    """

    def __init__(
        self, instance: ClientInstance, group: str, *, is_ordered: bool, starts_at_end: bool
    ) -> None:
        self._instance = instance
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
        """Take messages of a queue, or of any queue of a broker.

        Args:
            queue: Where from; its id may be ``ANY_QUEUE``.
            wanted: What is wanted of the topic.
            count_max: Most messages, 1 to 32.
            invisible_ms: How long nobody else sees them.
            hold_ms: How long the broker may wait for some to come.
            timeout_ms: How long the answer may take.
            attempt_id: In order: a pop whose answer was lost is asked again with the same one.

        Raises:
            NoRoute: The queue's broker is not there.
            BrokerError: The broker refuses; ``response_code`` says why.
            CorruptRecord, InvalidHeader: The answer cannot be read.
            RemotingError: There is no answer.
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
            raise BrokerError(reply.code, reply.remark, address)
        messages = received(reply.body, queue.broker_name, PoppedMessage)
        answer = headers.decode(PopMessageReplyHeader, reply.ext_fields)
        handles = ReplyHandles(answer, queue.broker_name)
        now_ms = self._clock.now_ms()
        for one in messages:
            handle = _handle(one, handles)
            one.hold(queue.topic, handle, now_ms, handles.taken_count(handle))
        found = wanted_among(messages, wanted)
        unwanted = [one for one in messages if one not in found] if found is not messages else []
        return Popped(found, unwanted)

    async def ack(self, messages: Sequence[PoppedMessage]) -> None:
        """Tell a broker that messages are done with; one that is not held any more is left alone.

        Args:
            messages: At least one, all of one broker.

        Raises:
            NoRoute: The broker is not there.
            BrokerError: It refuses.
            RemotingError: There is no answer.
        """
        first = messages[0]
        if len(messages) == 1:
            await self._ack_one(first)
            return
        held = ((one.asked_topic, one.handle) for one in messages)
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
            for one in messages:  # a broker of 5.0
                await self._ack_one(one)

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
        """Have a message seen by others earlier or later than it would be.

        Args:
            message: The message; it has another handle then.
            invisible_ms: How long from now on; 0: at once.
            is_attempt: Whether that it was handed out counts as an attempt; brokers before 5.5
                always count it.

        Raises:
            NoRoute: Its broker is not there.
            BrokerError: The broker refuses: it is not held any more.
            RemotingError: There is no answer.
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
    """Return the handle of a message; of one that is too damaged to tell more, by its place."""
    checkpoint, kind = None, pop_codec.NORMAL
    with contextlib.suppress(CorruptRecord):
        checkpoint = message.properties.get(props.POP_CHECKPOINT)
        if checkpoint is None and handles.kinds != {kind}:
            kind = pop_codec.kind_of(message.stored.topic)
    return handles.of(kind, message.queue_id, message.queue_offset, checkpoint)
