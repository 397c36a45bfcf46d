"""The processors of the name server: decode a request, call a part, encode the reply.

``PROCESSORS`` lists all of them. An exception becomes the reply, with its text. A processor that
may take long is a generator, which yields so that other requests are served. Names in log lines
come from clients: they are quoted, and the lines are limited per second. Source: rocketmq 4.9.7
``DefaultRequestProcessor``; processors of 5.x are marked.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reput.clock import Clock
from reput.errors import InvalidHeader, ReputError, excerpt
from reput.format import bodies, command, headers, limits
from reput.format.bodies import ClusterInfo, DataVersion
from reput.format.codes import MASTER_ID, RequestCode, ResponseCode
from reput.format.command import Command
from reput.format.names import ORDER_TOPIC_CONFIG
from reput.limits import Refusals
from reput.namesrv import registration_body
from reput.namesrv.config import CurrentConfig
from reput.namesrv.kv_saver import KvSaver
from reput.namesrv.kv_table import KvChange, KvTable
from reput.namesrv.route_table import Registration, RouteTable
from reput.remoting import long_replies
from reput.remoting.channel import Channel
from reput.remoting.client_faults import ClientFaults
from reput.remoting.long_replies import LongBody, SharedReplies
from reput.remoting.request_queue import RequestQueue
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps

_POSITIVE_INT = 0x7FFFFFFF
_SHOWN = 300
"""Characters of a value in the log."""


@dataclass(slots=True)
class Parts:
    """The parts of the name server that processors use."""

    routes: RouteTable
    kv: KvTable
    kv_saver: KvSaver
    setting_requests: RequestQueue
    """Requests that change settings, served one at a time."""
    config: CurrentConfig
    clock: Clock
    events: ClientFaults
    """Writes log lines about actions of clients."""
    refusals: Refusals
    """Counts refusals by limits, and topics that were left out."""
    ready_ms: int
    """Monotonic time from which routes are returned, in ms; see ``needWaitForService``."""
    takeover_ms: int | None = None
    """Monotonic time of the latest takeover of a live broker's name and id, in ms."""
    takeover: str = ""
    """Description of that takeover."""
    listings: SharedReplies = field(default_factory=SharedReplies)
    """Replies that are the same for all clients."""


# --- brokers ----------------------------------------------------------------------


