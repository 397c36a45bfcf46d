"""203, 204, 328; 222, 223, 307, 309; 314: clients, and what only they know.

What only a client knows is asked of it, and the reply follows when it has answered. Source:
rocketmq 4.9.7 ``AdminBrokerProcessor``, ``Broker2Client``.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from reput.broker.groups import ConsumerGroup, Member
from reput.errors import (
    Answered,
    ConnectionLost,
    Overloaded,
    ReputError,
    RequestRefused,
    RequestTimedOut,
)
from reput.format import bodies, command as commands, headers, message_id as ids
from reput.format.bodies import (
    Connection,
    ConsumerConnection,
    ConsumerStatus,
    MessageQueue,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QueueOffset,
    QueueOffsets,
    ResetOffsetList,
    ResetOffsets,
)
from reput.format.codes import LanguageCode, RequestCode, ResponseCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import (
    CloneGroupOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
)
from reput.remoting.channel import Channel

if TYPE_CHECKING:
    from reput.broker.server import Broker

CLIENT_TIMEOUT_MS = 10_000
"""For what one client is asked."""
STATUS_TIMEOUT_MS = 5_000
"""For what all members of a group are asked."""
LATEST = -1
"""As a time: the end of each queue."""

_log = logging.getLogger(__name__)


# --- who is connected ---------------------------------------------------------------


def consumer_connections(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the members of a consumer group and what they subscribe to."""
    name = headers.decode(ConsumerGroupHeader, request.ext_fields).consumer_group
    group = broker.groups.consumer(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
        )
    answer = ConsumerConnection(
        connection_set=[_connection(one) for one in group.members.values()],
        consume_from_where=group.consume_from_where,
        consume_type=group.consume_type,
        message_model=group.message_model,
        subscription_table=group.subscriptions,
    )
    return commands.reply(request, body=bodies.encode(answer))


def producer_connections(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the members of a producer group."""
    name = headers.decode(ProducerGroupHeader, request.ext_fields).producer_group
    members = broker.groups.producers(name)
    if not members:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    answer = ProducerConnection(connection_set=[_connection(one) for one in members])
    return commands.reply(request, body=bodies.encode(answer))


def all_producers(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Return the members of all producer groups."""
    # They were seen by monotonic time; what is told is of the clock.
    begun_ms = broker.clock.now_ms() - broker.clock.monotonic_ms()
    table = {
        name: [
            ProducerInfo(
                client_id=one.client_id,
                language=_language(one),
                last_update_timestamp=begun_ms + one.seen_ms,
                remote_ip=f"/{one.channel.peer}",  # as Java prints an address
                version=one.version,
            )
            for one in members
        ]
        for name, members in broker.groups.producer_groups().items()
    }
    return commands.reply(request, body=bodies.encode(ProducerTable(data=table)))


def _connection(member: Member[Channel]) -> Connection:
    return Connection(
        client_addr=member.channel.peer,
        client_id=member.client_id,
        language=_language(member),
        version=member.version,
    )


def _language(member: Member[Channel]) -> str:
    try:
        return LanguageCode(member.language).name
    except ValueError:
        return LanguageCode.OTHER.name


# --- what one member is asked -------------------------------------------------------


def consumer_running_info(broker: "Broker", channel: Channel, request: Command) -> None:
    """Ask a consumer what it is doing."""
    header = headers.decode(ConsumerRunningInfoHeader, request.ext_fields)
    member = _member(broker, header.consumer_group, header.client_id)
    question = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=request.ext_fields)
    forward(channel, request, header.consumer_group, member, question)


def consume_directly(broker: "Broker", channel: Channel, request: Command) -> None:
    """Let a consumer consume one message now."""
    header = headers.decode(ConsumeDirectlyHeader, request.ext_fields)
    try:
        place = ids.decode_offset_id(header.msg_id or "")
    except ValueError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
    record = broker.store.record_at(place.physical_offset)
    if record is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message {header.msg_id} here")
    member = _member(broker, header.consumer_group, header.client_id)
    fields = {**(request.ext_fields or {}), "brokerName": broker.config.broker_name}
    question = Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=fields, body=record)
    forward(channel, request, header.consumer_group, member, question)


def _member(broker: "Broker", group_name: str, client_id: str | None) -> Member[Channel]:
    """Return a member of a group by its id. Raises ``RequestRefused``."""
    group = broker.groups.consumer(group_name)
    for member in group.members.values() if group is not None else ():
        if member.client_id == client_id:
            return member
    raise RequestRefused(
        ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
    )


