"""Attacks that once stopped, stalled or grew a server; each docstring names the finding.

What each server must do meanwhile and afterwards: ``hostile.local_scene``.
"""

import contextlib
import itertools
import json
import zlib
from typing import Any

import pytest

from hostile import requests
from hostile.local_scene import LocalScene, attacked
from hostile.servers import health_problem
from hostile.wire import Closed, Connection, Draft, accepted, answered, outcome, refused, together
from reput.format import message as records, message_id as ids, names
from reput.format.codes import RequestCode as Code
from reput.format.message import Host, StoredMessage
from reput.remoting import tls_settings
from reput.remoting.tls import TlsSession
from reput.remoting.tls_settings import TlsSettings

pytestmark = [pytest.mark.hostile, pytest.mark.slow, pytest.mark.xdist_group("hostile findings")]

# --- JSON that takes long to parse --------------------------------------------

BROKER_BODIES = [
    Code.HEART_BEAT,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
    Code.CHECK_CLIENT_CONFIG,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Code.UPDATE_AND_CREATE_TOPIC_LIST,
    Code.QUERY_ASSIGNMENT,
    Code.SET_MESSAGE_REQUEST_MODE,
    Code.BATCH_ACK_MESSAGE,
]
NAMESRV_BODIES = [Code.REGISTER_BROKER, Code.REGISTER_TOPIC_IN_NAMESRV, Code.QUERY_DATA_VERSION]

WITH_A_BODY = [("broker", code) for code in BROKER_BODIES] + [
    ("namesrv", code) for code in NAMESRV_BODIES
]

REGISTRATION = {
    "brokerName": "broker-x",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "HostileCluster",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": "0",
    "topic": "T",
}

JSON_BODIES: dict[str, bytes] = {
    "quotes": b'\\"' * 500_000,
    "quotes in an object": b"{" + b'\\"' * 32_000,
    "quotes and line ends": b'\\"\\\n' * 250_000,
    "arrays": b"[" * 1_000_000,
    "objects": b"{1:" * 300_000,
    "bare keys": b"{" + b"a:1," * 250_000 + b"}",
    "backslashes": b'{"' + b"\\" * 1_000_001,
    "one string": b'"' + b"x" * 1_000_000,
    "numbers": b"[" + b"1e9," * 250_000,
    "a long number": b"[" + b"9" * 1_000_000 + b"]",
}


@pytest.mark.parametrize(("server", "code"), WITH_A_BODY)
@attacked()
def test_body_that_is_no_json(scene: LocalScene, server: str, code: Code) -> None:
    """F1, F7, B5."""
    for scene.now, body in JSON_BODIES.items():
        fields = REGISTRATION if server == "namesrv" else None
        draft = Draft(code, fields, body=body)
        refused(scene.port_of(server), draft)


# --- heartbeats -----------------------------------------------------------------------------------


def heartbeat(consumers: int, producers: int = 0, **more: Any) -> Draft:
    return Draft(
        Code.HEART_BEAT,
        document={
            "clientID": "hostile@1",
            "consumerDataSet": [
                {
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "consumeType": "CONSUME_PASSIVELY",
                    "groupName": f"hostile_group_{number}",
                    "messageModel": "CLUSTERING",
                    "subscriptionDataSet": [],
                    "unitMode": False,
                    **more,
                }
                for number in range(consumers)
            ],
            "producerDataSet": [
                {"groupName": f"hostile_p_{number}"} for number in range(producers)
            ],
        },
    )


@attacked()
def test_heartbeat_with_many_new_groups(scene: LocalScene) -> None:
    """F2, B12: each new group saved the table of all topics."""
    for count in (500, 1_000, 2_000, 8_000):
        answered(scene.port, heartbeat(count))


@attacked()
def test_end_of_a_connection_with_many_producer_groups(scene: LocalScene) -> None:
    """B16: its groups were removed in quadratic time."""
    for count in (1_000, 20_000, 100_000):
        answered(scene.port, heartbeat(0, count))


# --- a connection that sends much ---------------------------------------------

