"""Each request of the name server: what is asked, what Java 4.9.7 answers."""

import json
import zlib
from pathlib import Path
from typing import Any, cast

import pytest

from reput.clock import ManualClock
from reput.errors import InvalidBody, InvalidHeader, ReputError
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.namesrv.config import CurrentConfig, FixedKey, NamesrvConfig
from reput.namesrv.kv_table import KvTable
from reput.namesrv.processors import PROCESSORS, Parts
from reput.namesrv.route_table import RouteTable
from reput.remoting.channel import Channel

DATA = Path(__file__).parents[2] / "data" / "remoting"
PLAIN = (DATA / "register_4.9.7_plain.json").read_bytes()
COMPRESSED = (DATA / "register_4.9.7_compressed.bin").read_bytes()
VERSION = {"counter": 42, "timestamp": 1700000000123}
ADDRESS = "10.0.0.1:10911"
BROKER = {
    "brokerName": "broker-a",
    "brokerAddr": ADDRESS,
    "clusterName": "C",
    "brokerId": "0",
}
REGISTER = {**BROKER, "haServerAddr": "10.0.0.1:10912", "compressed": "false", "bodyCrc32": "0"}

# RequestCode of every case of 4.9.7's DefaultRequestProcessor.processRequest, and 217 of 5.x.
CODES_OF_4_9 = {
    100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304, 311, 312, 313, 318, 319,
    322, 327,
}  # fmt: skip
CODES_OF_5 = {217}


class _Peer:
    peer = "10.0.0.9:5000"


PEER = cast(Channel, _Peer())