def register_broker(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Register a broker with its topics (103)."""
    header = headers.decode(headers.RegisterBrokerHeader, request.ext_fields)
    crc = zlib.crc32(request.body) & _POSITIVE_INT
    if header.body_crc32 not in (0, crc):
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "crc32 not match")
    body = yield from registration_body.read(
        request.body, request.version, is_compressed=header.compressed
    )
    table = body.topic_config_serialize_wrapper
    limits.REGISTRATION_TOPICS.check(len(table.topic_config_table))
    is_old = request.version < registration_body.V3_0_11
    registration = Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
        ha_address=header.ha_server_addr,
        data_version=table.data_version,
        enable_acting_master=bool(header.enable_acting_master),
        topics=list(table.topic_config_table.values()),
        filter_servers=None if is_old else body.filter_server_list,
    )
    yield
    registered = yield from parts.routes.register(registration, channel, parts.clock.monotonic_ms())
    name, address, events = registration.broker_name, registration.address, parts.events
    if registered.displaced is not None:
        parts.takeover = (
            f"{name[:_SHOWN]!r} with id {registration.broker_id}: "
            f"{registered.displaced[:_SHOWN]!r} is registered and alive, "
            f"{address[:_SHOWN]!r} registers from {channel.peer}"
        )
        parts.takeover_ms = parts.clock.monotonic_ms()
        outcome = "is refused: its state is older" if registered.is_ignored else "replaces it"
        events.warn(
            "takeover", "two addresses register as broker %s, which %s", parts.takeover, outcome
        )
    if registered.is_new:
        role = (
            "master" if registration.broker_id == MASTER_ID else f"slave {registration.broker_id}"
        )
        events.info("registered", "%s of %.300r registered at %.300r", role, name, address)
    for limit, count in registered.left_out_counts.items():
        parts.refusals.add(limit, count)
    if registered.left_out:
        events.warn("left out", "%.300r: a topic is left out: %s", address, registered.left_out)
    fields = headers.RegisterBrokerReplyHeader(
        ha_server_addr=registered.master_ha_address, master_addr=registered.master_address
    )
    order = None
    if parts.config.value.return_order_topic_config_to_broker:
        order = parts.kv.namespace(ORDER_TOPIC_CONFIG)
    return command.reply(
        request,
        ext_fields=headers.encode(fields),
        body=b"" if order is None else bodies.encode(bodies.KvTable(table=order)),
    )


def unregister_broker(parts: Parts, channel: Channel, request: Command) -> Command:
    """Unregister a broker that is about to stop (104)."""
    header = headers.decode(headers.UnregisterBrokerHeader, request.ext_fields)
    if parts.routes.unregister(header.broker_name, header.broker_id, header.broker_addr):
        name, address = header.broker_name, header.broker_addr
        text = "%.300r unregistered at %.300r, as requested by %s"
        parts.events.info("unregistered", text, name, address, channel.peer)
    return command.reply(request)


def query_data_version(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return whether a broker must register (322); if not, this keeps it alive."""
    header = headers.decode(headers.QueryDataVersionHeader, request.ext_fields)
    address = header.broker_addr
    version = bodies.decode(DataVersion, request.body, size_limit=limits.REGISTRATION_PART_BYTES)
    is_changed = parts.routes.is_changed(address, version)
    if not is_changed:
        parts.routes.refresh(address, channel, parts.clock.monotonic_ms())
    known = parts.routes.data_version(address)
    return command.reply(
        request,
        ext_fields=headers.encode(headers.QueryDataVersionReplyHeader(changed=is_changed)),
        body=b"" if known is None else bodies.encode(known),
    )


def broker_heartbeat(parts: Parts, channel: Channel, request: Command) -> Command:
    """Keep a broker alive (904)."""
    header = headers.decode(headers.BrokerHeartbeatHeader, request.ext_fields)
    parts.routes.refresh(header.broker_addr, channel, parts.clock.monotonic_ms())
    return command.reply(request)


def broker_members(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return the addresses of a broker by id (901); none if it is not registered."""
    header = headers.decode(headers.BrokerMemberGroupHeader, request.ext_fields)
    broker = parts.routes.broker(header.broker_name)
    members = bodies.BrokerMembers(
        broker_addrs={} if broker is None else broker.broker_addrs,
        broker_name=header.broker_name,
        cluster=header.cluster_name,
    )
    return command.reply(
        request, body=bodies.encode(bodies.BrokerMemberGroup(broker_member_group=members))
    )


def register_topic(parts: Parts, channel: Channel, request: Command) -> Command:
    """Register one topic (217) of a 5.x broker with ``enableSingleTopicRegister``."""
    topic = headers.decode(headers.TopicHeader, request.ext_fields).topic
    queues = bodies.decode(
        bodies.TopicRouteData,
        request.body,
        size_limit=limits.BODY_BYTES,
        lenient_limit=limits.LENIENT_JSON_BYTES,
    ).queue_datas
    unknown = parts.routes.register_topic(topic, queues)
    if unknown:
        names = excerpt(", ".join(unknown))
        remark = f"not registered, so topic {excerpt(topic)} was not registered: {names}"
        return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
    return command.reply(request)


def wipe_write_permission(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Remove the write permission of a broker that is to be stopped (205)."""
    name = headers.decode(headers.BrokerNameHeader, request.ext_fields).broker_name
    count = yield from parts.routes.wipe_write_permission(name)
    text = "%s: %d topics of %.300r are no longer writable"
    parts.events.info("permission", text, channel.peer, count, name)
    fields = headers.WipeWritePermReplyHeader(wipe_topic_count=count)
    return command.reply(request, ext_fields=headers.encode(fields))


def add_write_permission(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Restore the write permission of a broker (327)."""
    name = headers.decode(headers.BrokerNameHeader, request.ext_fields).broker_name
    count = yield from parts.routes.add_write_permission(name)
    text = "%s: %d topics of %.300r are writable again"
    parts.events.info("permission", text, channel.peer, count, name)
    fields = headers.AddWritePermReplyHeader(add_topic_count=count)
    return command.reply(request, ext_fields=headers.encode(fields))


# --- routes -----------------------------------------------------------------------


def route_of_topic(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the route of a topic (105).

    4.9 prints broker ids without quotes for clients before V4_9_4. All of them read quoted ones.
    """
    topic = headers.decode(headers.RouteHeader, request.ext_fields).topic
    config = parts.config.value
    if config.need_wait_for_service and parts.clock.monotonic_ms() < parts.ready_ms:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "name server not ready")
    route = yield from parts.routes.route(topic)
    if route is None:
        remark = f"No topic route info in name server for the topic: {excerpt(topic)}"
        return command.reply(request, ResponseCode.TOPIC_NOT_EXIST, remark)
    if config.order_message_enable:
        route.order_topic_conf = parts.kv.get(ORDER_TOPIC_CONFIG, topic)
    return command.reply(request, body=bodies.encode(route))


def cluster_info(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return all brokers and clusters (106)."""
    body = yield from parts.listings.ask("clusters", lambda: _cluster_info(parts))
    return command.reply(request, body=body)


def _cluster_info(parts: Parts) -> Steps[bytes]:
    brokers = LongBody("mqadmin topicRoute returns the brokers of a topic")
    for broker in parts.routes.brokers():
        if broker is None:
            yield
        else:
            brokers.add_pair(broker.broker_name, broker)
    info = ClusterInfo(broker_addr_table={}, cluster_addr_table=parts.routes.clusters())
    return brokers.encode_in(info, "broker_addr_table")


def delete_topic(parts: Parts, channel: Channel, request: Command) -> Command:
    """Remove a topic that was deleted on its brokers (216)."""
    header = headers.decode(headers.DeleteTopicInNameServerHeader, request.ext_fields)
    parts.routes.delete_topic(header.topic, header.cluster_name)
    where = header.cluster_name or "all clusters"
    text = "%s: topic %.300r deleted in %.300r"
    parts.events.info("topic deleted", text, channel.peer, header.topic, where)
    return command.reply(request)


# --- lists of topics --------------------------------------------------------------


def all_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return all topics (206)."""
    if not parts.config.value.enable_all_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    body = yield from parts.listings.ask("topics", lambda: _all_topics(parts))
    return command.reply(request, body=body)


def _all_topics(parts: Parts) -> Steps[bytes]:
    return (yield from _topic_list((yield from parts.routes.topics())))


def topics_of_cluster(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the topics of a cluster (224)."""
    cluster = headers.decode(headers.ClusterHeader, request.ext_fields).cluster
    return (yield from _some_topics(parts, request, parts.routes.topics_of_cluster(cluster)))


def system_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the topics named after clusters and brokers (304); brokers have the others."""
    if not parts.config.value.enable_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    topics, address = yield from parts.routes.system_topics()
    return command.reply(request, body=(yield from _topic_list(topics, address)))


def unit_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the topics in unit mode (311)."""
    return (yield from _some_topics(parts, request, parts.routes.unit_topics()))


def unit_sub_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the topics with a subscription in unit mode (312)."""
    return (yield from _some_topics(parts, request, parts.routes.unit_sub_topics()))


def unit_sub_topics_of_no_unit(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """Return the topics with a subscription in unit mode that are not in unit mode (313)."""
    return (yield from _some_topics(parts, request, parts.routes.unit_sub_topics_of_no_unit()))


def _some_topics(parts: Parts, request: Command, listing: Steps[list[str]]) -> Steps[Command]:
    if not parts.config.value.enable_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    return command.reply(request, body=(yield from _topic_list((yield from listing))))


def _topic_list(topics: list[str], address: str | None = None) -> Steps[bytes]:
    body = LongBody("brokers return their own topics")
    for part in long_replies.chunks(topics, long_replies.LIGHT_CHUNK):
        body.add(*part)
        yield
    listed = bodies.TopicList(broker_addr=address, topic_list=[])
    return body.encode_in(listed, "topic_list")


# --- shared settings --------------------------------------------------------------


def put_kv(parts: Parts, channel: Channel, request: Command) -> None:
    """Set a value of the key-value table (100); the reply follows when it is on disk."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    if header.value is None:
        raise InvalidHeader("Kv: missing required field `value`")
    _change_kv(parts, channel, request, KvChange(header.namespace, header.key, header.value))


def get_kv(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return a value of the key-value table (101)."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    value = parts.kv.get(header.namespace, header.key)
    if value is None:
        name, key = excerpt(header.namespace), excerpt(header.key)
        remark = f"No config item, Namespace: {name} Key: {key}"
        return command.reply(request, ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(request, ext_fields=headers.encode(headers.KvReplyHeader(value=value)))


def delete_kv(parts: Parts, channel: Channel, request: Command) -> None:
    """Remove a value of the key-value table (102); the reply follows when that is on disk."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    _change_kv(parts, channel, request, KvChange(header.namespace, header.key, None))


def _change_kv(parts: Parts, channel: Channel, request: Command, change: KvChange) -> None:
    request = command.envelope(request)

    is_change = False

    def on_saved(error: ReputError | None) -> None:
        reply = command.reply(request)
        if error is not None:
            reply = command.reply(request, error.response_code, str(error))
        elif is_change:
            action = "deleted" if change.value is None else f"is {change.value[:_SHOWN]!r}"
            text = "%s: %.300r %.300r %s"
            parts.events.info("kv", text, channel.peer, change.namespace, change.key, action)
        if not request.is_oneway:
            channel.answer(request, reply)

    is_change = parts.kv_saver.change(change, on_saved)


def kv_namespace(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return all values of a namespace (219)."""
    namespace = headers.decode(headers.NamespaceHeader, request.ext_fields).namespace
    pairs = parts.kv.namespace(namespace)
    if pairs is None:
        remark = f"No config item, Namespace: {excerpt(namespace)}"
        return command.reply(request, ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(request, body=bodies.encode(bodies.KvTable(table=pairs)))


# --- settings of the name server --------------------------------------------------


def update_config(parts: Parts, channel: Channel, request: Command) -> None:
    """Change settings, given as lines ``key=value`` (318): all of them, or none."""
    parts.config.answer_change(parts.setting_requests, parts.events, channel, request)


def get_config(parts: Parts, channel: Channel, request: Command) -> Command:
    """Return all settings, one per line (319)."""
    return command.reply(request, body=parts.config.text().encode())


# ----------------------------------------------------------------------------------

Processor = Callable[[Parts, Channel, Command], Command | LongReply | None]

PROCESSORS: Mapping[int, Processor] = {
    RequestCode.PUT_KV_CONFIG: put_kv,
    RequestCode.GET_KV_CONFIG: get_kv,
    RequestCode.DELETE_KV_CONFIG: delete_kv,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of_topic,
    RequestCode.GET_BROKER_CLUSTER_INFO: cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_permission,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: all_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,  # 5.x
    RequestCode.GET_KVLIST_BY_NAMESPACE: kv_namespace,
    RequestCode.GET_TOPICS_BY_CLUSTER: topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: unit_sub_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: unit_sub_topics_of_no_unit,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_permission,
    RequestCode.GET_BROKER_MEMBER_GROUP: broker_members,  # 5.x
    RequestCode.BROKER_HEARTBEAT: broker_heartbeat,  # 5.x
}
"""Request code -> processor: every code of 4.9.7's name server, and 217 of 5.x."""