PIPELINED = {
    "settings": (Draft(Code.GET_BROKER_CONFIG), 10_000),
    "runtime": (Draft(Code.GET_BROKER_RUNTIME_INFO), 2_000),
    "all topics": (Draft(Code.GET_ALL_TOPIC_CONFIG), 2_000),
    "unknown code": (Draft(9_999), 20_000),
    "heartbeats": (heartbeat(1), 5_000),
    "max offset": (Draft(Code.GET_MAX_OFFSET, {"topic": "Probed", "queueId": "0"}), 20_000),
}


@pytest.mark.parametrize("kind", PIPELINED)
@pytest.mark.sampled(9)
@attacked()
def test_a_pipeline_of_small_requests(scene: LocalScene, kind: str) -> None:
    """B13: all pending bytes of a connection were handled before other clients were served."""
    draft, count = PIPELINED[kind]
    frame = draft.encode()
    with Connection(scene.port) as connection:
        try:
            connection.write(frame * count, limit_s=60)
            for _ in connection.frames(limit_s=0.2):
                pass
        except Closed:
            pass


def test_together_numbers_requests() -> None:
    data = together([Draft(1), Draft(2)])
    assert b'"opaque": 1,' in data
    assert b'"opaque": 2,' in data


# --- stored data that loops and the next start read ---------------------------

LONE_SURROGATE = "\ud800"


