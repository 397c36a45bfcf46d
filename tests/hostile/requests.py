"""Valid requests of each code that the servers have: the material of hostile ones.

``BROKER`` and ``NAMESRV`` have a list of drafts for each code. ``recorded`` returns the frames that
official clients wrote, from ``tests/data/remoting``.
"""

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hostile.wire import Draft
from reput.format import batch, command as commands, headers, properties as props, recall_handle
from reput.format.batch import InnerMessage
from reput.format.codes import RequestCode as Code
from reput.format.headers import SendMessageHeader
from reput.format.recall_handle import RecallHandle

DATA = Path(__file__).resolve().parents[1] / "data/remoting"

TOPIC = "HostileTopic"
GROUP = "hostile_group"
LITE_TOPIC = "HostileLite"
LITE_GROUP = "hostile_lite"
CLIENT = "hostile@1"
BROKER_NAME = "broker-a"
UNKNOWN_BROKER = "broker-x"
"""A broker name at the name server, different from the broker that serves other clients."""
HANDLE = f"0 1700000000000 60000 0 0 {BROKER_NAME} 0 0"
OFFSET_ID = "7F000001000051AF0000000000000000"


def send_fields(*, is_v2: bool = True, **changes: Any) -> dict[str, Any]:
    """Return the header of a send."""
    values: dict[str, Any] = {
        "producer_group": "hostile_producers",
        "topic": TOPIC,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "KEYS\x01key\x02TAGS\x01tag\x02UNIQ_KEY\x017F000001\x02",
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
        **changes,
    }
    header = SendMessageHeader(**values)
    return dict(headers.encode_v2(header) if is_v2 else headers.encode(header))


def send(properties: str | None = None, body: bytes = b"hostile", **changes: Any) -> Draft:
    """Return a send; ``changes`` are fields of the header."""
    if properties is not None:
        changes["properties"] = properties
    return Draft(Code.SEND_MESSAGE_V2, send_fields(**changes), body=body)


def property_text(**pairs: str) -> str:
    """Return a property string."""
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def batch_body(count: int = 3) -> bytes:
    return batch.encode(
        InnerMessage(0, b"inner %d" % number, b"KEYS\x01k\x02") for number in range(count)
    )


def queue(queue_id: int = 0) -> dict[str, Any]:
    return {"brokerName": BROKER_NAME, "queueId": queue_id, "topic": TOPIC}


def subscription(text: str = "*", **more: Any) -> dict[str, Any]:
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": text,
        "subVersion": 1,
        "tagsSet": [],
        "topic": TOPIC,
        **more,
    }


def heartbeat_document(group: str = GROUP) -> dict[str, Any]:
    return {
        "clientID": CLIENT,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": group,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [subscription()],
                "unitMode": False,
            }
        ],
        "producerDataSet": [{"groupName": "hostile_producers"}],
    }


def pull_fields(**changes: Any) -> dict[str, Any]:
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "100",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **changes,
    }


def pop_fields(**changes: Any) -> dict[str, Any]:
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "-1",
        "maxMsgNums": "8",
        "invisibleTime": "10000",
        "pollTime": "100",
        "bornTime": "1700000000000",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        "attemptId": "attempt",
        **changes,
    }


def _ack_fields(**changes: Any) -> dict[str, Any]:
    return {**_place(consumerGroup=GROUP), "extraInfo": HANDLE, "offset": "0", **changes}


def _place(**more: Any) -> dict[str, Any]:
    return {"topic": TOPIC, "queueId": "0", **more}


def batch_ack_document(bits: bytes = b"\x07", revive_queue: int = 0) -> dict[str, Any]:
    ack = {
        "c": GROUP,
        "t": TOPIC,
        "r": "0",
        "so": 0,
        "q": 0,
        "rq": revive_queue,
        "pt": 1_700_000_000_000,
        "it": 60_000,
        "b": base64.b64encode(bits).decode(),
    }
    return {"brokerName": BROKER_NAME, "acks": [ack]}


def group_document(name: str = GROUP) -> dict[str, Any]:
    return {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": name,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 3,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
        "attributes": {},
    }


def topic_document(name: str = TOPIC) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }


def create_topic_fields(name: str = TOPIC, queues: int = 4) -> dict[str, Any]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "",
    }


