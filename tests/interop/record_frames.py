"""Record ``tests/data/remoting``: ``python -m interop.record_frames``, in ``tests/``.

The frames are written by RocketMQ's own encoder for chosen headers and bodies, or sent by official
clients to a socket. The manifest has the result of RocketMQ's own decoder for each.
"""

import base64
import contextlib
import json
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interop.java_cluster import ClientError, JavaClient, JavaMessage, Queue

DATA = Path(__file__).parents[1] / "data" / "remoting"
VERSIONS = ("4.9.7", "5.5.0")

UNIQ_KEY = "7F0000015EF818B4AAC2000000000000"
PROPERTIES = (
    f"KEYS\x01order-1\x02UNIQ_KEY\x01{UNIQ_KEY}\x02WAIT\x01true\x02TAGS\x01a\x02u\x01日本\x02"
)
SEND = {
    "producerGroup": "please_rename_unique_group_name",
    "topic": "TopicTest",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 3,
    "sysFlag": 0,
    "bornTimestamp": 1_700_000_000_000,
    "flag": 0,
    "properties": PROPERTIES,
    "reconsumeTimes": 0,
    "unitMode": False,
    "batch": False,
}
SEND_V2 = {letter: SEND[name] for letter, name in zip("abcdefghijkm", SEND, strict=True)}
PULL = {
    "consumerGroup": "group",
    "topic": "TopicTest",
    "queueId": 2,
    "queueOffset": 1234567890123,
    "maxMsgNums": 32,
    "sysFlag": 2,
    "commitOffset": 0,
    "suspendTimeoutMillis": 15_000,
    "subscription": "a || 日本",
    "subVersion": 1_700_000_000_001,
    "expressionType": "TAG",
}
OF_QUEUE = {"consumerGroup": "group", "topic": "TopicTest", "queueId": 2}
QUEUES = [{"brokerName": "broker-a", "queueId": i, "topic": "TopicTest"} for i in (0, 1)]
SUBSCRIPTION = {
    "classFilterMode": False,
    "codeSet": [97, 98],
    "expressionType": "TAG",
    "subString": "a || b",
    "subVersion": 1_700_000_000_001,
    "tagsSet": ["a", "b"],
    "topic": "TopicTest",
}
HEARTBEAT = {
    "clientID": "192.0.2.1@4242#123",
    "producerDataSet": [{"groupName": "producers"}],
    "consumerDataSet": [
        {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": "group",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [SUBSCRIPTION],
            "unitMode": False,
        }
    ],
}
ROUTE = {
    "brokerDatas": [
        {
            "brokerAddrs": {"0": "192.0.2.2:10911", "1": "192.0.2.3:10911"},
            "brokerName": "broker-a",
            "cluster": "DefaultCluster",
        }
    ],
    "filterServerTable": {},
    "queueDatas": [
        {
            "brokerName": "broker-a",
            "perm": 6,
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "topicSysFlag": 0,
        }
    ],
}
REGISTRATION = {
    "filterServerList": [],
    "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 3, "timestamp": 1_700_000_000_000},
        "topicConfigTable": {
            name: {
                "topicName": name,
                "readQueueNums": 8,
                "writeQueueNums": 4,
                "perm": perm,
                "order": False,
                "topicSysFlag": 0,
                "topicFilterType": "SINGLE_TAG",
            }
            for name, perm in (("TopicTest", 6), ("TBW102", 7))
        },
    },
}
REGISTER = {
    "brokerName": "broker-a",
    "brokerAddr": "192.0.2.2:10911",
    "clusterName": "DefaultCluster",
    "haServerAddr": "192.0.2.2:10912",
    "brokerId": 0,
}