@attacked()
def test_group_that_is_no_utf8(scene: LocalScene) -> None:
    """B1: its retry topic ended registration, and four requests, permanently."""
    refused(
        scene.port, Draft(Code.HEART_BEAT, document=requests.heartbeat_document(LONE_SURROGATE))
    )
    for code in (Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
        accepted(scene.port, Draft(code))
    accepted(scene.port, Draft(Code.GET_ALL_CONSUMER_OFFSET))


BAD_GROUPS = ["../../g", "a\nb", "\x01", 'a"b', "..", "x" * 10_000, "a/b", "", " ", "a@b"]


@attacked()
def test_names_of_groups(scene: LocalScene) -> None:
    """F6, B36: the names of groups were not checked."""
    for group in BAD_GROUPS:
        drafts = [
            Draft(Code.HEART_BEAT, document=requests.heartbeat_document(group)),
            Draft(
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, document=requests.group_document(group)
            ),
            requests.send(topic=f"%RETRY%{group}"),
            Draft(Code.POP_MESSAGE, requests.pop_fields(consumerGroup=group)),
            Draft(Code.PULL_MESSAGE, requests.pull_fields(consumerGroup=group)),
            Draft(
                Code.UPDATE_CONSUMER_OFFSET,
                {**requests.pull_fields(consumerGroup=group), "commitOffset": "1"},
            ),
        ]
        for draft in drafts:
            outcome(scene.port, draft)
        reply = answered(scene.port, Draft(Code.GET_ALL_TOPIC_CONFIG))
        topics = json.loads(reply.body)["topicConfigTable"]
        if group.strip():
            assert not [name for name in topics if group in name]
        groups = answered(scene.port, Draft(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        assert group not in json.loads(groups.body)["subscriptionGroupTable"]


@attacked()
def test_forged_checkpoint(scene: LocalScene) -> None:
    """B2: the broker took gigabytes for it, and did not restart."""
    for count in (33, 30_000_000, 10**9, 2**31 - 1):
        body = json.dumps(
            {
                "bm": 0, "c": "g", "it": 1, "n": count, "pt": 1, "q": 0, "ro": 0, "so": 0,
                "t": requests.TOPIC, "bn": requests.BROKER_NAME,
            }
        )  # fmt: skip
        topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
        properties = requests.property_text(TAGS="ck", UNIQ_KEY="u")
        for queue_id in range(2):
            answered(
                scene.port,
                requests.send(properties, body.encode(), topic=topic, queue_id=queue_id),
            )
        scene.advance()


def half(properties: str) -> Draft:
    pairs = requests.property_text(TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u") + properties
    return requests.send(pairs, sys_flag=4)


@attacked()
def test_half_message_with_a_forged_first_offset(scene: LocalScene) -> None:
    """B3: gigabytes at the next start."""
    for number in (3 * 10**9, 10**15, -1, 2**63, "9" * 5_000):
        draft = half(requests.property_text(TRAN_PREPARED_QUEUE_OFFSET=str(number)))
        answered(scene.port, draft)
        draft = half(requests.property_text(TRANSACTION_CHECK_TIMES=str(number)))
        answered(scene.port, draft)
        draft = half(requests.property_text(CHECK_IMMUNITY_TIME_IN_SECONDS=str(number)))
        answered(scene.port, draft)
        scene.advance()


def next_physical_offset(scene: LocalScene) -> int:
    """Return the end of a message that is sent now: probably the offset of the next one."""
    reply = accepted(scene.port, requests.send("", b"x"))
    assert reply.ext_fields is not None
    physical_offset = ids.decode_offset_id(reply.ext_fields["msgId"]).physical_offset
    view = answered(scene.port, Draft(Code.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)}))
    return physical_offset + len(view.body)


def forged_half(topic: str, queue_offset: int, physical_offset: int, queue_id: str = "0") -> bytes:
    """Return a record in the form of a half message of a topic."""
    host = Host(bytes([127, 0, 0, 1]), 1)
    properties = requests.property_text(
        TRAN_MSG="true", PGROUP="p", REAL_TOPIC=topic, REAL_QID=queue_id, UNIQ_KEY="u"
    )
    return records.encode(
        StoredMessage(
            topic=names.HALF_TOPIC,
            queue_id=0,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=host,
            store_timestamp=1,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=b"9" * 5_000,
            property_bytes=properties.encode(),
        )
    )


def store_record(scene: LocalScene, topic: str, queue_offset: int, queue_id: str) -> int:
    """Store a record in a body, at the physical offset that it contains; return that offset."""
    for _ in range(20):
        begin = next_physical_offset(scene)
        # A record's fixed part up to its body, with two IPv4 addresses.
        record = forged_half(topic, queue_offset, begin + 88, queue_id)
        reply = answered(scene.port, requests.send("", record))
        assert reply.ext_fields is not None
        if ids.decode_offset_id(reply.ext_fields["msgId"]).physical_offset == begin:
            return begin + 88
    raise AssertionError("others always sent a message in between")


@pytest.mark.parametrize("topic", [requests.TOPIC, names.OP_HALF_TOPIC, names.HALF_TOPIC])
@attacked()
def test_record_inside_a_body(scene: LocalScene, topic: str) -> None:
    """B4, B28: it was taken for a half message, and could be put into any topic."""
    places = itertools.product([0, 3 * 10**9, 2**63 - 1], ["0", "2147483646", "-1", "9" * 5_000])
    for queue_offset, queue_id in places:
        begin = store_record(scene, topic, queue_offset, queue_id)
        for is_check in ("true", "false"):
            fields = {
                "producerGroup": "p", "tranStateTableOffset": str(queue_offset),
                "commitLogOffset": str(begin), "commitOrRollback": "8", "msgId": "u",
                "fromTransactionCheck": is_check, "transactionId": "u",
            }  # fmt: skip
            refused(scene.port, Draft(Code.END_TRANSACTION, fields))
        host = Host(bytes([127, 0, 0, 1]), scene.port)
        message_id = ids.encode_offset_id(host, begin)
        refused(scene.port, Draft(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}))


@pytest.mark.parametrize("queue", [999, 0])
@attacked()
def test_batch_ack_with_many_bits(scene: LocalScene, queue: int) -> None:
    """B6: the whole number was shifted for each bit."""
    for size in (16_000, 64_000, 256_000, 4_000_000):
        document = requests.batch_ack_document(b"\xff" * size, queue)
        answered(scene.port, Draft(Code.BATCH_ACK_MESSAGE, document=document))


@attacked()
def test_a_message_with_the_most_attempts(scene: LocalScene) -> None:
    """B7: a message of 2^31-1 attempts, popped and not acknowledged, stopped pops permanently."""
    topic = "HostileAttempts"
    for attempts in (2**31 - 1, -(2**31), -1):
        answered(scene.port, requests.send("", topic=topic, reconsume_times=attempts))
    for _ in range(3):
        fields = requests.pop_fields(topic=topic, invisibleTime="1000", pollTime="0")
        answered(scene.port, Draft(Code.POP_MESSAGE, fields))
    scene.advance()


@pytest.mark.parametrize("name", requests.INTERNAL_PROPERTIES)
@pytest.mark.sampled(4)
@attacked()
def test_forged_internal_property(scene: LocalScene, name: str) -> None:
    """B3, B7, B8, B25, B26: properties that only brokers may set."""
    values = ["9" * 5_000, "-1", "9223372036854775808", "a@b@c", "..", "x" * 300, "2147483647", "0"]
    with Connection(scene.port) as connection:
        for value in values:
            own = requests.property_text(**{name: value})
            more = requests.property_text(UNIQ_KEY="u", PGROUP="p")
            drafts = [
                requests.send(own + more),
                half(own),
                requests.send(own + requests.property_text(TIMER_DELAY_SEC="1") + more),
                requests.send(own + requests.property_text(DELAY="1") + more),
                requests.send(own + requests.property_text(INNER_MULTI_DISPATCH="%LMQ%a") + more),
                requests.send(own, topic=f"%RETRY%{requests.GROUP}", reconsume_times=100),
            ]
            for number, draft in enumerate(drafts, 1):
                draft.opaque = number
                connection.ask(draft)
        scene.advance()


# --- large numbers ------------------------------------------------------------


@attacked()
def test_many_properties(scene: LocalScene) -> None:
    """B15: each name was searched in all earlier ones."""
    for count in (64, 8_000, 50_000, 1_000_000):
        text = "".join(f"{number:x}\x01v\x02" for number in range(count))
        outcome(scene.port, requests.send(text))
        fields = requests.send_fields(is_v2=False, properties=text)
        outcome(scene.port, Draft(Code.SEND_MESSAGE, fields, body=b"x"))


UNKNOWN = {
    "acks": lambda n: Draft(
        Code.ACK_MESSAGE,
        {
            "consumerGroup": f"unknown_{n}", "topic": requests.TOPIC, "queueId": "0",
            "extraInfo": requests.HANDLE, "offset": "0",
        },
    ),
    "pulls": lambda n: Draft(
        Code.PULL_MESSAGE,
        requests.pull_fields(consumerGroup=f"unknown_{n}", suspendTimeoutMillis="0"),
    ),
    "offsets": lambda n: Draft(
        Code.UPDATE_CONSUMER_OFFSET,
        {
            "consumerGroup": "unknown", "topic": requests.TOPIC, "queueId": str(n),
            "commitOffset": "1",
        },
    ),
    "topics": lambda n: requests.send("", topic=f"HostileNew{n}"),
    "routes": lambda n: Draft(Code.GET_TOPIC_STATS_INFO, {"topic": f"Nobody{n}"}),
    "light queues": lambda n: requests.send(
        requests.property_text(INNER_MULTI_DISPATCH=f"%LMQ%{n}")
    ),
    "calls for statistics": lambda n: Draft(
        Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": f"x{n}"}
    ),
}  # fmt: skip


NAMES = 2_000
"""Number of names that fill the tables; as many again must take no more blocks of memory."""
SMALL_TABLES = {
    "reputAutoCreatedTopicsPerAddressMax": NAMES // 2,
    "reputAutoCreatedGroupsPerAddressMax": NAMES // 2,
    "reputConsumerOffsetsPerAddressMax": NAMES // 2,
    "maxLmqConsumeQueueNum": NAMES // 2,
    "reputStatsSeriesMax": NAMES // 2,
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.sampled(3)
@attacked(settings=SMALL_TABLES, has_traffic=False)
def test_unknown_names_take_bounded_memory(scene: LocalScene, kind: str) -> None:
    """B17, B19: each name took memory permanently, and caused a save of a whole table."""
    counts = []
    with Connection(scene.port) as connection:
        for first in range(0, 2 * NAMES, 500):
            make = UNKNOWN[kind]
            connection.write(together(make(first + number) for number in range(500)), 60)
            for reply in connection.frames(30):
                if reply.opaque == 500:
                    break
            counts.append(scene.block_count())
    half = len(counts) // 2 - 1
    # Lines of the log that pytest keeps are some hundreds of blocks.
    assert counts[-1] - counts[half] < NAMES // 2, f"blocks of memory after 500 each: {counts}"


LARGE_FIELDS = {
    "group": Draft(Code.PULL_MESSAGE, requests.pull_fields(consumerGroup="g" * 4_000_000)),
    "subscription": Draft(Code.PULL_MESSAGE, requests.pull_fields(subscription="s" * 8_000_000)),
    "tags": Draft(
        Code.PULL_MESSAGE,
        requests.pull_fields(subscription="||".join(str(number) for number in range(1_000_000))),
    ),
    "key": Draft(
        Code.QUERY_MESSAGE,
        {
            "topic": requests.TOPIC,
            "key": "k" * 8_000_000,
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": str(2**63 - 1),
        },
    ),
    "header": Draft(Code.GET_MAX_OFFSET, {"topic": "t" * 15_000_000, "queueId": "0"}),
    "fields": Draft(Code.GET_MAX_OFFSET, {f"f{number}": "v" for number in range(300_000)}),
    "subscription of a heartbeat": Draft(
        Code.HEART_BEAT,
        document={
            **requests.heartbeat_document(),
            "consumerDataSet": [
                {
                    **requests.heartbeat_document()["consumerDataSet"][0],
                    "subscriptionDataSet": [requests.subscription("s" * 4_000_000)],
                }
            ],
        },
    ),
    "topics of a heartbeat": Draft(
        Code.HEART_BEAT,
        document={
            **requests.heartbeat_document(),
            "consumerDataSet": [
                {
                    **requests.heartbeat_document()["consumerDataSet"][0],
                    "subscriptionDataSet": [
                        {**requests.subscription(), "topic": f"T{number}"}
                        for number in range(100_000)
                    ],
                }
            ],
        },
    ),
    "queues to lock": Draft(
        Code.LOCK_BATCH_MQ,
        document={
            "clientId": requests.CLIENT,
            "consumerGroup": requests.GROUP,
            "mqSet": [requests.queue(number) for number in range(150_000)],
        },
    ),
    "batch": Draft(
        Code.SEND_BATCH_MESSAGE,
        requests.send_fields(batch=True),
        body=requests.batch_body(120_000),
    ),
    "settings": Draft(Code.UPDATE_BROKER_CONFIG, body=b"a=b\\\n" * 200_000),
    "a key of settings": Draft(Code.UPDATE_BROKER_CONFIG, body=b"a" * 1_000_000 + b"=1"),
    "groups to make": Draft(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        document={
            "groupConfigList": [requests.group_document(f"hm{number}") for number in range(10_000)]
        },
    ),
    "topics to make": Draft(
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        document={
            "topicConfigList": [requests.topic_document(f"Hm{number}") for number in range(10_000)]
        },
    ),
    "retry queues": Draft(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        document={**requests.group_document("many_retries"), "retryQueueNums": 2**31 - 1},
    ),
    "nesting": Draft(Code.GET_MAX_OFFSET, raw_header=b'{"code":30,"extFields":' + b"[" * 100_000),
}


@pytest.mark.parametrize("kind", LARGE_FIELDS)
@pytest.mark.sampled(3)
@attacked()
def test_large_request(scene: LocalScene, kind: str) -> None:
    """F7, F9, B17, B18, B22, B27 and the table of admin calls."""
    draft = LARGE_FIELDS[kind]
    frame = draft.encode()
    assert len(frame) <= 4 + (16 << 20)
    with (
        Connection(scene.port) as connection,
        contextlib.suppress(Closed),
    ):
        connection.write(frame, 60)
        next(connection.frames(60), None)


EXPRESSIONS = {
    "minuses": "a = " + "-" * 16_000 + "1",
    "or": " OR ".join(["a = 1"] * 20_000),
    "or, just allowed": " OR ".join(["a = 1"] * 1_600),
    "contains": " OR ".join(["a CONTAINS 'b'"] * 1_000),
    "in": "a IN (" + ",".join(f"'{number}'" for number in range(200_000)) + ")",
    "in, just allowed": "a IN (" + ",".join(["'x'"] * 4_000) + ")",
    "parentheses": "(" * 100_000 + "a = 1" + ")" * 100_000,
    "not": "NOT " * 4_000 + "a = 1",
    "text": "a = '" + "x" * 1_000_000 + "'",
    "digits": "a = " + "9" * 100_000,
}


@pytest.mark.parametrize("kind", EXPRESSIONS)
@attacked()
def test_filter(scene: LocalScene, kind: str) -> None:
    """F3, B21: compiling and running filters in SQL92."""
    text = EXPRESSIONS[kind]
    values = "".join(f"a{number}\x01{number}\x02" for number in range(50)) + "a\x015\x02"
    with Connection(scene.port) as connection:
        connection.write(
            together(requests.send(values, topic="HostileFiltered") for _ in range(200))
        )
        for reply in connection.frames():
            if reply.opaque == 200:
                break
        fields = requests.pull_fields(
            topic="HostileFiltered", subscription=text, expressionType="SQL92"
        )
        for opaque, draft in enumerate(
            [
                Draft(Code.PULL_MESSAGE, fields),
                Draft(
                    Code.CHECK_CLIENT_CONFIG,
                    document={
                        "clientId": requests.CLIENT,
                        "group": requests.GROUP,
                        "subscriptionData": requests.subscription(text, expressionType="SQL92"),
                    },
                ),
                Draft(Code.POP_MESSAGE, requests.pop_fields(exp=text, expType="SQL92")),
            ],
            300,
        ):
            draft.opaque = opaque
            with contextlib.suppress(Closed, TimeoutError):
                connection.ask(draft, 20)


@attacked()
def test_chain_of_one_key(scene: LocalScene) -> None:
    """B20: a message with the same key 10,000 times, and a query over the resulting chain."""
    keys = " ".join(["k"] * 16_000)
    with Connection(scene.port) as connection:
        connection.write(
            together(requests.send(requests.property_text(KEYS=keys)) for _ in range(50)), 60
        )
        for reply in connection.frames():
            if reply.opaque == 50:
                break
        scene.advance()
        for key in ("k", "other"):
            fields = {
                "topic": requests.TOPIC, "key": key, "maxNum": "64", "beginTimestamp": "0",
                "endTimestamp": str(2**63 - 1),
            }  # fmt: skip
            answered(scene.port, Draft(Code.QUERY_MESSAGE, fields))


# --- clients that do not read, or do not finish ---------------------------------------------------


@attacked()
def test_held_pulls_of_a_client_that_does_not_read(scene: LocalScene) -> None:
    """B14: ten thousand pulls were answered at once."""
    topic = "HostileHeld"
    answered(scene.port, requests.send("", topic=topic))
    with (
        Connection(scene.port, receive_buffer=4_096) as connection,
    ):
        fields = requests.pull_fields(
            topic=topic, queueOffset="1", suspendTimeoutMillis="15000", sysFlag="6"
        )
        pull = Draft(Code.PULL_MESSAGE, fields).encode()
        with contextlib.suppress(Closed):
            connection.write(pull * 10_000, 10, reads=False)
        scene.advance()
        outcome(scene.port, requests.send("", b"x" * 250_000, topic=topic))
        scene.advance()


@attacked(growth_max=128 << 20)
def test_notices_to_a_member_that_does_not_read(scene: LocalScene) -> None:
    """B10: each request of 200 bytes pushed a message of 4 MB to the member."""
    reply = answered(scene.port, requests.send("", b"x" * 4_000_000))
    assert reply.ext_fields is not None
    message_id = reply.ext_fields["msgId"]
    with (
        Connection(scene.port, receive_buffer=4_096) as deaf,
        Connection(scene.port) as caller,
    ):
        deaf.ask(Draft(Code.HEART_BEAT, document=requests.heartbeat_document()))
        fields = {
            "consumerGroup": requests.GROUP, "clientId": requests.CLIENT, "msgId": message_id,
            "brokerName": requests.BROKER_NAME,
        }  # fmt: skip
        with contextlib.suppress(Closed):
            caller.write(
                together(Draft(Code.CONSUME_MESSAGE_DIRECTLY, fields) for _ in range(500)), 10
            )
        scene.advance()


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@attacked(growth_max=192 << 20)
def test_connections_that_do_not_read(scene: LocalScene, server: str) -> None:
    """B29: 30 KB of requests caused a gigabyte of replies."""
    port = scene.port_of(server)
    code = {"broker": Code.GET_ALL_TOPIC_CONFIG, "namesrv": Code.GET_BROKER_CLUSTER_INFO}[server]
    with Connection(port) as connection:
        if server == "broker":
            assert connection.ask(requests.creation_of_topics(0, 3_000)).code == 0
        else:
            register(connection, 1_000)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(Connection(port, receive_buffer=4_096))
            with contextlib.suppress(Closed):
                connection.write(Draft(code).encode() * 20, 0.5, reads=False)
        scene.advance()


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@attacked(growth_max=192 << 20)
def test_frames_that_never_end(scene: LocalScene, server: str) -> None:
    """F9, B29: a hundred frames of 15 MB, each without its last byte."""
    port = scene.port_of(server)
    frame = Draft(Code.GET_MAX_OFFSET, body=bytes(15 << 20)).encode()[:-1]
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(Connection(port))
            with contextlib.suppress(Closed):
                connection.write(frame, 2)
        scene.advance()


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@attacked()
def test_a_byte_at_a_time(scene: LocalScene, server: str) -> None:
    """B29: each new byte was examined with all earlier ones."""
    frame = Draft(Code.GET_MAX_OFFSET, body=bytes(300_000)).encode()
    with Connection(scene.port_of(server)) as connection:
        connection.write(frame[:250_000])
        with contextlib.suppress(Closed):
            for place in range(250_000, 260_000):
                connection.write(frame[place : place + 1])


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@attacked()
def test_handshakes_at_once(scene: LocalScene, server: str) -> None:
    """Two hundred handshakes take turns with the requests of other clients."""
    anybody = tls_settings.client_context(TlsSettings())
    port = scene.port_of(server)
    with contextlib.ExitStack() as stack:
        begun = []
        for _ in range(200):
            session = TlsSession(anybody, is_server=False)
            session.shake()
            begun.append((session, stack.enter_context(Connection(port)).socket))
        for session, client in begun:
            client.sendall(session.take_output())
        frame = Draft(Code.GET_ALL_TOPIC_CONFIG).encode()
        for session, client in begun:
            while not session.shake():
                session.feed(client.recv(1 << 16))
            client.sendall(session.take_output() + session.encrypt(frame))
        for _, client in begun:
            assert client.recv(1 << 16)


@attacked()
def test_silent_http_connections(scene: LocalScene) -> None:
    """B30: one connection blocked /health for all other clients."""
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(Connection(scene.metrics_port))
        assert health_problem(scene.metrics_port) == ""


@attacked()
def test_a_thousand_idle_connections(scene: LocalScene) -> None:
    """B9, B29: they cost a bounded amount, and sends to new topics continue."""
    with contextlib.ExitStack() as stack:
        for _ in range(800):
            stack.enter_context(Connection(scene.port))
        accepted(scene.port, requests.send("", topic="HostileWhileIdle"))


# --- settings ------------------------------------------------------------------------------------

FIXED = {
    "storePathRootDir": "/elsewhere",
    "brokerName": "other",
    "listenPort": "1",
    "bindAddress": "0.0.0.0",
    "namesrvAddr": "127.0.0.1:1",
    "brokerIP1": "127.0.0.2",
    "brokerRole": "SLAVE",
}


@attacked()
def test_settings_that_may_not_be_changed_over_the_network(scene: LocalScene) -> None:
    """F4."""
    for key in FIXED:
        body = f"{key}={FIXED[key]}\n".encode()
        reply = refused(scene.port, Draft(Code.UPDATE_BROKER_CONFIG, body=body))
        assert key in (reply.remark or "")
        if key in ("listenPort", "bindAddress"):
            refused(scene.namesrv_port, Draft(Code.UPDATE_NAMESRV_CONFIG, body=body))


# --- name server ---------------------------------------------------------------------------------


def registration(brokers: range, topics: int = 1) -> list[Draft]:
    body = requests.compressed_registration(topics)
    return [
        Draft(
            Code.REGISTER_BROKER,
            requests.registration_fields(
                f"hostile-{number}", f"127.0.0.1:{number}", compressed="true"
            ),
            body=body,
        )
        for number in brokers
    ]


def register(connection: Connection, count: int) -> None:
    connection.write(together(registration(range(count))), 60)
    for reply in connection.frames(5):
        if reply.opaque == count:
            break


@pytest.mark.parametrize("count", [10_000, 100_000, 1_000_000])
@pytest.mark.sampled(2)
@attacked(growth_max=192 << 20)
def test_registration_of_many_topics(scene: LocalScene, count: int) -> None:
    """F9, B24: 2.6 MB of zlib took 10 s and 560 MB."""
    (draft,) = registration(range(1), count)
    scene.count_memory_from_now()
    outcome(scene.namesrv_port, draft, 60)
    for code in (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_TOPICS_BY_CLUSTER):
        outcome(scene.namesrv_port, Draft(code, {"cluster": "HostileCluster"}), 60)


@attacked()
def test_zlib_bomb(scene: LocalScene) -> None:
    """F9: 260 kB became 256 MB."""
    fields = requests.registration_fields(compressed="true")
    draft = Draft(Code.REGISTER_BROKER, fields, body=zlib.compress(bytes(255 << 20), 9))
    refused(scene.namesrv_port, draft)


@attacked()
def test_many_brokers_on_a_connection_that_ends(scene: LocalScene) -> None:
    """B24: they were removed in quadratic time."""
    with (
        Connection(scene.namesrv_port) as connection,
        contextlib.suppress(Closed),
    ):
        register(connection, 3_000)


@attacked()
def test_large_values_of_the_key_value_table(scene: LocalScene) -> None:
    """B24: the file of all values was written again for each one."""
    with Connection(scene.namesrv_port) as connection:
        for number in range(20):
            fields = {"namespace": "H", "key": f"k{number}", "value": "v" * 1_000_000}
            with contextlib.suppress(Closed):
                connection.ask(Draft(Code.PUT_KV_CONFIG, fields))
        for number in range(100):
            fields = {"namespace": f"N{number}", "key": "k", "value": "v" * 1_000}
            with contextlib.suppress(Closed):
                connection.ask(Draft(Code.PUT_KV_CONFIG, fields))


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@attacked()
def test_forged_log_lines(scene: LocalScene, server: str) -> None:
    """F8: a line end in a name made a line of the log."""
    forged = "x\n2026-01-01T00:00:00.000Z ERROR reput.forged it was not me"
    drafts = [
        draft for drafts_of_code in requests.SERVERS[server].values() for draft in drafts_of_code
    ]
    for draft in drafts:
        if draft.code in (25, 318):
            continue
        for name in draft.fields or {}:
            changed = draft.copy()
            assert changed.fields is not None
            changed.fields[name] = forged
            if changed.code in FORGEABLE:
                outcome(scene.port_of(server), changed, 5)
    scene.advance()
    log = "\n".join(scene.log.lines)
    assert "x\\n2026-01-01T00:00:00.000Z ERROR reput.forged" in log
    assert "\n2026-01-01T00:00:00.000Z ERROR reput.forged" not in log


FORGEABLE = frozenset(
    {
        Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG,
        Code.DELETE_TOPIC_IN_NAMESRV, Code.WIPE_WRITE_PERM_OF_BROKER, Code.END_TRANSACTION,
        Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER, Code.UNREGISTER_CLIENT,
        Code.DELETE_SUBSCRIPTIONGROUP, Code.CLONE_GROUP_OFFSET, Code.RECALL_MESSAGE,
    }
)  # fmt: skip
"""Request codes whose handling is logged with names from the request."""
