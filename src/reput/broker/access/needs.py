"""What each request needs: the resources it touches, and the actions of which one suffices.

The table follows rocketmq 5.5.0 ``DefaultAuthorizationContextBuilder`` and the annotations of its
headers, and checks what it leaves out: codes without an entry, and records of other topics
(docs/reference/protocol.md). Headers and bodies are decoded as the processors decode them, so that
both see the same names. A record that a request names by its place counts as its own topic.

A ``%RETRY%`` topic is its group: ``%RETRY%g`` is group g. ``%DLQ%g`` is a topic.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from reput.broker import limits
from reput.broker.access.rules import SUPER_NEED, Need
from reput.errors import CorruptRecord
from reput.format import (
    bodies,
    headers,
    message as record,
    message_id as ids,
    names,
    pop_codec,
    properties as props,
)
from reput.format.access import Action, ResourceType
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.format.headers import Header
from reput.format.message import StoredMessage


@dataclass(frozen=True, slots=True)
class Facts:
    """State of the broker that the needs of requests depend on."""

    cluster_name: str
    """Name of the broker's cluster, which is a resource."""
    record_at: Callable[[int], bytes | None]
    """Returns the record at a physical offset."""
    half_at: Callable[[int], StoredMessage | None]
    """Returns the half message at a physical offset."""


Rule = Callable[[Facts, Command], Iterable[Need]]
"""Returns the needs of a request."""
Actions = frozenset[Action]

PUB, SUB, GET = frozenset({Action.PUB}), frozenset({Action.SUB}), frozenset({Action.GET})
CREATE, UPDATE, DELETE = (
    frozenset({action}) for action in (Action.CREATE, Action.UPDATE, Action.DELETE)
)
SUB_OR_GET = SUB | GET
SUB_OR_UPDATE = SUB | UPDATE
CREATE_OR_UPDATE = CREATE | UPDATE
GET_OR_LIST = GET | frozenset({Action.LIST})


def needs_of(facts: Facts, request: Command) -> Sequence[Need]:
    """Return the needs of a request; a code without an entry needs a super user.

    Raises:
        InvalidHeader: Its header cannot be decoded.
        InvalidBody: Its body cannot be decoded.
        LimitExceeded: Its body is too large.
    """
    rule = NEEDS.get(request.code)
    if rule is None:
        return (SUPER_NEED,)
    return tuple(rule(facts, request))


# --- resources ----------------------------------------------------------------------


def topic_need(topic: str, actions: Actions) -> Need:
    """Return the need of a topic, or of its group if it is a retry topic."""
    if names.is_retry_topic(topic):
        return group_need(topic, actions)
    return Need(ResourceType.TOPIC, topic, actions)


def group_need(group: str, actions: Actions) -> Need:
    """Return the need of a group; the name may be that of its retry topic.

    No group has a ``+`` in its name: what follows it is the topic of a pop retry topic.
    """
    name = group.removeprefix(names.RETRY_PREFIX)
    return Need(ResourceType.GROUP, name.partition("+")[0], actions)


def _sent_to(topic: str) -> Need:
    """Return the need of a message's topic, or of its group if the message is to be retried."""
    return topic_need(topic, SUB if names.is_retry_topic(topic) else PUB)


def _read_by(group: str, topic: str, actions: Actions) -> list[Need]:
    """Return the needs of a group that reads a topic, or its own retry topic.

    A pop retry topic is that of a group and a topic; another group's retry topic is for super
    users.
    """
    needs = [group_need(group, actions)]
    own = names.retry_topic(group)
    if not names.is_retry_topic(topic):
        needs.append(topic_need(topic, actions))
    elif topic != own:
        if not topic.startswith(f"{own}+"):
            return [SUPER_NEED]
        needs.append(topic_need(topic.removeprefix(f"{own}+"), actions))
    return needs


def _popped_by(group: str, topic: str, actions: Actions) -> list[Need]:
    """Return the needs of a group for the topic of a popped message, with any pop retry topic."""
    popped = names.popped_topic(topic, group)
    return _read_by(group, topic if names.is_retry_topic(popped) else popped, actions)