def request(name: str, code: int, header: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a request for FrameOracle.java to encode; the header's fields are in ``fields``."""
    return {"name": name, "code": code, "header": header, **more}


def reply(name: str, code: int = 0, header: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a reply for FrameOracle.java to encode."""
    return {"name": name, "code": code, "header": header, "reply": True, **more}


def base(data: bytes) -> str:
    """Return bytes in the form that FrameOracle.java reads."""
    return base64.b64encode(data).decode()


FRAMES = [
    request("send", 10, "SendMessageRequestHeader", fields=SEND, body=base(b"Hello RocketMQ")),
    request(
        "send_v2", 310, "SendMessageRequestHeaderV2", fields=SEND_V2, body=base(b"Hello RocketMQ")
    ),
    request(
        "send_v2_without_properties",
        310,
        "SendMessageRequestHeaderV2",
        fields={name: value for name, value in SEND_V2.items() if name != "i"},
        body=base(bytes(range(256))),
    ),
    request(
        "send_v2_oneway",
        310,
        "SendMessageRequestHeaderV2",
        fields=SEND_V2,
        body=base(b"x"),
        oneway=True,
    ),
    request(
        "send_v2_to_retry",
        310,
        "SendMessageRequestHeaderV2",
        fields={**SEND_V2, "b": "%RETRY%group", "j": 3, "l": 16},
        body=base(b"again"),
    ),
    request(
        "send_v2_with_quotes",
        310,
        "SendMessageRequestHeaderV2",
        fields={**SEND_V2, "i": 'q\x01"\\/\b\f\n\r\t\x7f\u2028😀\x02'},
        body=base(b"x"),
    ),
    request(
        "send_batch",
        320,
        "SendMessageRequestHeaderV2",
        fields={**SEND_V2, "m": True},
        body=base(struct.pack(">iiiii5sh", 27, 0, 0, 0, 5, b"hello", 0)),
    ),
    request("pull", 11, "PullMessageRequestHeader", fields=PULL),
    request(
        "pull_without_subscription",
        11,
        "PullMessageRequestHeader",
        fields={
            name: value
            for name, value in PULL.items()
            if name not in ("subscription", "expressionType")
        },
    ),
    request("heartbeat", 34, bodyType="HeartbeatData", bodyValue=HEARTBEAT),
    request(
        "unregister_client",
        35,
        "UnregisterClientRequestHeader",
        fields={"clientID": "192.0.2.1@4242#123", "consumerGroup": "group"},
    ),
    request(
        "consumer_send_back",
        36,
        "ConsumerSendMsgBackRequestHeader",
        fields={
            "offset": 123456789,
            "group": "group",
            "delayLevel": 3,
            "originMsgId": UNIQ_KEY,
            "originTopic": "TopicTest",
            "unitMode": False,
            "maxReconsumeTimes": 16,
        },
    ),
    request(
        "consumer_list",
        38,
        "GetConsumerListByGroupRequestHeader",
        fields={"consumerGroup": "group"},
    ),
    request(
        "consumer_ids_changed",
        40,
        "NotifyConsumerIdsChangedRequestHeader",
        fields={"consumerGroup": "group"},
        oneway=True,
    ),
    request(
        "lock_queues",
        41,
        bodyType="LockBatchRequestBody",
        bodyValue={"consumerGroup": "group", "clientId": "192.0.2.1@4242", "mqSet": QUEUES[:1]},
    ),
    request("query_consumer_offset", 14, "QueryConsumerOffsetRequestHeader", fields=OF_QUEUE),
    request(
        "update_consumer_offset",
        15,
        "UpdateConsumerOffsetRequestHeader",
        fields={**OF_QUEUE, "commitOffset": 42},
        oneway=True,
    ),
    request(
        "max_offset",
        30,
        "GetMaxOffsetRequestHeader",
        fields={"topic": "TopicTest", "queueId": 2},
    ),
    request(
        "search_offset",
        29,
        "SearchOffsetRequestHeader",
        fields={"topic": "TopicTest", "queueId": 2, "timestamp": 1_700_000_000_000},
    ),
    request("view_message", 33, "ViewMessageRequestHeader", fields={"offset": 1 << 40}),
    request("route", 105, "GetRouteInfoRequestHeader", fields={"topic": "TopicTest"}),
    request(
        "register_broker",
        103,
        "RegisterBrokerRequestHeader",
        fields={**REGISTER, "compressed": False, "bodyCrc32": 0},
        bodyType="RegisterBrokerBody",
        bodyValue=REGISTRATION,
        compressed=False,
    ),
    request(
        "register_broker_compressed",
        103,
        "RegisterBrokerRequestHeader",
        fields={**REGISTER, "compressed": True, "bodyCrc32": 0},
        bodyType="RegisterBrokerBody",
        bodyValue=REGISTRATION,
        compressed=True,
    ),
    request("without_header", 28),
    request("by_others", 105, extFields={"topic": "日本"}, language="GO", version=317),
    reply(
        "send_reply",
        header="SendMessageResponseHeader",
        fields={"msgId": "C0000202000010910000000000000000", "queueId": 3, "queueOffset": 77},
        extFields={"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
    ),
    reply(
        "send_reply_with_key",
        header="SendMessageResponseHeader",
        fields={
            "msgId": "C0000202000010910000000000000000",
            "queueId": 3,
            "queueOffset": 77,
            "transactionId": UNIQ_KEY,
        },
        extFields={"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
    ),
    reply(
        "pull_reply",
        header="PullMessageResponseHeader",
        fields={
            "suggestWhichBrokerId": 0,
            "nextBeginOffset": 10,
            "minOffset": 0,
            "maxOffset": 10,
        },
        remark="FOUND",
        body=base(bytes(300)),
    ),
    reply(
        "pull_reply_nothing",
        19,
        "PullMessageResponseHeader",
        fields={
            "suggestWhichBrokerId": 0,
            "nextBeginOffset": 10,
            "minOffset": 0,
            "maxOffset": 10,
        },
        remark="OFFSET_OVERFLOW_ONE",
    ),
    reply("heartbeat_reply"),
    reply("route_reply", bodyType="TopicRouteData", bodyValue=ROUTE),
    reply(
        "route_reply_none",
        17,
        remark="No topic route info in name server for the topic: 日本\nSee the FAQ",
    ),
    reply(
        "consumer_list_reply",
        bodyType="GetConsumerListByGroupResponseBody",
        bodyValue={"consumerIdList": ["192.0.2.1@4242", "192.0.2.1@4243"]},
    ),
    reply(
        "consumer_offset_reply", header="QueryConsumerOffsetResponseHeader", fields={"offset": 42}
    ),
    reply("consumer_offset_reply_none", 22, remark="Not found, V3_0_6_SNAPSHOT maybe this group"),
    reply(
        "lock_queues_reply",
        bodyType="LockBatchResponseBody",
        bodyValue={"lockOKMQSet": QUEUES[:1]},
    ),
    reply("unknown_code_reply", 3, remark=" request type 9999 not supported"),
]


def record(java: JavaClient, version: str, serialization: str) -> Iterator[dict[str, Any]]:
    """Yield an entry and write a file for each frame that Java's encoder can write."""
    for number, wanted in enumerate(FRAMES):
        command = {"opaque": number - 3, "serialization": serialization, **wanted}
        name = command.pop("name")
        yield written(
            java,
            java.encode_frame(**command),
            f"{version}/{serialization.lower()}_{name}",
            command["header"],
        )


def written(java: JavaClient, frame: bytes, name: str, header: str | None) -> dict[str, Any]:
    """Write a frame; return its entry in the manifest."""
    path = DATA / f"{name}.frame"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame)
    decoded = java.decode_frame(frame, header)
    assert decoded.pop("open")
    decoded["body"] = decoded["body"].hex()
    return {"file": f"{name}.frame", "header": header, **decoded}


class FakeServer:
    """Server that imitates name server and broker well enough for a client; records all frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, struct.error):
            stream = connection.makefile("rb")
            while True:
                start = stream.read(4)
                frame = start + stream.read(*struct.unpack(">i", start))
                with self._lock:
                    self.frames.append(frame)
                connection.sendall(self._answer(frame))

    def _answer(self, frame: bytes) -> bytes:
        header = header_of(frame)
        if header["flag"] & 2:
            return b""
        code, ext_fields, body = 0, {}, b""
        match header["code"]:
            case 105:
                body = json.dumps(
                    {
                        **ROUTE,
                        "brokerDatas": [
                            {
                                "brokerAddrs": {"0": self.address},
                                "brokerName": "broker-a",
                                "cluster": "DefaultCluster",
                            }
                        ],
                    }
                ).encode()
            case 10 | 310 | 320:
                ext_fields = {"msgId": "C0000202000010910000000000000000", "queueOffset": "7"}
                ext_fields |= {"queueId": "0", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
            case 11 | 361:
                code = 19
                ext_fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "5"}
                ext_fields |= {"minOffset": "0", "maxOffset": "5"}
            case 38:
                # The client itself, by the id of its heartbeat.
                body = json.dumps({"consumerIdList": self._client_ids()}).encode()
            case 41:
                asked = json.loads(frame[8 + header["length"] :])
                body = json.dumps({"lockOKMQSet": asked["mqSet"]}).encode()
            case 14 | 29 | 30 | 31:
                ext_fields = {"offset": "5"}
            case _:
                pass
        answer = json.dumps(
            {
                "code": code,
                "language": "JAVA",
                "version": 407,
                "opaque": header["opaque"],
                "flag": 1,
                "extFields": ext_fields,
                "serializeTypeCurrentRPC": "JSON",
            }
        ).encode()
        return struct.pack(">ii", 4 + len(answer) + len(body), len(answer)) + answer + body

    def _client_ids(self) -> list[str]:
        client_ids = set()
        for frame in list(self.frames):
            header = header_of(frame)
            if header["code"] == 34:
                client_ids.add(json.loads(frame[8 + header["length"] :])["clientID"])
        return sorted(client_ids)

    def close(self) -> None:
        self._socket.close()


def header_of(frame: bytes) -> dict[str, Any]:
    """Return the JSON header of a frame, and its length."""
    (mark,) = struct.unpack_from(">i", frame, 4)
    return {**json.loads(frame[8 : 8 + mark]), "length": mark}


def live(java: JavaClient) -> dict[str, bytes]:
    """Return the first frame of each code that official clients sent."""
    server = FakeServer()
    message = JavaMessage("TopicTest", b"Hello RocketMQ", tags="a", keys="k", properties={"u": "1"})
    queue = Queue("TopicTest", "broker-a", 0)
    client_ip = {"clientIP": "192.0.2.1", "heartbeatBrokerInterval": 1000}
    try:
        with java.producer(server.address, "producers", **client_ip) as producer:
            producer.send([message])
            producer.send([message, message], "batch")
        for orderly in (False, True):
            with java.push_consumer(
                server.address, "group", "TopicTest", "a || b", orderly=orderly, **client_ip
            ) as consumer:
                wait_for(server, 41 if orderly else 11)
                consumer.persist()
        with java.pull_consumer(server.address, "pullers", **client_ip) as puller:
            puller.min_offset(queue)
            puller.max_offset(queue)
            puller.search_offset(queue, 1_700_000_000_000)
            puller.pull(queue, 5)
            puller.committed(queue)
            puller.commit(queue, 6)
        with (
            contextlib.suppress(ClientError),
            java.lite_pull_consumer(server.address, "lites", "TopicTest", **client_ip) as lite,
        ):
            wait_for(server, 361 if java.version == "5.5.0" else 11)
            lite.commit()
        return {f"code_{header_of(frame)['code']}": frame for frame in reversed(server.frames)}
    finally:
        server.close()


def wait_for(server: FakeServer, code: int) -> None:
    """Wait for a frame with this code."""
    for _ in range(300):
        if any(header_of(frame)["code"] == code for frame in list(server.frames)):
            return
        threading.Event().wait(0.1)
    raise TimeoutError(f"no frame with code {code}")


def main() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    entries = []
    for version in VERSIONS:
        with (
            tempfile.TemporaryDirectory(prefix="frames-") as work,
            JavaClient(version, Path(work, "client")) as java,
        ):
            for serialization in ("JSON", "ROCKETMQ"):
                entries += record(java, version, serialization)
            for name, frame in sorted(live(java).items()):
                entries.append(written(java, frame, f"{version}/live_{name}", None))
    lines = ",\n".join(json.dumps(entry, ensure_ascii=True) for entry in entries)
    (DATA / "manifest.json").write_text(f"[\n{lines}\n]\n", encoding="ascii")


if __name__ == "__main__":
    main()
