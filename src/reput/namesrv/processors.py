"""What the name server does for each request: decode, ask a part, encode.

``PROCESSORS`` is all of it. Errors that a function raises become replies, with their text. What may
take long is a generator, which yields where others may have their turn. Names that stand in log
lines were sent by anybody: they are quoted, and the lines have a rate.
Source: rocketmq 4.9.7 ``DefaultRequestProcessor``; what is of 5.x is marked.
"""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reput import limits, remote_settings
from reput.clock import Clock
from reput.errors import InvalidBody, InvalidHeader, ReputError, excerpt
from reput.format import bodies, command, headers
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
from reput.remoting.long_replies import LongBody
from reput.remoting.request_queue import RequestQueue
from reput.remoting.server import LongReply
from reput.remoting.time_slices import Steps

_POSITIVE_INT = 0x7FFFFFFF
_SHOWN = 300
"""Letters of a value in the log."""


@dataclass(slots=True)
class Parts:
    """What requests work on."""

    routes: RouteTable
    kv: KvTable
    kv_saver: KvSaver
    setting_requests: RequestQueue
    """Requests that change settings, one after the other."""
    config: CurrentConfig
    clock: Clock
    events: ClientFaults
    """Writes log lines about what clients did."""
    refusals: Refusals
    """Counts what limits refuse, or leave out."""
    ready_ms: int
    """When routes are given, by monotonic time; see ``needWaitForService``."""
    takeover_ms: int | None = None
    """When somebody took the place of a live broker last, by monotonic time."""
    takeover: str = ""
    """Who did."""


# --- brokers ----------------------------------------------------------------------


def register_broker(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """103: a broker says that it is there, and which topics it has."""
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
    said = Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
        ha_address=header.ha_server_addr,
        data_version=table.data_version,
        topics=list(table.topic_config_table.values()),
        filter_servers=None if is_old else body.filter_server_list,
    )
    yield
    registered = yield from parts.routes.register(said, channel, parts.clock.monotonic_ms())
    name, address, events = said.broker_name, said.address, parts.events
    if registered.displaced is not None:
        parts.takeover = (
            f"{name[:_SHOWN]!r} with id {said.broker_id}: {registered.displaced[:_SHOWN]!r} had "
            f"them and is alive, {address[:_SHOWN]!r} registers them from {channel.peer}"
        )
        parts.takeover_ms = parts.clock.monotonic_ms()
        outcome = "is refused: its state is older" if registered.is_ignored else "takes its place"
        events.warn("takeover", "two claim to be broker %s, which %s", parts.takeover, outcome)
    if registered.is_new:
        role = "master" if said.broker_id == MASTER_ID else f"slave {said.broker_id}"
        events.note("registered", "%s of %.300r registered at %.300r", role, name, address)
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
    """104: a broker is about to stop."""
    header = headers.decode(headers.UnregisterBrokerHeader, request.ext_fields)
    if parts.routes.unregister(header.broker_name, header.broker_addr):
        name, address = header.broker_name, header.broker_addr
        text = "%.300r unregistered at %.300r: %s asks for it"
        parts.events.note("unregistered", text, name, address, channel.peer)
    return command.reply(request)


def query_data_version(parts: Parts, channel: Channel, request: Command) -> Command:
    """322: does a broker need to register? If not, this counts as a sign of life."""
    header = headers.decode(headers.QueryDataVersionHeader, request.ext_fields)
    address = header.broker_addr
    version = bodies.decode(DataVersion, request.body, size_limit=limits.REGISTRATION_PART_BYTES)
    is_changed = parts.routes.is_changed(address, version)
    if not is_changed:
        parts.routes.refresh(address, parts.clock.monotonic_ms())
    known = parts.routes.data_version(address)
    return command.reply(
        request,
        ext_fields=headers.encode(headers.QueryDataVersionReplyHeader(changed=is_changed)),
        body=b"" if known is None else bodies.encode(known),
    )


def register_topic(parts: Parts, channel: Channel, request: Command) -> Command:
    """217, 5.x: brokers with ``enableSingleTopicRegister`` tell one topic."""
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
        remark = f"not registered, so topic {excerpt(topic)} was not taken: {names}"
        return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
    return command.reply(request)