def forward(
    channel: Channel, request: Command, group: str, member: Member[Channel], question: Command
) -> None:
    """Ask a member of a group, and reply with its answer when it comes, or with why it does not.

    Args:
        channel: Who asks.
        request: What is replied to.
        group: The member's.
        member: Who is asked.
        question: What it is asked.
    """

    def answered(future: "asyncio.Future[Command]") -> None:
        who = f"consumer <{group}> <{member.client_id}>"
        error = future.exception()
        if error is None:
            one = future.result()
            reply = commands.reply(request, one.code, one.remark, one.ext_fields, one.body)
        elif isinstance(error, RequestTimedOut):
            remark = f"{who} Timeout: {error}"
            reply = commands.reply(request, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        else:
            remark = f"invoke {who} Exception: {error}"
            reply = commands.reply(request, ResponseCode.SYSTEM_ERROR, remark)
        channel.send(reply)

    ask(member, question, CLIENT_TIMEOUT_MS).add_done_callback(answered)


def ask(member: Member[Channel], question: Command, timeout_ms: int) -> "asyncio.Future[Command]":
    """Return what gets a client's answer; it never raises by itself."""
    try:
        return member.channel.ask(question, timeout_ms)
    except (ConnectionLost, Overloaded) as error:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future


# --- what all members are asked or told ---------------------------------------------


def consumer_status(broker: "Broker", channel: Channel, request: Command) -> None:
    """Ask the members of a group, or one of them, how far they have consumed a topic."""
    header = headers.decode(ConsumerStatusHeader, request.ext_fields)
    group = broker.groups.consumer(header.group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"No Any Consumer online in the consumer group: [{header.group}]",
        )
    fields = headers.encode(ConsumerStatusHeader(topic=header.topic, group=header.group))
    members, answers = [], []
    for member in group.members.values():
        if header.client_addr in (None, "", member.client_id):
            question = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=fields)
            answers.append(ask(member, question, STATUS_TIMEOUT_MS))
            members.append(member)

    def answered(future: "asyncio.Future[list[Command | BaseException]]") -> None:
        table = {
            member.client_id: offsets
            for member, answer in zip(members, future.result(), strict=True)
            if (offsets := _status_of(member, answer)) is not None
        }
        status = ConsumerStatus(consumer_table=table, message_queue_table=QueueOffsets())
        channel.send(commands.reply(request, body=bodies.encode(status)))

    asyncio.gather(*answers, return_exceptions=True).add_done_callback(answered)


def _status_of(member: Member[Channel], answer: Command | BaseException) -> QueueOffsets | None:
    """Return how far a member is; None, with a line in the log, if it does not say so."""
    try:
        if isinstance(answer, BaseException):
            raise answer
        if answer.code != ResponseCode.SUCCESS:
            raise Answered(answer.code, answer.remark, member.channel.peer)
        return bodies.decode(ConsumerStatus, answer.body).message_queue_table
    except ReputError as error:
        _log.warning("consumer %s does not say how far it is: %s", member.client_id, error)
        return None


