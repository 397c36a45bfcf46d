"""Lite topics (5.5): subscriptions of clients, and pops of all lite topics of a client.

Source: rocketmq-proxy 5.5.0 ``ClientActivity.syncLiteSubscription``, ``ConsumerProcessor``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reput.broker.lite import subscriptions
from reput.client.core import requests
from reput.clock import Clock
from reput.errors import CorruptRecord
from reput.format import bodies, headers, names, pop_codec, properties as props
from reput.format.bodies import LiteOffset, LiteSubscription, LiteSubscriptionsBody
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import PopLiteMessageHeader, PopLiteMessageReplyHeader
from reput.format.message import StoredMessage
from reput.format.pop_codec import Handle
from reput.grpc import receiving, settings, statuses, validation
from reput.grpc.backend import GroupFacts
from reput.grpc.caller import Pause
from reput.grpc.clients import ASK_MS, Client
from reput.grpc.conversion import Receipt
from reput.grpc.receiving import Received, ReceiveParameters
from reput.grpc.statuses import Code, StatusError
from reput.grpc.wire.grpc_messages import LiteSubscriptionAction

UNACKNOWLEDGED_MAX = 100
"""Messages of lite topics that a client holds, after which it receives no more."""
_QUEUE_ID = 0
_ACTIONS = frozenset(LiteSubscriptionAction)
_ADDING = (LiteSubscriptionAction.PARTIAL_ADD.name, LiteSubscriptionAction.COMPLETE_ADD.name)
_OFFSETS = {"policy": "POLICY", "offset": "OFFSET", "tail_n": "TAIL_N", "timestamp": "TIMESTAMP"}


def is_lite(client: Client) -> bool:
    """Return whether a client reads lite topics."""
    return (client.settings or {}).get("client_type") in settings.LITE


# --- subscriptions ---------------------------------------------------------------


async def change_of(client: Client, request: Mapping[str, Any], pause: Pause) -> LiteSubscription:
    """Return the change of a SyncLiteSubscription. Raises ``StatusError``."""
    number = request.get("action", 0)
    if number not in _ACTIONS:
        allowed = ", ".join(f"{each.value} {each.name}" for each in LiteSubscriptionAction)
        raise StatusError(
            Code.INTERNAL_SERVER_ERROR,
            f"unknown LiteSubscriptionAction: UNRECOGNIZED: it is {number}; allowed: {allowed}",
        )
    action = LiteSubscriptionAction(number)
    lite_topics = list(request.get("lite_topic_set", ()))
    option = None
    if action is LiteSubscriptionAction.PARTIAL_ADD:
        for lite_topic in lite_topics:
            await pause()
            validation.check_lite_topic(lite_topic)
        for name, kind in _OFFSETS.items():
            if name in request.get("offset_option", {}):
                option = LiteOffset(type=kind, value=int(request["offset_option"][name]))
    return LiteSubscription(
        action=action.name,
        client_id=client.client_id,
        group=request.get("group", {}).get("name", ""),
        topic=request.get("topic", {}).get("name", ""),
        lite_topic_set=lite_topics,
        offset_option=option,
        version=request.get("version", 0),
    )


async def change(client: Client, brokers: Sequence[str], change: LiteSubscription) -> None:
    """Change subscriptions at brokers.

    Raises:
        StatusError: A broker refused.
        ReputError: There is no connection, or no reply.
    """
    body = bodies.encode(LiteSubscriptionsBody(subscription_set=[change]))
    for broker_name in brokers:
        request = Command(RequestCode.LITE_SUBSCRIPTION_CTL, ext_fields={}, body=body)
        statuses.check(await client.ask(broker_name, request))


def farewell(client: Client) -> LiteSubscription:
    """Return the change that removes all subscriptions of a client."""
    subscription = (client.settings or {}).get("subscription", {})
    group = subscription.get("group", {}).get("name", "")
    entries = subscription.get("subscriptions", ())
    topics = [entry.get("topic", {}).get("name", "") for entry in entries]
    return LiteSubscription(
        action=LiteSubscriptionAction.COMPLETE_REMOVE.name,
        client_id=client.client_id,
        group=group,
        topic=next(iter(topics), ""),
    )


def check_settings(sent: Mapping[str, Any], group: GroupFacts) -> None:
    """Check that consumers of lite topics, and only these, are in groups that read them.

    Raises:
        StatusError: They are not, or read another parent.
    """
    is_reader = sent.get("client_type") in settings.LITE
    if is_reader and not group.lite_parent:
        text = f"regular group cannot use LITE mode: {group.name}; it has no lite.bind.topic"
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, text)
    if group.lite_parent and not is_reader:
        text = f"lite group must use LITE mode: {group.name}; it has lite.bind.topic"
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, text)
    for entry in sent["subscription"].get("subscriptions", ()) if is_reader else ():
        check_parent(group, entry.get("topic", {}).get("name", ""))


def check_parent(group: GroupFacts, topic: str) -> None:
    """Check that a group reads the lite topics of a topic. Raises ``StatusError``."""
    if group.lite_parent != topic:
        raise StatusError(
            Code.ILLEGAL_TOPIC,
            f"lite group {group.name} is expected to bind topic {group.lite_parent or 'null'}, "
            f"but actual is {topic}: the group's attribute lite.bind.topic decides",
        )


def check_quota(group: GroupFacts, change: LiteSubscription) -> None:
    """Check the lite topics that a change adds; brokers before 5.5.1 do not.

    Raises:
        StatusError: They are more than a client of the group may have.
    """
    count = len(set(change.lite_topic_set or ()))
    if change.action in _ADDING and count > group.lite_quota:
        raise StatusError(
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            subscriptions.quota_exceeded(change.client_id, change.group, count, group.lite_quota),
        )


# --- pops ------------------------------------------------------------------------


async def pop(client: Client, wanted: ReceiveParameters, clock: Clock) -> list[Received]:
    """Pop messages of the lite topics of a client; none if there were none in time.

    Raises:
        StatusError: It holds too many messages, or the broker refused.
        ReputError: There is no connection, or no reply.
    """
    if len(client.renewals) > UNACKNOWLEDGED_MAX:
        raise StatusError(
            Code.FORBIDDEN,
            f"The client [{client.client_id}] has too many unacked messages. "
            f"Unacked count: {len(client.renewals)}; allowed: {UNACKNOWLEDGED_MAX}",
        )
    header = PopLiteMessageHeader(
        client_id=client.client_id,
        consumer_group=wanted.group.name,
        topic=wanted.topic,
        max_msg_num=wanted.count_max,
        invisible_time=wanted.invisible_ms,
        poll_time=wanted.poll_ms,
        born_time=clock.now_ms(),
        attempt_id=wanted.attempt_id,
    )
    request = requests.make(RequestCode.POP_LITE_MESSAGE, header)
    reply = await client.ask(wanted.broker_name, request, wanted.poll_ms + ASK_MS)
    if reply.code in receiving.EMPTY:
        return []
    statuses.check(reply)
    answer = headers.decode(PopLiteMessageReplyHeader, reply.ext_fields)
    return list(_received(receiving.messages_of(reply.body), answer, wanted))


def _received(
    messages: Iterator[StoredMessage], answer: PopLiteMessageReplyHeader, wanted: ReceiveParameters
) -> Iterator[Received]:
    counts = (answer.order_count_info or "").split(";")
    for number, message in enumerate(messages):
        lite_topic = message.properties.get(props.LITE_TOPIC, "")
        queue_offset = _queue_offset(message, names.lite_queue(wanted.topic, lite_topic))
        handle = Handle(
            queue_offset,
            answer.pop_time,
            answer.invisible_time,
            answer.revive_qid,
            pop_codec.NORMAL,
            wanted.broker_name,
            _QUEUE_ID,
            queue_offset,
        )
        taken = int(counts[number]) if number < len(counts) and counts[number].isdigit() else 0
        receipt = Receipt(handle, message.physical_offset, lite_topic)
        yield Received(message, receipt, taken + 1, answer.pop_time + answer.invisible_time)


def _queue_offset(message: StoredMessage, queue: str) -> int:
    """Return the queue offset of a message in a light queue. Raises ``CorruptRecord``."""
    queues = message.properties.get(props.INNER_MULTI_DISPATCH, "").split(props.LMQ_SEPARATOR)
    offsets = message.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(props.LMQ_SEPARATOR)
    try:
        return int(offsets[queues.index(queue)])
    except (ValueError, IndexError) as error:
        raise CorruptRecord(
            f"the message at physical offset {message.physical_offset} has no offset in {queue}"
        ) from error
