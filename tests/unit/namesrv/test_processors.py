"""Each request of the name server, with the answer of Java 4.9.7."""

import asyncio
import json
import logging
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from reput import limits as shared_limits
from reput.clock import ManualClock
from reput.errors import (
    InvalidBody,
    LimitExceeded,
    ReputError,
)
from reput.format import limits as format_limits
from reput.format.bodies import TopicConfigData
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command
from reput.limits import Refusals
from reput.namesrv import limits
from reput.namesrv.config import CurrentConfig, NamesrvConfig
from reput.namesrv.kv_saver import KvSaver
from reput.namesrv.kv_table import KvChange, KvTable
from reput.namesrv.processors import PROCESSORS, Parts
from reput.namesrv.route_table import Registration, RouteTable
from reput.remoting import limits as remoting_limits
from reput.remoting.channel import Channel
from reput.remoting.client_faults import ClientFaults
from reput.remoting.request_queue import RequestQueue
from reput.remoting.time_slices import run_whole

DATA = Path(__file__).parents[2] / "data" / "remoting"
PLAIN = (DATA / "register_4.9.7_plain.json").read_bytes()
COMPRESSED = (DATA / "register_4.9.7_compressed.bin").read_bytes()
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
CODES_OF_5 = {217, 901, 904}


class _Peer:
    peer = "10.0.0.9:5000"

    def __init__(self) -> None:
        self.answers: list[Command] = []

    def answer(self, request: Command, reply: Command) -> None:
        self.answers.append(reply)


class Server:
    """The parts of a name server, without sockets."""

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
            setting_requests=RequestQueue(shared_limits.WAITING_SETTINGS),
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
        """Request a change of shared settings; the answer comes when it is on disk."""
        request = Command(code, 7, ext_fields=fields)
        assert PROCESSORS[code](self.parts, cast(Channel, self.peer), request) is None
        async with asyncio.timeout(30):
            await self.parts.kv_saver.close()
        return checked(self.peer.answers.pop())

    async def change_settings(self, body: bytes) -> Command:
        """Request a change of settings; the answer comes when it is on disk."""
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


def test_crc_of_java() -> None:
    """``UtilAll.crc32`` of 4.9.7 returns these values for the recorded bodies."""
    assert zlib.crc32(COMPRESSED) & 0x7FFFFFFF == 340192395
    assert zlib.crc32(PLAIN) & 0x7FFFFFFF == 1933577629


def test_a_damaged_body_is_refused(server: Server) -> None:
    for body in (b"{", b"[]", COMPRESSED[:-1]):
        with pytest.raises(InvalidBody):
            server.ask(RequestCode.REGISTER_BROKER, REGISTER, body)
    assert server.parts.routes.broker_count == 0


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


# --- logging ------------------------------------------------------------------


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


def test_a_flood_of_requests_writes_a_few_lines(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for i in range(1_000):
            server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": f"T{i}"})
    assert len(caplog.messages) < 10


# --- long requests and replies ------------------------------------------------


def topic_json(name: str) -> dict[str, Any]:
    return {
        "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": 8,
    }  # fmt: skip


def test_a_list_that_fits_no_frame_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{i:0100}" for i in range(1_000)]
    registration = Registration(
        cluster="C", broker_name="b", broker_id=0, address="h:1",
        topics=[msgspec.convert(topic_json(name), TopicConfigData) for name in names],
    )  # fmt: skip
    run_whole(server.parts.routes.register(registration, "c", 0))
    assert server.body(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": names}
    monkeypatch.setattr(remoting_limits, "REPLY_BYTES", remoting_limits.REPLY_BYTES.at(50_000))
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
def test_long_replies_are_built_in_steps(
    server: Server, code: int, fields: dict[str, str] | None
) -> None:
    for i in range(3_000):
        registration = Registration(
            cluster="C", broker_name=f"b{i}", broker_id=0, address=f"h:{i}",
            topics=[msgspec.convert(topic_json(name), TopicConfigData) for name in
                    ("T00000", f"T{i:05}")],
        )  # fmt: skip
        run_whole(server.parts.routes.register(registration, f"c{i}", 0))
    work = PROCESSORS[code](
        server.parts, cast(Channel, server.peer), Command(code, 7, ext_fields=fields)
    )
    assert isinstance(work, Generator)
    assert sum(1 for _ in work) >= 3


def test_bodies_are_bounded_before_decoding(server: Server) -> None:
    topic = {"topic": "T"}
    body = b"[" * (format_limits.BODY_BYTES.maximum + 1)
    with pytest.raises(LimitExceeded, match="limit body_bytes"):
        server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, topic, body)
    body = b"[" * (format_limits.LENIENT_JSON_BYTES.maximum + 1)
    with pytest.raises(LimitExceeded, match="limit lenient_json_bytes"):
        server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, topic, body)
    body = b"[" * (format_limits.REGISTRATION_PART_BYTES.maximum + 1)
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