def reset_offset(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Let a group go on elsewhere in a topic.

    4.9's tools name a time, and its members are told. Those of 5.x name a queue as well, or that
    all are meant: then each member hears of it when it pulls, and there need be none.
    """
    header = headers.decode(ResetOffsetHeader, request.ext_fields)
    if header.queue_id is not None and broker.config.use_server_side_reset_offset:
        return _reset_here(broker, channel, request, header)
    table = _offsets_by_time(broker, header)
    group = broker.groups.consumer(header.group)
    if group is None:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}",
        )
    body = bodies.encode(ResetOffsets(offset_table=table))
    _tell_offsets(
        group, header, body, _list_of(table), is_list=request.language == LanguageCode.CPP
    )
    _log.info("offsets of %s in %s set by %s: %s", header.group, header.topic, channel.peer, table)
    return commands.reply(request, body=body)


def _reset_here(
    broker: "Broker", channel: Channel, request: Command, header: ResetOffsetHeader
) -> Command:
    """Source: rocketmq 5.5 ``AdminBrokerProcessor.resetOffsetInner``."""
    topic, group = header.topic, header.group
    if not broker.is_master:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    known = broker.topics.get(topic)
    if known is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
    if broker.subscription_groups.get(group) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist"
        )
    wanted = _wanted_offsets(broker, header, known.read_queue_count)
    offsets = broker.consumer_offsets
    broker.store.deliverer.clear()  # it answers pulls without a look at what is here
    table = QueueOffsets()
    for queue_id, queue_offset in wanted.items():
        offsets.put(topic, group, queue_id, queue_offset)
        broker.resets.assign(topic, group, queue_id, queue_offset)
        table[MessageQueue(topic, broker.config.broker_name, queue_id)] = queue_offset
    for queue_id in wanted:
        broker.look_again(topic, queue_id)
    _log.info("offsets of %s in %s set by %s: %s", group, topic, channel.peer, table)
    return commands.reply(request, body=bodies.encode(ResetOffsets(offset_table=table)))


def _wanted_offsets(
    broker: "Broker", header: ResetOffsetHeader, queue_count: int
) -> dict[int, int]:
    """Return queue id -> where to go on. Raises ``RequestRefused``."""
    queue_id, store = header.queue_id, broker.store
    if queue_id is None or queue_id < 0:
        queue_ids = range(queue_count)
        if not queue_ids:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    elif queue_id >= queue_count:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic[{header.topic}] has no queue {queue_id}; allowed: 0 to {queue_count - 1}",
        )
    elif header.queue_offset not in (None, -1):
        low, high = (
            store.min_offset(header.topic, queue_id),
            store.max_offset(header.topic, queue_id),
        )
        if not low <= header.queue_offset <= high + 1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.queue_offset} not in consume queue range [{low}-{high}]",
            )
        return {queue_id: header.queue_offset}
    else:
        queue_ids = range(queue_id, queue_id + 1)
    if header.timestamp < 0:
        return {one: store.max_offset(header.topic, one) for one in queue_ids}
    return {one: store.offset_by_time(header.topic, one, header.timestamp) for one in queue_ids}


def _offsets_by_time(broker: "Broker", header: ResetOffsetHeader) -> QueueOffsets:
    """Return where a group is to go on. Raises ``RequestRefused``."""
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
        )
    table = QueueOffsets()
    for queue_id in range(topic.write_queue_count):
        known = broker.consumer_offsets.get(topic.name, header.group, queue_id)
        if known is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
            )
        if header.timestamp == LATEST:
            wanted = broker.store.max_offset(topic.name, queue_id)
        else:
            wanted = broker.store.offset_by_time(topic.name, queue_id, header.timestamp)
        queue = MessageQueue(topic.name, broker.config.broker_name, queue_id)
        table[queue] = wanted if header.is_force else min(wanted, known)
    return table


def _list_of(table: QueueOffsets) -> bytes:
    found = [
        QueueOffset(broker_name=one.broker_name, offset=offset, queue_id=one.queue_id,
                    topic=one.topic)
        for one, offset in table.items()
    ]  # fmt: skip
    return bodies.encode(ResetOffsetList(offset_table=found))


def _tell_offsets(
    group: ConsumerGroup[Channel],
    header: ResetOffsetHeader,
    body: bytes,
    list_body: bytes,
    *,
    is_list: bool,
) -> None:
    fields = headers.encode(
        ResetOffsetHeader(topic=header.topic, group=header.group, timestamp=header.timestamp)
    )
    for member in group.members.values():
        # Java asks who the administrator is; what the consumer reads is what matters.
        takes_list = is_list or member.language == LanguageCode.CPP
        member.channel.send(
            Command(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                flag=IS_ONEWAY,
                ext_fields=fields,
                body=list_body if takes_list else body,
            )
        )


# --- offsets of a group for another ---------------------------------------------------


def clone_offsets(broker: "Broker", channel: Channel, request: Command) -> Command:
    """Let a group go on where another one is."""
    header = headers.decode(CloneGroupOffsetHeader, request.ext_fields)
    offsets = broker.consumer_offsets
    topics = [header.topic] if header.topic else topics_of_group(broker, header.src_group)
    source = broker.groups.consumer(header.src_group)
    for topic in topics:
        if broker.topics.get(topic) is None:
            continue
        if not header.offline and source is not None and topic not in source.subscriptions:
            continue
        for queue_id, consumer_offset in offsets.of(topic, header.src_group).items():
            offsets.put(topic, header.dest_group, queue_id, consumer_offset)
    _log.info("group %s goes on where %s is, says %s: %s", header.dest_group, header.src_group,
              channel.peer, topics)  # fmt: skip
    return commands.reply(request)


def topics_of_group(broker: "Broker", group: str) -> list[str]:
    """Return the topics in which a group has offsets."""
    return sorted(topic for topic, one in broker.consumer_offsets.readers() if one == group)