def creation_of_topics(first: int, count: int) -> Draft:
    """Return a request that creates topics, numbered from ``first`` on."""
    topics = [topic_document(f"HostileCrowd{number:06}") for number in range(first, first + count)]
    return Draft(Code.UPDATE_AND_CREATE_TOPIC_LIST, document={"topicConfigList": topics})


_RECALL = recall_handle.encode(RecallHandle(TOPIC, BROKER_NAME, "1800000000000", "7F000001"))
_TOPIC = {"topic": TOPIC}
_GROUP = {"consumerGroup": GROUP}
_GROUP_AND_TOPIC = {"group": GROUP, "topic": TOPIC}
_LOCK = {"clientId": CLIENT, "consumerGroup": GROUP, "mqSet": [queue(0), queue(1)]}

_ACL = {
    "subject": "User:hostile",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:T",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Allow",
                }
            ],
        }
    ],
}
"""Rules of a user."""

BROKER: Mapping[int, list[Draft]] = {
    Code.SEND_MESSAGE: [Draft(10, send_fields(is_v2=False), body=b"hostile")],
    Code.SEND_MESSAGE_V2: [
        send(),
        send(property_text(DELAY="3")),
        send(property_text(TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u"), sys_flag=4),
        send(property_text(TIMER_DELAY_SEC="2", UNIQ_KEY="u2")),
        send(property_text(INNER_MULTI_DISPATCH="%LMQ%hostile,%LMQ%other")),
        send(topic=f"%RETRY%{GROUP}", reconsume_times=1),
    ],
    Code.SEND_BATCH_MESSAGE: [
        Draft(320, send_fields(batch=True), body=batch_body()),
        Draft(320, send_fields(batch=True), body=batch_body(100)),
    ],
    Code.CONSUMER_SEND_MSG_BACK: [
        Draft(
            36,
            {
                "offset": "0",
                "group": GROUP,
                "delayLevel": "0",
                "originMsgId": "id",
                "originTopic": TOPIC,
                "unitMode": "false",
                "maxReconsumeTimes": "16",
            },
        )
    ],
    Code.SEND_REPLY_MESSAGE: [
        Draft(
            324,
            send_fields(
                is_v2=False,
                topic="DefaultCluster_REPLY_TOPIC",
                properties=property_text(
                    CORRELATION_ID="c", REPLY_TO_CLIENT=CLIENT, TTL="3000", MSG_TYPE="reply"
                ),
            ),
            body=b"reply",
        )
    ],
    Code.SEND_REPLY_MESSAGE_V2: [
        Draft(
            325,
            send_fields(
                topic="DefaultCluster_REPLY_TOPIC",
                properties=property_text(CORRELATION_ID="c", REPLY_TO_CLIENT=CLIENT, TTL="3000"),
            ),
            body=b"reply",
        )
    ],
    Code.END_TRANSACTION: [
        Draft(
            37,
            {
                "producerGroup": "p",
                "tranStateTableOffset": "0",
                "commitLogOffset": "0",
                "commitOrRollback": str(choice),
                "fromTransactionCheck": "false",
                "msgId": "u",
                "transactionId": "u",
            },
        )
        for choice in (8, 12)
    ],
    Code.RESUME_CHECK_HALF_MESSAGE: [Draft(323, {"msgId": OFFSET_ID})],
    Code.RECALL_MESSAGE: [
        Draft(370, {"producerGroup": "p", "topic": TOPIC, "recallHandle": _RECALL})
    ],
    Code.PULL_MESSAGE: [
        Draft(11, pull_fields()),
        Draft(11, pull_fields(expressionType="SQL92", subscription="a > 5 AND TAGS IS NOT NULL")),
    ],
    Code.LITE_PULL_MESSAGE: [Draft(361, pull_fields(sysFlag="22"))],
    Code.POP_MESSAGE: [Draft(200050, pop_fields()), Draft(200050, pop_fields(order="true"))],
    Code.PEEK_MESSAGE: [Draft(200052, {**_place(consumerGroup=GROUP), "maxMsgNums": "8"})],
    Code.NOTIFICATION: [
        Draft(200054, {**_place(consumerGroup=GROUP), "pollTime": "100", "bornTime": "0"})
    ],
    Code.POLLING_INFO: [Draft(200055, _place(consumerGroup=GROUP))],
    Code.ACK_MESSAGE: [
        Draft(200051, _ack_fields()),
        Draft(200051, _ack_fields(extraInfo=f"0 1700000000000 60000 999 0 {BROKER_NAME} 0 0")),
    ],
    Code.BATCH_ACK_MESSAGE: [
        Draft(200151, document=batch_ack_document()),
        Draft(200151, document=batch_ack_document(revive_queue=999)),
    ],
    Code.CHANGE_MESSAGE_INVISIBLETIME: [
        Draft(200053, _ack_fields(invisibleTime="5000", suspend="false"))
    ],
    Code.POP_ROLLBACK: [Draft(200056)],
    Code.POP_LITE_MESSAGE: [
        Draft(
            200070,
            {
                "clientId": CLIENT,
                "consumerGroup": LITE_GROUP,
                "topic": LITE_TOPIC,
                "maxMsgNum": "8",
                "invisibleTime": "10000",
                "pollTime": "0",
                "bornTime": "0",
                "attemptId": "1",
            },
        )
    ],
    Code.LITE_SUBSCRIPTION_CTL: [
        Draft(
            200071,
            document={
                "subscriptionSet": [
                    {
                        "action": action,
                        "clientId": CLIENT,
                        "group": LITE_GROUP,
                        "topic": LITE_TOPIC,
                        "liteTopicSet": ["a", "b"],
                        "offsetOption": {"type": "OFFSET", "value": 1},
                        "version": 1,
                    }
                ]
            },
        )
        for action in ("PARTIAL_ADD", "COMPLETE_ADD", "PARTIAL_REMOVE", "COMPLETE_REMOVE")
    ],
    Code.GET_BROKER_LITE_INFO: [Draft(200074)],
    Code.GET_PARENT_TOPIC_INFO: [Draft(200075, {"topic": LITE_TOPIC})],
    Code.GET_LITE_TOPIC_INFO: [Draft(200076, {"parentTopic": LITE_TOPIC, "liteTopic": "a"})],
    Code.GET_LITE_CLIENT_INFO: [
        Draft(
            200077,
            {
                "parentTopic": LITE_TOPIC,
                "group": LITE_GROUP,
                "clientId": CLIENT,
                "maxCount": "1000",
            },
        )
    ],
    Code.GET_LITE_GROUP_INFO: [
        Draft(200078, {"group": LITE_GROUP, "liteTopic": "", "topK": "20"}),
        Draft(200078, {"group": LITE_GROUP, "liteTopic": "a", "topK": "20"}),
    ],
    Code.TRIGGER_LITE_DISPATCH: [Draft(200079, {"group": LITE_GROUP, "clientId": CLIENT})],
    Code.QUERY_ASSIGNMENT: [
        Draft(
            400,
            document={
                "clientId": CLIENT,
                "consumerGroup": GROUP,
                "messageModel": "CLUSTERING",
                "strategyName": "AVG",
                "topic": TOPIC,
            },
        )
    ],
    Code.SET_MESSAGE_REQUEST_MODE: [
        Draft(
            401,
            document={"consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0, "topic": TOPIC},
        )
    ],
    Code.GET_ALL_MESSAGE_REQUEST_MODE: [Draft(402)],
    Code.HEART_BEAT: [Draft(34, document=heartbeat_document())],
    Code.UNREGISTER_CLIENT: [
        Draft(
            35,
            {"clientID": CLIENT, "producerGroup": "hostile_producers", "consumerGroup": GROUP},
        )
    ],
    Code.CHECK_CLIENT_CONFIG: [
        Draft(
            46,
            document={
                "clientId": CLIENT,
                "group": GROUP,
                "subscriptionData": subscription("a > 5", expressionType="SQL92"),
            },
        )
    ],
    Code.GET_CONSUMER_LIST_BY_GROUP: [Draft(38, _GROUP)],
    Code.LOCK_BATCH_MQ: [Draft(41, document=_LOCK)],
    Code.UNLOCK_BATCH_MQ: [Draft(42, document=_LOCK)],
    Code.QUERY_CONSUMER_OFFSET: [Draft(14, _place(consumerGroup=GROUP))],
    Code.UPDATE_CONSUMER_OFFSET: [Draft(15, _place(consumerGroup=GROUP, commitOffset="0"))],
    Code.SEARCH_OFFSET_BY_TIMESTAMP: [Draft(29, _place(timestamp="1700000000000"))],
    Code.GET_MAX_OFFSET: [Draft(30, _place())],
    Code.GET_MIN_OFFSET: [Draft(31, _place())],
    Code.GET_EARLIEST_MSG_STORETIME: [Draft(32, _place())],
    Code.QUERY_CORRECTION_OFFSET: [
        Draft(308, {"filterGroups": "a,b", "compareGroup": GROUP, "topic": TOPIC})
    ],
    Code.GET_ALL_CONSUMER_OFFSET: [Draft(43)],
    Code.GET_ALL_DELAY_OFFSET: [Draft(45)],
    Code.GET_TIMER_CHECK_POINT: [Draft(60)],
    Code.GET_TIMER_METRICS: [Draft(61)],
    Code.SWITCH_TIMER_ENGINE: [Draft(5001, {"engineType": "F"})],
    Code.CLONE_GROUP_OFFSET: [
        Draft(
            314,
            {"srcGroup": GROUP, "destGroup": "hostile_clone", "topic": TOPIC, "offline": "true"},
        )
    ],
    Code.UPDATE_AND_CREATE_TOPIC: [
        Draft(17, create_topic_fields()),
        Draft(17, {**create_topic_fields(LITE_TOPIC), "attributes": "+message.type=LITE"}),
    ],
    Code.UPDATE_AND_CREATE_TOPIC_LIST: [
        Draft(18, document={"topicConfigList": [topic_document(), topic_document("HostileOther")]})
    ],
    Code.DELETE_TOPIC_IN_BROKER: [Draft(215, {"topic": "HostileOther"})],
    Code.GET_ALL_TOPIC_CONFIG: [Draft(21)],
    Code.GET_TOPIC_CONFIG: [Draft(351, _TOPIC)],
    Code.GET_TOPIC_STATS_INFO: [Draft(202, _TOPIC)],
    Code.QUERY_TOPIC_CONSUME_BY_WHO: [Draft(300, _TOPIC)],
    Code.QUERY_TOPICS_BY_CONSUMER: [Draft(343, {"group": GROUP})],
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: [Draft(345, _GROUP_AND_TOPIC)],
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: [Draft(305)],
    Code.CLEAN_UNUSED_TOPIC: [Draft(316)],
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: [Draft(306)],
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: [
        Draft(200, document=group_document()),
        Draft(
            200,
            document={
                **group_document(LITE_GROUP),
                "attributes": {"+lite.bind.topic": LITE_TOPIC},
            },
        ),
    ],
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: [
        Draft(225, document={"groupConfigList": [group_document(), group_document("hostile_2")]})
    ],
    Code.DELETE_SUBSCRIPTIONGROUP: [
        Draft(207, {"groupName": "hostile_2", "removeOffset": "true", "cleanOffset": "true"})
    ],
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: [Draft(201)],
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: [Draft(352, {"group": GROUP})],
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: [Draft(353, {**_GROUP_AND_TOPIC, "readable": "true"})],
    Code.QUERY_MESSAGE: [
        Draft(
            12,
            {
                "topic": TOPIC,
                "key": "key",
                "maxNum": "32",
                "beginTimestamp": "0",
                "endTimestamp": "9223372036854775807",
                "indexType": "K",
                "_UNIQUE_KEY_QUERY": unique,
            },
        )
        for unique in ("false", "true")
    ],
    Code.VIEW_MESSAGE_BY_ID: [Draft(33, {"offset": "0", "topic": TOPIC})],
    Code.QUERY_CONSUME_QUEUE: [Draft(321, _place(index="0", count="64", consumerGroup=GROUP))],
    Code.QUERY_CONSUME_TIME_SPAN: [Draft(303, _GROUP_AND_TOPIC)],
    Code.GET_CONSUMER_CONNECTION_LIST: [Draft(203, _GROUP)],
    Code.GET_PRODUCER_CONNECTION_LIST: [Draft(204, {"producerGroup": "hostile_producers"})],
    Code.GET_ALL_PRODUCER_INFO: [Draft(328)],
    Code.GET_CONSUMER_RUNNING_INFO: [
        Draft(307, {"consumerGroup": GROUP, "clientId": CLIENT, "jstackEnable": "false"})
    ],
    Code.CONSUME_MESSAGE_DIRECTLY: [
        Draft(
            309,
            {
                "consumerGroup": GROUP,
                "clientId": CLIENT,
                "msgId": OFFSET_ID,
                "brokerName": BROKER_NAME,
            },
        )
    ],
    Code.INVOKE_BROKER_TO_RESET_OFFSET: [
        Draft(
            222,
            {
                **_GROUP_AND_TOPIC,
                "timestamp": "-1",
                "isForce": "true",
                "queueId": "0",
                "offset": "0",
            },
        )
    ],
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: [
        Draft(223, {**_GROUP_AND_TOPIC, "clientAddr": CLIENT})
    ],
    Code.GET_BROKER_RUNTIME_INFO: [Draft(28)],
    Code.VIEW_BROKER_STATS_DATA: [Draft(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC})],
    Code.GET_CONSUME_STATS: [Draft(208, {"consumerGroup": GROUP, "topic": TOPIC})],
    Code.GET_BROKER_CONSUME_STATS: [Draft(317, {"isOrder": "false"})],
    Code.EXCHANGE_BROKER_HA_INFO: [
        Draft(906),
        Draft(906, {"masterHaAddress": "127.0.0.1:9", "masterFlushOffset": "0"}),
    ],
    Code.GET_BROKER_HA_STATUS: [Draft(907)],
    Code.GET_BROKER_EPOCH_CACHE: [Draft(1007, {"brokerName": BROKER_NAME})],
    Code.NOTIFY_BROKER_ROLE_CHANGED: [
        Draft(
            1008,
            {
                "masterAddress": "127.0.0.1:9",
                "masterBrokerId": "2",
                "masterEpoch": "7",
                "syncStateSetEpoch": "9",
            },
            {"syncStateSet": [2], "syncStateSetEpoch": 9},
        )
    ],
    Code.RESET_MASTER_FLUSH_OFFSET: [Draft(908, {"masterFlushOffset": "0"})],
    Code.UPDATE_BROKER_CONFIG: [
        Draft(25, body=b"transactionCheckMax=15\nmaxPopPollingSize=100000\n"),
        Draft(25, body=b"longPollingEnable=true\nshortPollingTimeMills=1000\n"),
    ],
    Code.GET_BROKER_CONFIG: [Draft(26)],
    Code.TRIGGER_DELETE_FILES: [Draft(27)],
    Code.DELETE_EXPIRED_COMMITLOG: [Draft(329)],
    Code.UPDATE_AND_CREATE_ACL_CONFIG: [
        Draft(
            50,
            {
                "accessKey": "hostile-key",
                "secretKey": "hostile-secret",
                "whiteRemoteAddress": "10.0.0.*",
                "admin": "false",
                "defaultTopicPerm": "DENY",
                "defaultGroupPerm": "SUB",
                "topicPerms": "T=PUB|SUB,U=DENY",
                "groupPerms": "g=SUB",
            },
        )
    ],
    Code.DELETE_ACL_CONFIG: [Draft(51, {"accessKey": "hostile-key"})],
    Code.GET_BROKER_CLUSTER_ACL_INFO: [Draft(52)],
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: [
        Draft(53, {"globalWhiteAddrs": "10.0.0.*,192.168.0.{1,2}", "aclFileFullPath": ""})
    ],
    Code.AUTH_CREATE_USER: [
        Draft(
            3001,
            {"username": "hostile"},
            {"username": "hostile", "password": "secret", "userType": "Normal"},
        )
    ],
    Code.AUTH_UPDATE_USER: [
        Draft(3002, {"username": "hostile"}, {"password": "other", "userStatus": "disable"})
    ],
    Code.AUTH_DELETE_USER: [Draft(3003, {"username": "hostile"})],
    Code.AUTH_GET_USER: [Draft(3004, {"username": "hostile"})],
    Code.AUTH_LIST_USER: [Draft(3005, {"filter": "host"})],
    Code.AUTH_CREATE_ACL: [Draft(3006, {"subject": "User:hostile"}, _ACL)],
    Code.AUTH_UPDATE_ACL: [Draft(3007, {"subject": "User:hostile"}, _ACL)],
    Code.AUTH_DELETE_ACL: [
        Draft(3008, {"subject": "User:hostile", "policyType": "Custom", "resource": "Topic:T"})
    ],
    Code.AUTH_GET_ACL: [Draft(3009, {"subject": "User:hostile"})],
    Code.AUTH_LIST_ACL: [Draft(3010, {"subjectFilter": "host", "resourceFilter": "Topic"})],
}
"""Request code -> valid requests to a broker."""


# --- name server ----------------------------------------------------------------------------------

_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}


def registration_fields(
    name: str = UNKNOWN_BROKER, address: str = "127.0.0.1:1", **more: Any
) -> dict[str, Any]:
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "HostileCluster",
        "haServerAddr": "127.0.0.1:2",
        "brokerId": "0",
        **more,
    }