class Server:
    """The parts, asked without sockets."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        value = NamesrvConfig(
            kv_config_path=str(folder / "kvConfig.json"),
            config_store_path=str(folder / "namesrv.properties"),
            **settings,
        )
        self.parts = Parts(
            routes=RouteTable(),
            kv=KvTable(value.kv_config_path),
            config=CurrentConfig(value),
            clock=self.clock,
            ready_ms=value.wait_seconds_for_service * 1000,
        )

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        request = Command(code, 7, ext_fields=fields, body=body, **more)
        reply = PROCESSORS[code](self.parts, PEER, request)
        assert reply.opaque == 7
        assert reply.is_reply
        return reply

    def body(self, code: int, fields: dict[str, str] | None = None) -> Any:
        reply = self.ask(code, fields)
        assert reply.code == ResponseCode.SUCCESS
        return json.loads(reply.body)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_every_code_is_served() -> None:
    assert set(PROCESSORS) == CODES_OF_4_9 | CODES_OF_5


# --- brokers ----------------------------------------------------------------------


def test_register(server: Server) -> None:
    reply = server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    assert (reply.code, reply.ext_fields, reply.body) == (0, {}, b"")
    # As Java prints it for versions from V4_9_4 on, all members present.
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Ordered"}).body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"C"}],"filterServerTable":{"10.0.0.1:10911":["10.0.0.1:7000",'
        b'"10.0.0.1:7001"]},"queueDatas":[{"brokerName":"broker-a","perm":4,"readQueueNums":2,'
        b'"topicSysFlag":3,"writeQueueNums":2}]}'
    )


@pytest.mark.parametrize(
    ("body", "is_compressed"),
    [
        (PLAIN, "false"),
        (COMPRESSED, "true"),
        (COMPRESSED, "false"),  # what 5.3.3 and 5.5.0 say of it with compressedRegister
    ],
)
def test_register_checks_the_body(server: Server, body: bytes, is_compressed: str) -> None:
    crc = zlib.crc32(body) & 0x7FFFFFFF
    header = {**REGISTER, "compressed": is_compressed, "bodyCrc32": str(crc)}
    assert server.ask(RequestCode.REGISTER_BROKER, header, body).code == 0
    assert server.parts.routes.topics() == ["%RETRY%group", "Ordered", "TopicA"]
    reply = server.ask(RequestCode.REGISTER_BROKER, {**header, "bodyCrc32": str(crc + 1)}, body)
    assert (reply.code, reply.remark) == (1, "crc32 not match")


def test_crc_of_java() -> None:
    """``UtilAll.crc32`` of 4.9.7 returns these for the recorded bodies."""
    assert zlib.crc32(COMPRESSED) & 0x7FFFFFFF == 340192395
    assert zlib.crc32(PLAIN) & 0x7FFFFFFF == 1933577629


def test_register_without_a_body(server: Server) -> None:
    assert server.ask(RequestCode.REGISTER_BROKER, REGISTER).code == 0
    assert server.body(RequestCode.GET_BROKER_CLUSTER_INFO) == {
        "brokerAddrTable": {
            "broker-a": {"brokerAddrs": {"0": ADDRESS}, "brokerName": "broker-a", "cluster": "C"}
        },
        "clusterAddrTable": {"C": ["broker-a"]},
    }


def test_register_of_an_ancient_broker(server: Server) -> None:
    """Before V3_0_11 the body is the table of topics."""
    table = json.dumps(json.loads(PLAIN)["topicConfigSerializeWrapper"]).encode()
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, table, version=36)
    assert len(server.parts.routes.topics()) == 3


def test_a_slave_learns_its_master_and_ordered_topics(server: Server) -> None:
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    server.parts.kv.put("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:2")
    slave = {**REGISTER, "brokerId": "1", "brokerAddr": "10.0.0.2:10911", "haServerAddr": "x"}
    reply = server.ask(RequestCode.REGISTER_BROKER, slave, PLAIN)
    assert reply.ext_fields == {"masterAddr": ADDRESS, "haServerAddr": "10.0.0.1:10912"}
    assert json.loads(reply.body) == {"table": {"Ordered": "broker-a:2"}}


def test_ordered_topics_are_not_told_if_so_set(tmp_path: Path) -> None:
    server = Server(tmp_path, return_order_topic_config_to_broker=False)
    server.parts.kv.put("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:2")
    assert server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN).body == b""


def test_a_damaged_body_is_refused(server: Server) -> None:
    for body in (b"{", b"[]", COMPRESSED[:-1]):
        with pytest.raises(InvalidBody):
            server.ask(RequestCode.REGISTER_BROKER, REGISTER, body)
    assert server.parts.routes.cluster_info().broker_addr_table == {}


@pytest.mark.parametrize("field", sorted(BROKER))
def test_a_missing_field_is_named(server: Server, field: str) -> None:
    fields = {name: value for name, value in REGISTER.items() if name != field}
    for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
        with pytest.raises(InvalidHeader, match=field):
            server.ask(code, fields)


def test_unregister(server: Server) -> None:
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    for _ in range(2):
        assert server.ask(RequestCode.UNREGISTER_BROKER, BROKER).code == 0
        assert server.parts.routes.topics() == []


def test_query_data_version(server: Server) -> None:
    def ask(version: dict[str, int]) -> Command:
        return server.ask(RequestCode.QUERY_DATA_VERSION, BROKER, json.dumps(version).encode())

    reply = ask(VERSION)
    assert (reply.ext_fields, reply.body) == ({"changed": "true"}, b"")
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    server.clock.advance(120_000)
    reply = ask({**VERSION, "counter": 43})
    assert reply.ext_fields == {"changed": "true"}
    assert json.loads(reply.body) == VERSION
    assert ask(VERSION).ext_fields == {"changed": "false"}
    # The second was a sign of life, the first was none.
    assert server.parts.routes.expire(240_000) == []
    assert len(server.parts.routes.expire(240_001)) == 1
    with pytest.raises(InvalidBody):
        server.ask(RequestCode.QUERY_DATA_VERSION, BROKER)


def test_register_topic(server: Server) -> None:
    queue = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    body = json.dumps({"brokerDatas": [], "queueDatas": [queue]}).encode()
    reply = server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, body)
    assert reply.code == 1
    assert reply.remark == "not registered, so topic New was not taken: broker-a"
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    assert server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, body).code == 0
    assert "New" in server.parts.routes.topics()


def test_write_permission(server: Server) -> None:
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    name = {"brokerName": "broker-a"}
    wiped = server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
    assert wiped.ext_fields == {"wipeTopicCount": "3"}
    added = server.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
    assert added.ext_fields == {"addTopicCount": "3"}
    nobody = server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "x"})
    assert (nobody.code, nobody.ext_fields) == (0, {"wipeTopicCount": "0"})


# --- routes and topics ------------------------------------------------------------


def test_an_unknown_topic(server: Server) -> None:
    reply = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark == "No topic route info in name server for the topic: T"


@pytest.mark.parametrize("is_enabled", [False, True])
def test_how_ordered_queues_are_spread(tmp_path: Path, is_enabled: bool) -> None:
    server = Server(tmp_path, order_message_enable=is_enabled)
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    server.parts.kv.put("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:2")
    found = server.body(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Ordered"})
    assert found.get("orderTopicConf") == ("broker-a:2" if is_enabled else None)
    other = server.body(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
    assert "orderTopicConf" not in other


def test_waiting_for_brokers(tmp_path: Path) -> None:
    server = Server(tmp_path, need_wait_for_service=True)
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    server.clock.advance(44_999)
    reply = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
    assert (reply.code, reply.remark) == (1, "name server not ready")
    server.clock.advance(1)
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}).code == 0


def test_lists(server: Server) -> None:
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    every = ["%RETRY%group", "Ordered", "TopicA"]
    assert server.body(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": every}
    assert server.body(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}) == {"topicList": every}
    assert server.body(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "x"}) == {"topicList": []}
    assert server.body(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
        "brokerAddr": ADDRESS,
        "topicList": ["C", "broker-a"],
    }
    assert server.body(RequestCode.GET_UNIT_TOPIC_LIST) == {"topicList": ["Ordered"]}
    assert server.body(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"topicList": ["Ordered"]}
    assert server.body(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"topicList": []}


def test_lists_may_be_turned_off(tmp_path: Path) -> None:
    server = Server(tmp_path, enable_all_topic_list=False, enable_topic_list=False)
    for code in (206, 304, 311, 312, 313):
        assert server.ask(code).code == 1
        assert server.ask(code).remark == "disable"


def test_delete_topic(server: Server) -> None:
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "TopicA", "clusterName": "x"})
    assert "TopicA" in server.parts.routes.topics()
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "TopicA", "clusterName": "C"})
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "Ordered", "clusterName": ""})
    assert server.parts.routes.topics() == ["%RETRY%group"]


# --- shared settings --------------------------------------------------------------


def test_kv(server: Server) -> None:
    key = {"namespace": "n", "key": "k"}
    missing = server.ask(RequestCode.GET_KV_CONFIG, key)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    missing = server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n")
    with pytest.raises(InvalidHeader, match="value"):
        server.ask(RequestCode.PUT_KV_CONFIG, key)
    assert server.ask(RequestCode.PUT_KV_CONFIG, {**key, "value": "v"}).code == 0
    assert server.ask(RequestCode.GET_KV_CONFIG, key).ext_fields == {"value": "v"}
    assert server.body(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}) == {
        "table": {"k": "v"}
    }
    for _ in range(2):
        assert server.ask(RequestCode.DELETE_KV_CONFIG, key).code == 0
    assert server.ask(RequestCode.GET_KV_CONFIG, key).code == 22


# --- settings ---------------------------------------------------------------------


def test_settings(server: Server) -> None:
    assert server.ask(RequestCode.UPDATE_NAMESRV_CONFIG).code == 0
    reply = server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
    assert reply.code == 0
    lines = server.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()
    assert "orderMessageEnable=true" in lines
    with pytest.raises(FixedKey) as caught:
        server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/x")
    assert caught.value.response_code == ResponseCode.NO_PERMISSION
    for body in (b"\xff", b"nothing=1", b"a=\\u00"):
        with pytest.raises(ReputError):
            server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
