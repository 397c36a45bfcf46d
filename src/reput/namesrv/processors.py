"""What the name server does for each request: decode, ask a part, encode.

``PROCESSORS`` is all of it. Errors that a function raises become replies, with their text.
Source: rocketmq 4.9.7 ``DefaultRequestProcessor``; what is of 5.x is marked.
"""

import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reput.clock import Clock
from reput.errors import InvalidBody, InvalidHeader
from reput.format import bodies, command, headers
from reput.format.bodies import DataVersion, TopicConfigTable
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.namesrv import kv_table
from reput.namesrv.config import CurrentConfig
from reput.namesrv.kv_table import KvTable
from reput.namesrv.route_table import MASTER_ID, Registration, RouteTable
from reput.remoting.channel import Channel

V3_0_11 = 37
"""Brokers before it send their topics alone, without filter servers."""
_POSITIVE_INT = 0x7FFFFFFF
_ZLIB = b"\x78"
"""How zlib data begins, and JSON never does."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Parts:
    """What requests work on."""

    routes: RouteTable
    kv: KvTable
    config: CurrentConfig
    clock: Clock
    ready_ms: int
    """When routes are given, by monotonic time; see ``needWaitForService``."""


# --- brokers ----------------------------------------------------------------------


def register_broker(parts: Parts, channel: Channel, request: Command) -> Command:
    """103: a broker says that it is there, and which topics it has."""
    header = headers.decode(headers.RegisterBrokerHeader, request.ext_fields)
    crc = zlib.crc32(request.body) & _POSITIVE_INT
    if header.body_crc32 not in (0, crc):
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "crc32 not match")
    body = _registration_body(request, is_compressed=header.compressed)
    table = body.topic_config_serialize_wrapper
    is_old = request.version < V3_0_11
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
    registered = parts.routes.register(said, channel, parts.clock.monotonic_ms())
    if registered.is_new:
        role = "master" if said.broker_id == MASTER_ID else f"slave {said.broker_id}"
        _log.info("%s of %s registered at %s", role, said.broker_name, said.address)
    fields = headers.RegisterBrokerReplyHeader(
        ha_server_addr=registered.master_ha_address, master_addr=registered.master_address
    )
    order = None
    if parts.config.value.return_order_topic_config_to_broker:
        order = parts.kv.namespace(kv_table.ORDER_TOPIC_CONFIG)
    return command.reply(
        request,
        ext_fields=headers.encode(fields),
        body=b"" if order is None else bodies.encode(bodies.KvTable(table=order)),
    )


def _registration_body(request: Command, *, is_compressed: bool) -> bodies.RegisterBrokerBody:
    if not request.body:
        nothing = TopicConfigTable(data_version=DataVersion(), topic_config_table={})
        return bodies.RegisterBrokerBody(topic_config_serialize_wrapper=nothing)
    if request.version < V3_0_11:
        table = bodies.decode(TopicConfigTable, request.body)
        return bodies.RegisterBrokerBody(topic_config_serialize_wrapper=table)
    # 5.x compresses if told so and says it does not (5.3.3 BrokerOuterAPI.registerBrokerAll).
    if is_compressed or request.body.startswith(_ZLIB):
        return bodies.decompress_registration(request.body)
    return bodies.decode(bodies.RegisterBrokerBody, request.body)


def unregister_broker(parts: Parts, channel: Channel, request: Command) -> Command:
    """104: a broker is about to stop."""
    header = headers.decode(headers.UnregisterBrokerHeader, request.ext_fields)
    if parts.routes.unregister(header.broker_name, header.broker_addr):
        _log.info("%s unregistered at %s", header.broker_name, header.broker_addr)
    return command.reply(request)


def query_data_version(parts: Parts, channel: Channel, request: Command) -> Command:
    """322: does a broker need to register? If not, this counts as a sign of life."""
    header = headers.decode(headers.QueryDataVersionHeader, request.ext_fields)
    address = header.broker_addr
    is_changed = parts.routes.is_changed(address, bodies.decode(DataVersion, request.body))
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
    queues = bodies.decode(bodies.TopicRouteData, request.body).queue_datas
    unknown = parts.routes.register_topic(topic, queues)
    if unknown:
        remark = f"not registered, so topic {topic} was not taken: {', '.join(unknown)}"
        return command.reply(request, ResponseCode.SYSTEM_ERROR, remark)
    return command.reply(request)


def wipe_write_permission(parts: Parts, channel: Channel, request: Command) -> Command:
    """205: no new messages for a broker that is to be stopped."""
    name = headers.decode(headers.BrokerNameHeader, request.ext_fields).broker_name
    count = parts.routes.wipe_write_permission(name)
    _log.info("%s: %d topics of %s are no longer writable", channel.peer, count, name)
    fields = headers.WipeWritePermReplyHeader(wipe_topic_count=count)
    return command.reply(request, ext_fields=headers.encode(fields))


def add_write_permission(parts: Parts, channel: Channel, request: Command) -> Command:
    """327: new messages for a broker again."""
    name = headers.decode(headers.BrokerNameHeader, request.ext_fields).broker_name
    count = parts.routes.add_write_permission(name)
    _log.info("%s: %d topics of %s are writable again", channel.peer, count, name)
    fields = headers.AddWritePermReplyHeader(add_topic_count=count)
    return command.reply(request, ext_fields=headers.encode(fields))


# --- routes -----------------------------------------------------------------------


def route_of_topic(parts: Parts, channel: Channel, request: Command) -> Command:
    """105: where a topic is.

    4.9 prints broker ids without quotes for clients before V4_9_4. All of them read quoted ones.
    """
    topic = headers.decode(headers.RouteHeader, request.ext_fields).topic
    config = parts.config.value
    if config.need_wait_for_service and parts.clock.monotonic_ms() < parts.ready_ms:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "name server not ready")
    route = parts.routes.route(topic)
    if route is None:
        remark = f"No topic route info in name server for the topic: {topic}"
        return command.reply(request, ResponseCode.TOPIC_NOT_EXIST, remark)
    if config.order_message_enable:
        route.order_topic_conf = parts.kv.get(kv_table.ORDER_TOPIC_CONFIG, topic)
    return command.reply(request, body=bodies.encode(route))


def cluster_info(parts: Parts, channel: Channel, request: Command) -> Command:
    """106: all brokers and clusters."""
    return command.reply(request, body=bodies.encode(parts.routes.cluster_info()))


def delete_topic(parts: Parts, channel: Channel, request: Command) -> Command:
    """216: forget a topic that was deleted on its brokers."""
    header = headers.decode(headers.DeleteTopicInNameServerHeader, request.ext_fields)
    parts.routes.delete_topic(header.topic, header.cluster_name)
    where = header.cluster_name or "all clusters"
    _log.info("%s: topic %s deleted in %s", channel.peer, header.topic, where)
    return command.reply(request)


# --- lists of topics --------------------------------------------------------------


def all_topics(parts: Parts, channel: Channel, request: Command) -> Command:
    """206: all topics."""
    if not parts.config.value.enable_all_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    return _topic_list(request, parts.routes.topics())


def topics_of_cluster(parts: Parts, channel: Channel, request: Command) -> Command:
    """224: the topics of a cluster."""
    cluster = headers.decode(headers.ClusterHeader, request.ext_fields).cluster
    return _some_topics(parts, request, parts.routes.topics_of_cluster(cluster))


def system_topics(parts: Parts, channel: Channel, request: Command) -> Command:
    """304: those that are named after clusters and brokers; a broker knows the others."""
    topics, address = parts.routes.system_topics()
    return _some_topics(parts, request, topics, address)


def unit_topics(parts: Parts, channel: Channel, request: Command) -> Command:
    """311: topics in unit mode."""
    return _some_topics(parts, request, parts.routes.unit_topics())


def unit_sub_topics(parts: Parts, channel: Channel, request: Command) -> Command:
    """312: topics with a subscription in unit mode."""
    return _some_topics(parts, request, parts.routes.unit_sub_topics())


def unit_sub_topics_of_no_unit(parts: Parts, channel: Channel, request: Command) -> Command:
    """313: topics with a subscription in unit mode that are not so themselves."""
    return _some_topics(parts, request, parts.routes.unit_sub_topics_of_no_unit())


def _some_topics(
    parts: Parts, request: Command, topics: list[str], address: str | None = None
) -> Command:
    if not parts.config.value.enable_topic_list:
        return command.reply(request, ResponseCode.SYSTEM_ERROR, "disable")
    return _topic_list(request, topics, address)


def _topic_list(request: Command, topics: list[str], address: str | None = None) -> Command:
    body = bodies.TopicList(broker_addr=address, topic_list=topics)
    return command.reply(request, body=bodies.encode(body))


# --- shared settings --------------------------------------------------------------


def put_kv(parts: Parts, channel: Channel, request: Command) -> Command:
    """100: set a value of the key-value table."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    if header.value is None:
        raise InvalidHeader("Kv: missing required field `value`")
    # A sync of the disk, with all connections waiting: it happens by hand, not by the second.
    parts.kv.put(header.namespace, header.key, header.value)
    _log.info("%s: %s %s is %s", channel.peer, header.namespace, header.key, header.value)
    return command.reply(request)