def _record_needs(data: bytes | None, actions: Actions, group: str | None = None) -> list[Need]:
    """Return the needs of a record; none without a record, which the processor reports.

    Args:
        data: The record.
        actions: The actions.
        group: Group that must be that of the record, if it is in a retry topic; None: any.
    """
    if data is None:
        return []
    try:
        stored = record.decode(data, check_crc=False)
    except CorruptRecord:
        return [SUPER_NEED]
    topic = topic_of(stored)
    if group is None or not names.is_retry_topic(topic):
        return [topic_need(topic, actions)]
    origin = stored.properties.get(props.RETRY_TOPIC, "")
    needs = _popped_by(group, topic, actions)
    return [*needs, topic_need(origin, actions)] if origin else needs


def topic_of(stored: StoredMessage) -> str:
    """Return the topic of a record; the destination if the message waits in a system topic.

    The property with the destination is the broker's in such a topic, and anybody's elsewhere.
    """
    if stored.topic in names.WRITTEN_BY_BROKERS:
        return stored.properties.get(props.REAL_TOPIC, stored.topic)
    return stored.topic


# --- kinds of rules -----------------------------------------------------------------


def _cluster(actions: Actions) -> Rule:
    return lambda facts, request: (Need(ResourceType.CLUSTER, facts.cluster_name, actions),)


def _in_header(
    kind: type[Header],
    *,
    topic: Actions | None = None,
    group: Actions | None = None,
    groups: Mapping[str, Actions] | None = None,
) -> Rule:
    """Return the rule of a header's names.

    Args:
        kind: The header.
        topic: Actions on the field ``topic``.
        group: Actions on the field ``consumer_group``, ``group`` or ``group_name``.
        groups: Field with a group -> actions, in place of ``group``.
    """
    fields = dict(groups or {})
    if group is not None:
        known = {"consumer_group", "group", "group_name"} & set(kind.__struct_fields__)
        fields[known.pop()] = group
    optional = {field.name for field in msgspec.structs.fields(kind) if not field.required}

    def needs(facts: Facts, request: Command) -> Iterable[Need]:
        header: Any = headers.decode(kind, request.ext_fields)
        for field, actions in fields.items():
            if (name := getattr(header, field)) or field not in optional:
                yield group_need(name, actions)
        if topic is not None and (header.topic or "topic" not in optional):
            yield topic_need(header.topic, topic)

    return needs


def _reading(kind: type[Header], actions: Actions = SUB) -> Rule:
    """Return the rule of a header with a group that reads a topic."""

    def needs(facts: Facts, request: Command) -> Iterable[Need]:
        header: Any = headers.decode(kind, request.ext_fields)
        return _read_by(header.consumer_group, header.topic, actions)

    return needs


def _popped(kind: type[Header]) -> Rule:
    """Return the rule of a header with the handle of a popped message."""

    def needs(facts: Facts, request: Command) -> Iterable[Need]:
        header: Any = headers.decode(kind, request.ext_fields)
        return _popped_by(header.consumer_group, header.topic, SUB)

    return needs


# --- single rules -------------------------------------------------------------------


def _send_header(request: Command) -> headers.SendMessageHeader:
    if request.code in (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE):
        return headers.decode(headers.SendMessageHeader, request.ext_fields)
    return headers.decode_v2(request.ext_fields)


def _send(facts: Facts, request: Command) -> Iterable[Need]:
    header = _send_header(request)
    yield _sent_to(header.topic)
    text = header.properties or ""
    if props.INNER_MULTI_DISPATCH in text:
        light = props.decode(text.encode("utf-8", "surrogatepass"))
        for topic in light.get(props.INNER_MULTI_DISPATCH, "").split(props.LMQ_SEPARATOR):
            if topic:
                yield _sent_to(topic)


def _send_reply(facts: Facts, request: Command) -> Iterable[Need]:
    if _send_header(request).topic == facts.cluster_name + names.REPLY_TOPIC_SUFFIX:
        return ()
    return _send(facts, request)


def _send_back(facts: Facts, request: Command) -> Iterable[Need]:
    header = headers.decode(headers.SendBackHeader, request.ext_fields)
    return [
        group_need(header.group, SUB),
        *_record_needs(facts.record_at(header.offset), SUB, header.group),
    ]


def _lite_subscriptions(facts: Facts, request: Command) -> Iterable[Need]:
    for change in bodies.decode(bodies.LiteSubscriptionsBody, request.body).subscription_set or ():
        yield from _read_by(change.group, change.topic, SUB)


