"""Each request of the name server: what is asked, what Java 4.9.7 answers."""

import asyncio
import json
import logging
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from reput import limits
from reput.clock import ManualClock
from reput.errors import (
    InvalidBody,
    InvalidHeader,
    LimitExceeded,
    ReputError,
)
from reput.format.bodies import TopicConfigData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.limits import Refusals
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.kv_saver import KvSaver
from reput.namesrv.kv_table import KvChange, KvTable
from reput.namesrv.processors import PROCESSORS, Parts
from reput.namesrv.route_table import Registration, RouteTable
from reput.remoting.channel import Channel
from reput.remoting.client_faults import ClientFaults
from reput.remoting.request_queue import RequestQueue
from reput.remoting.time_slices import run_whole

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

    def __init__(self) -> None:
        self.answers: list[Command] = []

    def answer(self, request: Command, reply: Command) -> None:
        self.answers.append(reply)


class Server:
    """The parts, asked without sockets."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        value = NamesrvConfig(
            kv_config_path=str(folder / "kvConfig.json"),
            config_store_path=str(folder / "namesrv.properties"),
            **settings,
        )
        kv = KvTable(value.kv_config_path)
        self.peer = _Peer()
        self.parts = Parts(
            routes=RouteTable(),
            kv=kv,
            kv_saver=KvSaver(kv),
            setting_requests=RequestQueue(limits.WAITING_SETTINGS),
            config=CurrentConfig(value),
            clock=self.clock,
            events=ClientFaults(logging.getLogger("namesrv"), lambda: 0.0),
            refusals=Refusals(),
            ready_ms=value.wait_seconds_for_service * 1000,
        )

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        request = Command(code, 7, ext_fields=fields, body=body, **more)
        reply = PROCESSORS[code](self.parts, cast(Channel, self.peer), request)
        if isinstance(reply, Generator):
            reply = run_whole(reply)
        assert reply is not None
        return checked(reply)

    async def change_kv(self, code: int, fields: dict[str, str]) -> Command:
        """Ask for a change of shared settings: it is answered when it is on disk."""
        request = Command(code, 7, ext_fields=fields)
        assert PROCESSORS[code](self.parts, cast(Channel, self.peer), request) is None
        async with asyncio.timeout(30):
            await self.parts.kv_saver.close()
        return checked(self.peer.answers.pop())

    async def change_settings(self, body: bytes) -> Command:
        """Ask for a change of settings: it is answered when it is on disk."""
        request = Command(RequestCode.UPDATE_NAMESRV_CONFIG, 7, body=body)
        processor = PROCESSORS[RequestCode.UPDATE_NAMESRV_CONFIG]
        assert processor(self.parts, cast(Channel, self.peer), request) is None
        async with asyncio.timeout(30):
            await self.parts.setting_requests.close()
        return checked(self.peer.answers.pop())

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        self.parts.kv.stage(KvChange(namespace, key, value))
        self.parts.kv.saved(self.parts.kv.staged())

    def body(self, code: int, fields: dict[str, str] | None = None) -> Any:
        reply = self.ask(code, fields)
        assert reply.code == ResponseCode.SUCCESS
        return json.loads(reply.body)


def checked(reply: Command) -> Command:
    assert reply.opaque == 7
    assert reply.is_reply
    return reply


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
    assert run_whole(server.parts.routes.topics()) == ["%RETRY%group", "Ordered", "TopicA"]
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
    assert len(run_whole(server.parts.routes.topics())) == 3


def test_a_slave_learns_its_master_and_ordered_topics(server: Server) -> None:
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    server.put_kv("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:2")
    slave = {**REGISTER, "brokerId": "1", "brokerAddr": "10.0.0.2:10911", "haServerAddr": "x"}
    reply = server.ask(RequestCode.REGISTER_BROKER, slave, PLAIN)
    assert reply.ext_fields == {"masterAddr": ADDRESS, "haServerAddr": "10.0.0.1:10912"}
    assert json.loads(reply.body) == {"table": {"Ordered": "broker-a:2"}}


def test_ordered_topics_are_not_told_if_so_set(tmp_path: Path) -> None:
    server = Server(tmp_path, return_order_topic_config_to_broker=False)
    server.put_kv("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:2")
    assert server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN).body == b""


def test_a_damaged_body_is_refused(server: Server) -> None:
    for body in (b"{", b"[]", COMPRESSED[:-1]):
        with pytest.raises(InvalidBody):
            server.ask(RequestCode.REGISTER_BROKER, REGISTER, body)
    assert server.parts.routes.broker_count == 0


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
        assert run_whole(server.parts.routes.topics()) == []


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
    assert reply.remark == "not registered, so topic New was not registered: broker-a"
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    assert server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, body).code == 0
    assert "New" in run_whole(server.parts.routes.topics())


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
    server.put_kv("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:2")
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
    assert "TopicA" in run_whole(server.parts.routes.topics())
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "TopicA", "clusterName": "C"})
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "Ordered", "clusterName": ""})
    assert run_whole(server.parts.routes.topics()) == ["%RETRY%group"]


# --- shared settings --------------------------------------------------------------


async def test_kv(server: Server, tmp_path: Path) -> None:
    key = {"namespace": "n", "key": "k"}
    missing = server.ask(RequestCode.GET_KV_CONFIG, key)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    missing = server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n")
    with pytest.raises(InvalidHeader, match="value"):
        server.ask(RequestCode.PUT_KV_CONFIG, key)
    assert (await server.change_kv(RequestCode.PUT_KV_CONFIG, {**key, "value": "v"})).code == 0
    assert KvTable(str(tmp_path / "kvConfig.json")).get("n", "k") == "v"
    assert server.ask(RequestCode.GET_KV_CONFIG, key).ext_fields == {"value": "v"}
    assert server.body(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}) == {
        "table": {"k": "v"}
    }
    for _ in range(2):
        assert (await server.change_kv(RequestCode.DELETE_KV_CONFIG, key)).code == 0
    assert server.ask(RequestCode.GET_KV_CONFIG, key).code == 22


async def test_kv_that_cannot_be_written_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").mkdir()
    fields = {"namespace": "n", "key": "k", "value": "v"}
    reply = await server.change_kv(RequestCode.PUT_KV_CONFIG, fields)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "kvConfig.json" in (reply.remark or "")
    assert server.ask(RequestCode.GET_KV_CONFIG, fields).code == 22


# --- settings ---------------------------------------------------------------------


async def test_settings(server: Server) -> None:
    assert (await server.change_settings(b"")).code == 0
    assert (await server.change_settings(b"orderMessageEnable=true\n")).code == 0
    lines = server.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()
    assert "orderMessageEnable=true" in lines
    refused = await server.change_settings(b"kvConfigPath=/x")
    assert refused.code == ResponseCode.NO_PERMISSION
    for body in (b"nothing=1", b"a=\\u00"):
        assert (await server.change_settings(body)).code != 0
    with pytest.raises(ReputError):
        server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"\xff")
    with pytest.raises(LimitExceeded, match="limit settings_bytes"):
        server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"a\\\n" * 30_000)


# --- what is logged ---------------------------------------------------------------


async def test_names_from_the_wire_are_quoted_in_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    name = "a\n2026 WARNING forged" + "x" * 1_000
    header = {**REGISTER, "brokerName": name[:400], "brokerAddr": "h\n:1"}
    with caplog.at_level(logging.INFO):
        server.ask(RequestCode.REGISTER_BROKER, header)
        server.ask(RequestCode.REGISTER_BROKER, {**header, "brokerAddr": "h\x1b:2"})
        server.ask(RequestCode.UNREGISTER_BROKER, {**header, "brokerAddr": "h\x1b:2"})
        server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name, "clusterName": name})
        server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name})
        server.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": name})
        await server.change_settings(b"productEnvName=a\\nb")
    assert len(caplog.messages) == 8
    for line in caplog.messages:
        assert line.isprintable()
        assert len(line) < 1_500


def test_a_flood_of_requests_is_a_few_lines(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for i in range(1_000):
            server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": f"T{i}"})
    assert len(caplog.messages) < 10


def test_who_takes_a_live_brokers_place_is_named(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask(RequestCode.REGISTER_BROKER, REGISTER, PLAIN)
    other = {**REGISTER, "brokerAddr": "10.9.9.9:1"}
    with caplog.at_level(logging.WARNING):
        server.ask(RequestCode.REGISTER_BROKER, other, PLAIN)
    (line,) = caplog.messages
    assert line == (
        "two addresses register as broker 'broker-a' with id 0: "
        "'10.0.0.1:10911' is registered and alive, "
        "'10.9.9.9:1' registers from 10.0.0.9:5000, which replaces it"
    )
    info = server.body(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "10.9.9.9:1"}


# --- what is long -----------------------------------------------------------------


def topic_json(name: str) -> dict[str, Any]:
    return {
        "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": 8,
    }  # fmt: skip


def test_a_list_that_no_frame_holds_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{i:0100}" for i in range(1_000)]
    said = Registration(
        cluster="C", broker_name="b", broker_id=0, address="h:1",
        topics=[msgspec.convert(topic_json(name), TopicConfigData) for name in names],
    )  # fmt: skip
    run_whole(server.parts.routes.register(said, "c", 0))
    assert server.body(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": names}
    monkeypatch.setattr(limits, "REPLY_BYTES", limits.REPLY_BYTES.at(50_000))
    with pytest.raises(LimitExceeded, match=r"brokers return their own topics.*limit reply_bytes"):
        server.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    with pytest.raises(LimitExceeded, match="limit reply_bytes"):
        server.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"})


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}),
        (RequestCode.GET_BROKER_CLUSTER_INFO, None),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, None),
        (RequestCode.GET_UNIT_TOPIC_LIST, None),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T00000"}),
    ],
)
def test_long_replies_are_made_in_steps(
    server: Server, code: int, fields: dict[str, str] | None
) -> None:
    for i in range(3_000):
        said = Registration(
            cluster="C", broker_name=f"b{i}", broker_id=0, address=f"h:{i}",
            topics=[msgspec.convert(topic_json(name), TopicConfigData) for name in
                    ("T00000", f"T{i:05}")],
        )  # fmt: skip
        run_whole(server.parts.routes.register(said, f"c{i}", 0))
    work = PROCESSORS[code](
        server.parts, cast(Channel, server.peer), Command(code, 7, ext_fields=fields)
    )
    assert isinstance(work, Generator)
    assert sum(1 for _ in work) >= 3


def test_bodies_are_bounded_before_they_are_read(server: Server) -> None:
    topic = {"topic": "T"}
    body = b"[" * (limits.BODY_BYTES.maximum + 1)
    with pytest.raises(LimitExceeded, match="limit body_bytes"):
        server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, topic, body)
    body = b"[" * (limits.LENIENT_JSON_BYTES.maximum + 1)
    with pytest.raises(LimitExceeded, match="limit lenient_json_bytes"):
        server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, topic, body)
    body = b"[" * (limits.REGISTRATION_PART_BYTES.maximum + 1)
    with pytest.raises(LimitExceeded, match="limit registration_part_bytes"):
        server.ask(RequestCode.QUERY_DATA_VERSION, BROKER, body)
    queue = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    many = [{**queue, "brokerName": f"b{i}"} for i in range(limits.ROUTE_BROKERS.maximum + 1)]
    body = json.dumps({"brokerDatas": [], "queueDatas": many}).encode()
    with pytest.raises(LimitExceeded, match="limit route_brokers"):
        server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, topic, body)
    body = json.dumps({"brokerDatas": [], "queueDatas": many[1:]}).encode()
    reply = server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T" * 500}, body)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert len(reply.remark or "") < 2_000