def get_kv(parts: Parts, channel: Channel, request: Command) -> Command:
    """101: a value of the key-value table."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    value = parts.kv.get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        return command.reply(request, ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(request, ext_fields=headers.encode(headers.KvReplyHeader(value=value)))


def delete_kv(parts: Parts, channel: Channel, request: Command) -> Command:
    """102: remove a value of the key-value table."""
    header = headers.decode(headers.KvHeader, request.ext_fields)
    if parts.kv.delete(header.namespace, header.key):
        _log.info("%s: %s %s deleted", channel.peer, header.namespace, header.key)
    return command.reply(request)


def kv_namespace(parts: Parts, channel: Channel, request: Command) -> Command:
    """219: all values of a namespace."""
    namespace = headers.decode(headers.NamespaceHeader, request.ext_fields).namespace
    pairs = parts.kv.namespace(namespace)
    if pairs is None:
        remark = f"No config item, Namespace: {namespace}"
        return command.reply(request, ResponseCode.QUERY_NOT_FOUND, remark)
    return command.reply(request, body=bodies.encode(bodies.KvTable(table=pairs)))


# --- settings of the name server --------------------------------------------------


def update_config(parts: Parts, channel: Channel, request: Command) -> Command:
    """318: lines ``key=value``; all of them are set, or none."""
    try:
        text = request.body.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"settings are no UTF-8: {error}") from error
    changes = parts.config.change(text) if text else {}
    for key, value in changes.items():
        _log.info("%s: setting %s is %s", channel.peer, key, value)
    return command.reply(request)


def get_config(parts: Parts, channel: Channel, request: Command) -> Command:
    """319: all settings, a line each."""
    return command.reply(request, body=parts.config.text().encode())


# ----------------------------------------------------------------------------------

Processor = Callable[[Parts, Channel, Command], Command]

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