def _end_transaction(facts: Facts, request: Command) -> Iterable[Need]:
    header = headers.decode(headers.EndTransactionHeader, request.ext_fields)
    topics = dict.fromkeys([(request.ext_fields or {}).get("topic", "")])
    half = facts.half_at(header.commit_log_offset)
    if half is not None:
        topics[topic_of(half)] = None
    return [_sent_to(topic) for topic in topics if topic]


def _resume_check(facts: Facts, request: Command) -> Iterable[Need]:
    header = headers.decode(headers.ResumeCheckHeader, request.ext_fields)
    return _needs_of_id(facts, header.msg_id, UPDATE)


def _needs_of_id(facts: Facts, offset_id: str, actions: Actions) -> list[Need]:
    """Return the needs of the record of an offset id; none if it is no id."""
    try:
        physical_offset = ids.decode_offset_id(offset_id).physical_offset
    except ValueError:
        return []
    return _record_needs(facts.record_at(physical_offset), actions)


def _view_message(facts: Facts, request: Command) -> Iterable[Need]:
    header = headers.decode(headers.ViewMessageHeader, request.ext_fields)
    needs = _record_needs(facts.record_at(header.offset), SUB_OR_GET)
    if header.topic and needs and topic_need(header.topic, SUB_OR_GET) not in needs:
        needs.append(SUPER_NEED)
    return needs


def _consume_directly(facts: Facts, request: Command) -> Iterable[Need]:
    header = headers.decode(headers.ConsumeDirectlyHeader, request.ext_fields)
    topic = (request.ext_fields or {}).get("topic")
    return [
        group_need(header.consumer_group, SUB),
        *([topic_need(topic, SUB)] if topic else []),
        *_needs_of_id(facts, header.msg_id or "", SUB),
    ]


def _batch_ack(facts: Facts, request: Command) -> Iterable[Need]:
    limits.ACK_BODY_BYTES.check(len(request.body))
    acks = pop_codec.decode_batch_ack(request.body).acks if request.body else ()
    places = dict.fromkeys((ack.group, ack.topic) for ack in acks)
    return [need for group, topic in places for need in _popped_by(group, topic, SUB)]


def _assignment(facts: Facts, request: Command) -> Iterable[Need]:
    query = bodies.decode(bodies.QueryAssignmentBody, request.body)
    return _read_by(query.consumer_group, query.topic, SUB)


def _request_mode(facts: Facts, request: Command) -> Iterable[Need]:
    mode = bodies.decode(bodies.RequestModeBody, request.body)
    return (group_need(mode.consumer_group, UPDATE),)


def _heartbeat(facts: Facts, request: Command) -> Iterable[Need]:
    for consumer in bodies.decode(bodies.HeartbeatData, request.body).consumer_data_set:
        yield group_need(consumer.group_name, SUB)
        for subscription in consumer.subscription_data_set:
            if not names.is_retry_topic(subscription.topic):
                yield topic_need(subscription.topic, SUB)


def _check_client(facts: Facts, request: Command) -> Iterable[Need]:
    check = bodies.decode(bodies.CheckClientBody, request.body)
    yield group_need(check.group, SUB)
    if not names.is_retry_topic(check.subscription_data.topic):
        yield topic_need(check.subscription_data.topic, SUB)


def _unregister(facts: Facts, request: Command) -> Iterable[Need]:
    header = headers.decode(headers.UnregisterClientHeader, request.ext_fields)
    return (group_need(header.consumer_group, SUB),) if header.consumer_group else ()


def _lock(facts: Facts, request: Command) -> Iterable[Need]:
    lock = bodies.decode(bodies.LockBody, request.body)
    topics = dict.fromkeys(queue.topic for queue in lock.mq_set)
    return [group_need(lock.consumer_group, SUB), *(topic_need(topic, SUB) for topic in topics)]


def _offset(kind: type[Header], actions: Actions) -> Rule:
    """Return the needs for a consumer offset: the group, and the topic if it is no retry topic."""

    def needs(facts: Facts, request: Command) -> Iterable[Need]:
        header: Any = headers.decode(kind, request.ext_fields)
        yield group_need(header.consumer_group, actions)
        if not names.is_retry_topic(header.topic):
            yield topic_need(header.topic, actions)

    return needs