def wipe_write_permission(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """205: no new messages for a broker that is to be stopped."""
    name = headers.decode(headers.BrokerNameHeader, request.ext_fields).broker_name
    count = yield from parts.routes.wipe_write_permission(name)
    text = "%s: %d topics of %.300r are no longer writable"
    parts.events.note("permission", text, channel.peer, count, name)
    fields = headers.WipeWritePermReplyHeader(wipe_topic_count=count)
    return command.reply(request, ext_fields=headers.encode(fields))


def add_write_permission(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """327: new messages for a broker again."""
    name = headers.decode(headers.BrokerNameHeader, request.ext_fields).broker_name
    count = yield from parts.routes.add_write_permission(name)
    text = "%s: %d topics of %.300r are writable again"
    parts.events.note("permission", text, channel.peer, count, name)
    fields = headers.AddWritePermReplyHeader(add_topic_count=count)
    return command.reply(request, ext_fields=headers.encode(fields))


# --- routes -----------------------------------------------------------------------


def route_of_topic(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """105: where a topic is.

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
    """106: all brokers and clusters."""
    brokers = LongBody("mqadmin topicRoute tells the brokers of a topic")
    for broker in parts.routes.brokers():
        if broker is None:
            yield
        else:
            brokers.add_pair(broker.broker_name, broker)
    info = ClusterInfo(broker_addr_table={}, cluster_addr_table=parts.routes.clusters())
    return command.reply(request, body=brokers.encode_in(info, "broker_addr_table"))


def delete_topic(parts: Parts, channel: Channel, request: Command) -> Command:
    """216: forget a topic that was deleted on its brokers."""
    header = headers.decode(headers.DeleteTopicInNameServerHeader, request.ext_fields)
    parts.routes.delete_topic(header.topic, header.cluster_name)
    where = header.cluster_name or "all clusters"
    text = "%s: topic %.300r deleted in %.300r"
    parts.events.note("topic deleted", text, channel.peer, header.topic, where)
    return command.reply(request)


# --- lists of topics --------------------------------------------------------------


def all_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """206: all topics."""
    if not parts.config.value.enable_all_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    return (yield from _topic_list(request, (yield from parts.routes.topics())))


def topics_of_cluster(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """224: the topics of a cluster."""
    cluster = headers.decode(headers.ClusterHeader, request.ext_fields).cluster
    return (yield from _some_topics(parts, request, parts.routes.topics_of_cluster(cluster)))


def system_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """304: those that are named after clusters and brokers; a broker knows the others."""
    if not parts.config.value.enable_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    topics, address = yield from parts.routes.system_topics()
    return (yield from _topic_list(request, topics, address))


def unit_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """311: topics in unit mode."""
    return (yield from _some_topics(parts, request, parts.routes.unit_topics()))


def unit_sub_topics(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """312: topics with a subscription in unit mode."""
    return (yield from _some_topics(parts, request, parts.routes.unit_sub_topics()))


def unit_sub_topics_of_no_unit(parts: Parts, channel: Channel, request: Command) -> LongReply:
    """313: topics with a subscription in unit mode that are not so themselves."""
    return (yield from _some_topics(parts, request, parts.routes.unit_sub_topics_of_no_unit()))


def _some_topics(parts: Parts, request: Command, listing: Steps[list[str]]) -> Steps[Command]:
    if not parts.config.value.enable_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    return (yield from _topic_list(request, (yield from listing)))


def _topic_list(request: Command, topics: list[str], address: str | None = None) -> Steps[Command]:
    body = LongBody("brokers tell their own topics")
    for part in long_replies.chunks(topics, long_replies.LIGHT_CHUNK):
        body.add(*part)
        yield
    listed = bodies.TopicList(broker_addr=address, topic_list=[])
    return command.reply(request, body=body.encode_in(listed, "topic_list"))


# --- shared settings --------------------------------------------------------------


def put_kv(parts: Parts, channel: Channel, request: Command) -> None:
    """100: set a value of the key-value table. BrokerError when it is on disk."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    if header.value is None:
        raise InvalidHeader("Kv: missing required field `value`")
    _change_kv(parts, channel, request, KvChange(header.namespace, header.key, header.value))


def get_kv(parts: Parts, channel: Channel, request: Command) -> Command:
    """101: a value of the key-value table."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    value = parts.kv.get(header.namespace, header.key)
    if value is None:
        name, key = excerpt(header.namespace), excerpt(header.key)
        remark = f"No config item, Namespace: {name} Key: {key}"
        return command.reply(request, ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(request, ext_fields=headers.encode(headers.KvReplyHeader(value=value)))


def delete_kv(parts: Parts, channel: Channel, request: Command) -> None:
    """102: remove a value of the key-value table. BrokerError when it is gone from disk."""
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
            what = "deleted" if change.value is None else f"is {change.value[:_SHOWN]!r}"
            text = "%s: %.300r %.300r %s"
            parts.events.note("kv", text, channel.peer, change.namespace, change.key, what)
        if not request.is_oneway:
            channel.answer(request, reply)

    is_change = parts.kv_saver.change(change, on_saved)


def kv_namespace(parts: Parts, channel: Channel, request: Command) -> Command:
    """219: all values of a namespace."""
    namespace = headers.decode(headers.NamespaceHeader, request.ext_fields).namespace
    pairs = parts.kv.namespace(namespace)
    if pairs is None:
        remark = f"No config item, Namespace: {excerpt(namespace)}"
        return command.reply(request, ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(request, body=bodies.encode(bodies.KvTable(table=pairs)))


# --- settings of the name server --------------------------------------------------


def update_config(parts: Parts, channel: Channel, request: Command) -> None:
    """318: lines ``key=value``; all of them are set, or none."""
    limits.SETTINGS_BYTES.check(len(request.body))
    try:
        text = request.body.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"settings are no UTF-8: {error}") from error

    async def change_settings() -> None:
        if not text:
            return
        plan = parts.config.plan(text)
        await asyncio.to_thread(parts.config.write, plan)
        parts.config.apply(plan)
        known = {
            key: remote_settings.shown(key, value)[:_SHOWN] for key, value in plan.changes.items()
        }
        parts.events.warn("settings", "settings changed by %s: %s", channel.peer, known)

    parts.setting_requests.answer(channel, request, change_settings)


def get_config(parts: Parts, channel: Channel, request: Command) -> Command:
    """319: all settings, a line each."""
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
}
"""Request code to what serves it. Every code of 4.9.7's name server, and 217 of 5.x."""