def registration_document(topics: int = 2) -> dict[str, Any]:
    names = [f"HostileRegistered{number}" for number in range(topics)]
    return {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": _VERSION,
            "topicConfigTable": {name: topic_document(name) for name in names},
        },
    }


def compressed_registration(topics: int = 2, *, level: int = 9) -> bytes:
    """Return the body of a registration as brokers compress it."""
    version = json.dumps(_VERSION).encode()
    words = [f"HostileRegistered{number} 4 4 6 SINGLE_TAG".encode() for number in range(topics)]
    parts = [struct.pack(">i", len(version)), version, struct.pack(">i", topics)]
    for word in words:
        parts += [struct.pack(">i", len(word)), word]
    parts += [struct.pack(">i", 2), b"[]"]
    return zlib.compress(b"".join(parts), level)


_KV = {"namespace": "HOSTILE", "key": "key", "value": "value"}

NAMESRV: Mapping[int, list[Draft]] = {
    Code.PUT_KV_CONFIG: [Draft(100, _KV)],
    Code.GET_KV_CONFIG: [Draft(101, _KV)],
    Code.DELETE_KV_CONFIG: [Draft(102, _KV)],
    Code.REGISTER_BROKER: [
        Draft(103, registration_fields(), document=registration_document()),
        Draft(103, registration_fields(compressed="true"), body=compressed_registration()),
    ],
    Code.UNREGISTER_BROKER: [Draft(104, registration_fields())],
    Code.GET_ROUTEINFO_BY_TOPIC: [Draft(105, {"topic": "HostileRegistered0"})],
    Code.GET_BROKER_CLUSTER_INFO: [Draft(106)],
    Code.WIPE_WRITE_PERM_OF_BROKER: [Draft(205, {"brokerName": UNKNOWN_BROKER})],
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: [Draft(206)],
    Code.DELETE_TOPIC_IN_NAMESRV: [
        Draft(216, {"topic": "HostileRegistered1", "clusterName": "HostileCluster"})
    ],
    Code.REGISTER_TOPIC_IN_NAMESRV: [
        Draft(
            217,
            {"topic": "HostileRegistered2"},
            document={
                "brokerDatas": [],
                "queueDatas": [
                    {
                        "brokerName": UNKNOWN_BROKER,
                        "perm": 6,
                        "readQueueNums": 4,
                        "topicSysFlag": 0,
                        "writeQueueNums": 4,
                    }
                ],
            },
        )
    ],
    Code.GET_KVLIST_BY_NAMESPACE: [Draft(219, {"namespace": "HOSTILE"})],
    Code.GET_TOPICS_BY_CLUSTER: [Draft(224, {"cluster": "HostileCluster"})],
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: [Draft(304)],
    Code.GET_UNIT_TOPIC_LIST: [Draft(311)],
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: [Draft(312)],
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: [Draft(313)],
    Code.UPDATE_NAMESRV_CONFIG: [Draft(318, body=b"orderMessageEnable=true\n")],
    Code.GET_NAMESRV_CONFIG: [Draft(319)],
    Code.QUERY_DATA_VERSION: [Draft(322, registration_fields(), document=_VERSION)],
    Code.ADD_WRITE_PERM_OF_BROKER: [Draft(327, {"brokerName": UNKNOWN_BROKER})],
    Code.GET_BROKER_MEMBER_GROUP: [
        Draft(901, {"clusterName": "HostileCluster", "brokerName": UNKNOWN_BROKER})
    ],
    Code.BROKER_HEARTBEAT: [Draft(904, registration_fields())],
}
"""Request code -> valid requests to a name server."""

SERVERS: Mapping[str, Mapping[int, list[Draft]]] = {"broker": BROKER, "namesrv": NAMESRV}

_NEVER = frozenset({Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG})
"""Recorded settings are an operator's: they may stop a server from serving other clients."""


def recorded() -> list[tuple[str, bytes]]:
    """Return recorded frames, length included, with the name of the file."""
    frames = []
    for path in sorted(DATA.glob("*/*.frame")):
        frame = path.read_bytes()
        code = commands.decode(frame[4:]).code
        if code not in _NEVER:
            frames.append((f"{path.parent.name}/{path.name}", frame))
    return frames


INTERNAL_PROPERTIES = sorted(
    value
    for name, value in vars(props).items()
    if name.isupper() and isinstance(value, str) and len(value) > 1
)
"""Names of properties that are significant to a broker."""