def _correction_offsets(facts: Facts, request: Command) -> Iterable[Need]:
    header = headers.decode(headers.QueryCorrectionOffsetHeader, request.ext_fields)
    for group in (header.filter_groups or "").split(","):
        if group:
            yield group_need(group, GET)
    if header.compare_group is not None:
        yield group_need(header.compare_group, GET)
    yield topic_need(header.topic, GET)


def _create_topics(facts: Facts, request: Command) -> Iterable[Need]:
    wanted = bodies.decode(bodies.TopicConfigList, request.body).topic_config_list
    return [topic_need(topic.topic_name, CREATE) for topic in wanted]


def _create_group(facts: Facts, request: Command) -> Iterable[Need]:
    wanted = bodies.decode(bodies.SubscriptionGroupConfig, request.body)
    return (group_need(wanted.group_name, CREATE_OR_UPDATE),)


def _create_groups(facts: Facts, request: Command) -> Iterable[Need]:
    wanted = bodies.decode(bodies.SubscriptionGroupList, request.body).group_config_list
    return [group_need(group.group_name, CREATE_OR_UPDATE) for group in wanted]


_CLUSTER_GET, _CLUSTER_READ = _cluster(GET), _cluster(GET_OR_LIST)
_CLUSTER_UPDATE = _cluster(UPDATE)

NEEDS: Mapping[int, Rule] = {
    # sending
    Code.SEND_MESSAGE: _send,
    Code.SEND_MESSAGE_V2: _send,
    Code.SEND_BATCH_MESSAGE: _send,
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.SEND_REPLY_MESSAGE: _send_reply,
    Code.SEND_REPLY_MESSAGE_V2: _send_reply,
    Code.END_TRANSACTION: _end_transaction,
    Code.RESUME_CHECK_HALF_MESSAGE: _resume_check,
    Code.RECALL_MESSAGE: _in_header(headers.RecallMessageHeader, topic=PUB),
    # receiving
    Code.PULL_MESSAGE: _reading(headers.PullMessageHeader),
    Code.LITE_PULL_MESSAGE: _reading(headers.PullMessageHeader),
    Code.POP_MESSAGE: _reading(headers.PopMessageHeader),
    Code.PEEK_MESSAGE: _reading(headers.PeekMessageHeader),
    Code.NOTIFICATION: _reading(headers.NotificationHeader),
    Code.POLLING_INFO: _reading(headers.PollingInfoHeader, SUB_OR_GET),
    Code.ACK_MESSAGE: _popped(headers.AckMessageHeader),
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _popped(headers.ChangeInvisibleTimeHeader),
    Code.POP_ROLLBACK: _CLUSTER_UPDATE,
    Code.POP_LITE_MESSAGE: _reading(headers.PopLiteMessageHeader),
    Code.LITE_SUBSCRIPTION_CTL: _lite_subscriptions,
    Code.GET_BROKER_LITE_INFO: _CLUSTER_GET,
    Code.GET_PARENT_TOPIC_INFO: _in_header(headers.ParentTopicHeader, topic=GET),
    Code.GET_LITE_TOPIC_INFO: _CLUSTER_GET,
    Code.GET_LITE_CLIENT_INFO: _CLUSTER_GET,
    Code.GET_LITE_GROUP_INFO: _CLUSTER_GET,
    Code.TRIGGER_LITE_DISPATCH: _CLUSTER_UPDATE,
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.SET_MESSAGE_REQUEST_MODE: _request_mode,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    # clients
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.CHECK_CLIENT_CONFIG: _check_client,
    Code.GET_CONSUMER_LIST_BY_GROUP: _in_header(headers.ConsumerGroupHeader, group=SUB_OR_GET),
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    # offsets
    Code.QUERY_CONSUMER_OFFSET: _offset(headers.QueryConsumerOffsetHeader, SUB_OR_GET),
    Code.UPDATE_CONSUMER_OFFSET: _offset(headers.UpdateConsumerOffsetHeader, SUB_OR_UPDATE),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _in_header(headers.SearchOffsetHeader, topic=SUB_OR_GET),
    Code.GET_MAX_OFFSET: _in_header(headers.QueueHeader, topic=SUB_OR_GET),
    Code.GET_MIN_OFFSET: _in_header(headers.QueueHeader, topic=SUB_OR_GET),
    Code.GET_EARLIEST_MSG_STORETIME: _in_header(headers.QueueHeader, topic=SUB_OR_GET),
    Code.QUERY_CORRECTION_OFFSET: _correction_offsets,
    Code.GET_ALL_CONSUMER_OFFSET: _CLUSTER_READ,
    Code.GET_ALL_DELAY_OFFSET: _CLUSTER_READ,
    Code.GET_TIMER_CHECK_POINT: _CLUSTER_READ,
    Code.GET_TIMER_METRICS: _CLUSTER_READ,
    Code.SWITCH_TIMER_ENGINE: _CLUSTER_UPDATE,
    Code.CLONE_GROUP_OFFSET: _in_header(
        headers.CloneGroupOffsetHeader,
        topic=UPDATE,
        groups={"src_group": GET, "dest_group": UPDATE},
    ),
    # topics
    Code.UPDATE_AND_CREATE_TOPIC: _in_header(headers.CreateTopicHeader, topic=CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _create_topics,
    Code.DELETE_TOPIC_IN_BROKER: _in_header(headers.TopicHeader, topic=DELETE),
    Code.GET_ALL_TOPIC_CONFIG: _CLUSTER_READ,
    Code.GET_TOPIC_CONFIG: _in_header(headers.TopicHeader, topic=GET),
    Code.GET_TOPIC_STATS_INFO: _in_header(headers.TopicHeader, topic=GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _in_header(headers.TopicHeader, topic=GET),
    Code.QUERY_TOPICS_BY_CONSUMER: _in_header(headers.GroupHeader, group=GET),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _in_header(
        headers.GroupAndTopicHeader, topic=GET, group=GET
    ),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _CLUSTER_READ,
    Code.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    # settings of groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _create_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _create_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: _in_header(headers.GroupNameHeader, group=DELETE),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _CLUSTER_READ,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _in_header(headers.GroupHeader, group=GET),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _in_header(
        headers.GroupForbiddenHeader, topic=UPDATE, group=UPDATE
    ),
    # queries of messages
    Code.QUERY_MESSAGE: _in_header(headers.QueryMessageHeader, topic=SUB_OR_GET),
    Code.VIEW_MESSAGE_BY_ID: _view_message,
    Code.QUERY_CONSUME_QUEUE: _in_header(headers.QueryConsumeQueueHeader, topic=GET, group=GET),
    Code.QUERY_CONSUME_TIME_SPAN: _in_header(headers.TimeSpanHeader, topic=GET, group=GET),
    # connected clients, and requests to them
    Code.GET_CONSUMER_CONNECTION_LIST: _in_header(headers.ConsumerGroupHeader, group=GET),
    Code.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    Code.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    Code.GET_CONSUMER_RUNNING_INFO: _in_header(headers.ConsumerRunningInfoHeader, group=GET),
    Code.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _in_header(
        headers.ResetOffsetHeader, topic=UPDATE, group=UPDATE
    ),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _in_header(
        headers.ConsumerStatusHeader, topic=GET, group=GET
    ),
    # state
    Code.GET_BROKER_RUNTIME_INFO: _CLUSTER_READ,
    Code.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    Code.GET_CONSUME_STATS: _in_header(headers.ConsumeStatsHeader, topic=GET, group=GET),
    Code.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    Code.EXCHANGE_BROKER_HA_INFO: _CLUSTER_READ,
    Code.GET_BROKER_HA_STATUS: _CLUSTER_READ,
    Code.GET_BROKER_EPOCH_CACHE: _CLUSTER_READ,
    Code.NOTIFY_BROKER_ROLE_CHANGED: _CLUSTER_READ,
    Code.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    # settings
    Code.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    Code.GET_BROKER_CONFIG: _CLUSTER_READ,
    Code.TRIGGER_DELETE_FILES: _CLUSTER_UPDATE,
    Code.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    # access control 1.0
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _CLUSTER_UPDATE,
    Code.DELETE_ACL_CONFIG: _CLUSTER_UPDATE,
    Code.GET_BROKER_CLUSTER_ACL_INFO: _CLUSTER_UPDATE,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _CLUSTER_UPDATE,
    # users and rules
    Code.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    Code.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    Code.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    Code.AUTH_GET_USER: _CLUSTER_GET,
    Code.AUTH_LIST_USER: _CLUSTER_GET,
    Code.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_GET_ACL: _CLUSTER_GET,
    Code.AUTH_LIST_ACL: _CLUSTER_GET,
}
"""Request code -> its rule."""
