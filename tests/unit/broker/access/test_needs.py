"""The needs of every request, as in the table of docs/reference/protocol.md."""

import contextlib
import json
from typing import Any

from cases import case
from reput.broker.access.needs import NEEDS, Facts, needs_of
from reput.broker.access.rules import SUPER_NEED, Need
from reput.broker.processors.table import PROCESSORS
from reput.errors import ReputError
from reput.format import message as record, message_id as ids, properties as props
from reput.format.access import Action, ResourceType
from reput.format.codes import RequestCode as Code
from reput.format.command import Command
from reput.format.message import Host, StoredMessage

PLACE = 4_000


def stored(topic: str, **properties: str) -> StoredMessage:
    message = StoredMessage(
        topic=topic,
        queue_id=0,
        queue_offset=0,
        physical_offset=PLACE,
        body=b"x",
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=Host(b"\x7f\0\0\1", 1),
        store_timestamp=1,
        store_host=Host(b"\x7f\0\0\1", 1),
        reconsume_times=0,
        prepared_transaction_offset=0,
        property_bytes=props.encode(properties),
    )
    return record.decode(record.encode(message), check_crc=False)


def facts(message: StoredMessage | None = None) -> Facts:
    """Return facts with a record at ``PLACE``."""

    def record_at(physical_offset: int) -> bytes | None:
        return record.encode(message) if message and physical_offset == PLACE else None

    return Facts("C", record_at, lambda place: message if place == PLACE else None)


def need(text: str) -> Need:
    """Return the need of a text: ``Topic:a Sub|Get``."""
    resource, _, actions = text.partition(" ")
    kind, _, name = resource.partition(":")
    return Need(ResourceType.parse(kind), name, frozenset(map(Action.parse, actions.split("|"))))


SENT = {
    "producerGroup": "p", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0",
}  # fmt: skip
SENT_SHORT = dict(zip("abcdefgh", SENT.values(), strict=True))
PULLED = {
    "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
    "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
}  # fmt: skip
QUEUE = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
POPPED = {
    **QUEUE, "maxMsgNums": "1", "invisibleTime": "1", "pollTime": "0", "initMode": "0",
    "extraInfo": "0 0 0 0 0 b 0", "offset": "0", "commitOffset": "0", "bornTime": "0",
}  # fmt: skip
BACK = {"offset": str(PLACE), "group": "g", "delayLevel": "0"}
ENDED = {
    "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": str(PLACE),
    "commitOrRollback": "8",
}  # fmt: skip
ID = ids.offset_id(stored("t"))
SUBSCRIBED = {"topic": "t", "subVersion": 0}
MEMBER = {
    "groupName": "g", "consumeFromWhere": "x", "consumeType": "x", "messageModel": "x",
    "subscriptionDataSet": [SUBSCRIBED, {"topic": "%RETRY%g", "subVersion": 0}],
}  # fmt: skip
BOTH = ["Group:g Sub", "Topic:t Sub"]
READ = ["Cluster:C Get|List"]
CHANGE = ["Cluster:C Update"]
GET = ["Cluster:C Get"]
NAMED = {"topic": "t", "group": "g", "consumerGroup": "g", "groupName": "g", "timestamp": "0"}
TOPIC_GET = ["Topic:t Get"]
BOTH_GET = ["Group:g Get", "Topic:t Get"]
SUB_GET = ["Topic:t Sub|Get"]

TABLE: list[tuple[int, dict[str, str], Any, list[str]]] = [
    (Code.SEND_MESSAGE, SENT, None, ["Topic:t Pub"]),
    (Code.SEND_MESSAGE_V2, SENT_SHORT, None, ["Topic:t Pub"]),
    (Code.SEND_BATCH_MESSAGE, SENT_SHORT, None, ["Topic:t Pub"]),
    (Code.SEND_MESSAGE, {**SENT, "topic": "%RETRY%g"}, None, ["Group:g Sub"]),
    (Code.SEND_MESSAGE_V2, {**SENT_SHORT, "b": "%DLQ%g"}, None, ["Topic:%DLQ%g Pub"]),
    (
        Code.SEND_MESSAGE,
        {**SENT, "properties": "A\1b\2INNER_MULTI_DISPATCH\1%LMQ%x,y\2"},
        None,
        ["Topic:t Pub", "Topic:%LMQ%x Pub", "Topic:y Pub"],
    ),
    (Code.SEND_REPLY_MESSAGE, {**SENT, "topic": "C_REPLY_TOPIC"}, None, []),
    (Code.SEND_REPLY_MESSAGE_V2, {**SENT_SHORT, "b": "D_REPLY_TOPIC"}, None,
     ["Topic:D_REPLY_TOPIC Pub"]),
    (Code.RECALL_MESSAGE, {"topic": "t", "recallHandle": "h"}, None, ["Topic:t Pub"]),
    (Code.PULL_MESSAGE, PULLED, None, BOTH),
    (Code.LITE_PULL_MESSAGE, PULLED, None, BOTH),
    (Code.PULL_MESSAGE, {**PULLED, "topic": "%RETRY%g"}, None, ["Group:g Sub"]),
    (Code.PULL_MESSAGE, {**PULLED, "topic": "%RETRY%g+t"}, None, BOTH),
    (Code.PULL_MESSAGE, {**PULLED, "topic": "%DLQ%g"}, None, ["Group:g Sub", "Topic:%DLQ%g Sub"]),
    (Code.POP_MESSAGE, POPPED, None, BOTH),
    (Code.PEEK_MESSAGE, POPPED, None, BOTH),
    (Code.NOTIFICATION, POPPED, None, BOTH),
    (Code.POLLING_INFO, POPPED, None, ["Group:g Sub|Get", "Topic:t Sub|Get"]),
    (Code.ACK_MESSAGE, POPPED, None, BOTH),
    (Code.ACK_MESSAGE, {**POPPED, "topic": "%RETRY%g_t"}, None, BOTH),
    (Code.ACK_MESSAGE, {**POPPED, "topic": "%RETRY%g+t"}, None, BOTH),
    (Code.ACK_MESSAGE, {**POPPED, "topic": "%RETRY%g"}, None, ["Group:g Sub"]),
    (Code.CHANGE_MESSAGE_INVISIBLETIME, {**POPPED, "topic": "%RETRY%g_t"}, None, BOTH),
    (Code.POP_ROLLBACK, {}, None, CHANGE),
    (Code.POP_LITE_MESSAGE, {**POPPED, "clientId": "c", "maxMsgNum": "1", "bornTime": "0"}, None,
     BOTH),
    (Code.LITE_SUBSCRIPTION_CTL, {}, {"subscriptionSet": [
        {"action": "PARTIAL_ADD", "clientId": "c", "group": "g", "topic": "t"}]}, BOTH),
    (Code.GET_BROKER_LITE_INFO, {}, None, GET),
    (Code.GET_PARENT_TOPIC_INFO, {"topic": "t"}, None, ["Topic:t Get"]),
    (Code.GET_LITE_TOPIC_INFO, {"parentTopic": "t", "liteTopic": "l"}, None, GET),
    (Code.GET_LITE_CLIENT_INFO, {"parentTopic": "t", "group": "g", "clientId": "c"}, None, GET),
    (Code.GET_LITE_GROUP_INFO, {"group": "g"}, None, GET),
    (Code.TRIGGER_LITE_DISPATCH, {"group": "g"}, None, CHANGE),
    (Code.QUERY_ASSIGNMENT, {}, {"clientId": "c", "consumerGroup": "g", "topic": "t"}, BOTH),
    (Code.SET_MESSAGE_REQUEST_MODE, {}, {"consumerGroup": "g", "topic": "t"}, ["Group:g Update"]),
    (Code.GET_ALL_MESSAGE_REQUEST_MODE, {}, None, GET),
    (Code.HEART_BEAT, {}, {"clientID": "c", "consumerDataSet": [MEMBER],
                           "producerDataSet": [{"groupName": "p"}]}, BOTH),
    (Code.CHECK_CLIENT_CONFIG, {},
     {"clientId": "c", "group": "g", "subscriptionData": SUBSCRIBED}, BOTH),
    (Code.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}, None, ["Group:g Sub"]),
    (Code.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}, None, []),
    (Code.GET_CONSUMER_LIST_BY_GROUP, QUEUE, None, ["Group:g Sub|Get"]),
    *(
        (code, {}, {"clientId": "c", "consumerGroup": "g", "mqSet": [
            {"topic": topic, "brokerName": "b", "queueId": 0} for topic in ("t", "t", "%RETRY%h")
        ]}, [*BOTH, "Group:h Sub"])
        for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ)
    ),
    (Code.QUERY_CONSUMER_OFFSET, QUEUE, None, ["Group:g Sub|Get", "Topic:t Sub|Get"]),
    (Code.QUERY_CONSUMER_OFFSET, {**QUEUE, "topic": "%RETRY%g"}, None, ["Group:g Sub|Get"]),
    (Code.UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": "0"}, None,
     ["Group:g Sub|Update", "Topic:t Sub|Update"]),
    (Code.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": "0"}, None, SUB_GET),
    (Code.GET_MAX_OFFSET, QUEUE, None, SUB_GET),
    (Code.GET_MAX_OFFSET, {**QUEUE, "topic": "%RETRY%g"}, None, ["Group:g Sub|Get"]),
    (Code.GET_MIN_OFFSET, QUEUE, None, SUB_GET),
    (Code.GET_EARLIEST_MSG_STORETIME, QUEUE, None, SUB_GET),
    (Code.QUERY_CORRECTION_OFFSET, {"topic": "t", "compareGroup": "g", "filterGroups": "x,y"}, None,
     ["Group:x Get", "Group:y Get", *BOTH_GET]),
    (Code.GET_ALL_CONSUMER_OFFSET, {}, None, READ),
    (Code.GET_ALL_DELAY_OFFSET, {}, None, READ),
    (Code.GET_TIMER_CHECK_POINT, {}, None, READ),
    (Code.GET_TIMER_METRICS, {}, None, READ),
    (Code.SWITCH_TIMER_ENGINE, {}, None, CHANGE),
    (Code.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h", "topic": "t"}, None,
     ["Group:g Get", "Group:h Update", "Topic:t Update"]),
    (Code.UPDATE_AND_CREATE_TOPIC,
     {"topic": "t", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}, None,
     ["Topic:t Create"]),
    (Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, {"topicConfigList": [
        {"topicName": name, "order": False, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
        for name in "tu"
    ]}, ["Topic:t Create", "Topic:u Create"]),
    (Code.DELETE_TOPIC_IN_BROKER, NAMED, None, ["Topic:t Delete"]),
    (Code.DELETE_TOPIC_IN_BROKER, {"topic": "%RETRY%g"}, None, ["Group:g Delete"]),
    (Code.GET_ALL_TOPIC_CONFIG, {}, None, READ),
    (Code.GET_TOPIC_CONFIG, NAMED, None, TOPIC_GET),
    (Code.GET_TOPIC_STATS_INFO, NAMED, None, TOPIC_GET),
    (Code.QUERY_TOPIC_CONSUME_BY_WHO, NAMED, None, TOPIC_GET),
    (Code.QUERY_TOPICS_BY_CONSUMER, NAMED, None, ["Group:g Get"]),
    (Code.QUERY_SUBSCRIPTION_BY_CONSUMER, NAMED, None, BOTH_GET),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, None, READ),
    (Code.CLEAN_UNUSED_TOPIC, {}, None, CHANGE),
    (Code.CLEAN_EXPIRED_CONSUMEQUEUE, {}, None, CHANGE),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, {"groupName": "g"}, ["Group:g Create|Update"]),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {},
     {"groupConfigList": [{"groupName": "g"}, {"groupName": "h"}]},
     ["Group:g Create|Update", "Group:h Create|Update"]),
    (Code.DELETE_SUBSCRIPTIONGROUP, NAMED, None, ["Group:g Delete"]),
    (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, None, READ),
    (Code.GET_SUBSCRIPTIONGROUP_CONFIG, NAMED, None, ["Group:g Get"]),
    (Code.UPDATE_AND_GET_GROUP_FORBIDDEN, NAMED, None, ["Group:g Update", "Topic:t Update"]),
    (Code.QUERY_MESSAGE, {"topic": "t", "key": "k", "maxNum": "1", "beginTimestamp": "0",
                          "endTimestamp": "1"}, None, SUB_GET),
    (Code.QUERY_CONSUME_QUEUE, {**QUEUE, "index": "0", "count": "1"}, None, BOTH_GET),
    (Code.QUERY_CONSUME_TIME_SPAN, NAMED, None, BOTH_GET),
    (Code.GET_CONSUMER_CONNECTION_LIST, NAMED, None, ["Group:g Get"]),
    (Code.GET_PRODUCER_CONNECTION_LIST, {}, None, GET),
    (Code.GET_ALL_PRODUCER_INFO, {}, None, GET),
    (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c"}, None,
     ["Group:g Get"]),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, NAMED, None, ["Group:g Update", "Topic:t Update"]),
    (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, NAMED, None, BOTH_GET),
    (Code.GET_BROKER_RUNTIME_INFO, {}, None, READ),
    (Code.VIEW_BROKER_STATS_DATA, {}, None, GET),
    (Code.GET_CONSUME_STATS, NAMED, None, BOTH_GET),
    (Code.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": ""}, None, ["Group:g Get"]),
    (Code.GET_BROKER_CONSUME_STATS, {}, None, GET),
    (Code.EXCHANGE_BROKER_HA_INFO, {}, None, READ),
    (Code.GET_BROKER_HA_STATUS, {}, None, READ),
    (Code.GET_BROKER_EPOCH_CACHE, {}, None, READ),
    (Code.NOTIFY_BROKER_ROLE_CHANGED, {}, None, READ),
    (Code.RESET_MASTER_FLUSH_OFFSET, {}, None, CHANGE),
    (Code.UPDATE_BROKER_CONFIG, {}, None, CHANGE),
    (Code.GET_BROKER_CONFIG, {}, None, READ),
    (Code.TRIGGER_DELETE_FILES, {}, None, CHANGE),
    (Code.DELETE_EXPIRED_COMMITLOG, {}, None, CHANGE),
    *((code, {}, None, CHANGE) for code in (50, 51, 52, 53)),
    *((code, {}, None, CHANGE) for code in (3001, 3002, 3003, 3006, 3007, 3008)),
    *((code, {}, None, GET) for code in (3004, 3005, 3009, 3010)),
]  # fmt: skip
"""Code, fields, body -> needs; for codes whose needs do not depend on a record."""

OF_RECORDS = {
    Code.CONSUMER_SEND_MSG_BACK,
    Code.END_TRANSACTION,
    Code.RESUME_CHECK_HALF_MESSAGE,
    Code.VIEW_MESSAGE_BY_ID,
    Code.CONSUME_MESSAGE_DIRECTLY,
    Code.BATCH_ACK_MESSAGE,
}
"""Codes with tests in this file."""


def request(code: int, fields: dict[str, str], body: Any = None) -> Command:
    data = b"" if body is None else json.dumps(body).encode()
    return Command(code, ext_fields=dict(fields), body=data)


def test_every_processor_has_an_entry() -> None:
    assert set(NEEDS) == set(PROCESSORS)


def test_every_entry_is_tested() -> None:
    assert {code for code, *_ in TABLE} | OF_RECORDS == set(NEEDS)


def test_needs() -> None:
    for code, fields, body, needs in TABLE:
        with case(code, fields):
            assert list(needs_of(facts(), request(code, fields, body))) == list(map(need, needs))


def test_a_code_without_an_entry_needs_a_super_user() -> None:
    for code in (0, -1, 13, 54, 999, 32767):
        assert needs_of(facts(), Command(code)) == (SUPER_NEED,), code


def test_what_cannot_be_decoded_is_not_served() -> None:
    """A request without its fields fails, or needs something: none is served to everybody."""
    for code in {code for code, fields, body, needs in TABLE if (fields or body) and needs}:
        with contextlib.suppress(ReputError):
            assert needs_of(facts(), Command(code)), code


def test_the_retry_topics_of_other_groups() -> None:
    for topic in ("%RETRY%h", "%RETRY%g_t", "%RETRY%gg", "%RETRY%h+t"):
        fields = {**PULLED, "topic": topic}
        assert needs_of(facts(), request(Code.PULL_MESSAGE, fields)) == (SUPER_NEED,), topic


# --- records --------------------------------------------------------------------------------------


def test_a_message_that_is_sent_back() -> None:
    for message, needs in (
        (stored("t"), BOTH),
        (stored("t", RETRY_TOPIC="mine"), BOTH),
        (stored("%RETRY%g", RETRY_TOPIC="t"), BOTH),
        (stored("%RETRY%g_t", RETRY_TOPIC="u"), ["Group:g Sub", "Topic:t Sub", "Topic:u Sub"]),
        (stored("%DLQ%h"), ["Group:g Sub", "Topic:%DLQ%h Sub"]),
        (stored("SCHEDULE_TOPIC_XXXX", REAL_TOPIC="t"), BOTH),
        (None, ["Group:g Sub"]),
    ):
        needed = needs_of(facts(message), request(Code.CONSUMER_SEND_MSG_BACK, BACK))
        assert list(dict.fromkeys(needed)) == list(map(need, needs)), message


def test_a_message_of_another_groups_retry_topic() -> None:
    needed = needs_of(facts(stored("%RETRY%h", RETRY_TOPIC="t")), request(36, BACK))
    assert SUPER_NEED in needed


def test_a_message_by_its_offset() -> None:
    for message, topic, needs in (
        (stored("t"), "", SUB_GET),
        (stored("t"), "t", SUB_GET),
        (stored("%RETRY%g"), "", ["Group:g Sub|Get"]),
        (stored("RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="t"), "t", SUB_GET),
        (stored("t", REAL_TOPIC="mine"), "", SUB_GET),
        (None, "", []),
    ):
        fields = {"offset": str(PLACE), **({"topic": topic} if topic else {})}
        needed = needs_of(facts(message), request(Code.VIEW_MESSAGE_BY_ID, fields))
        assert list(needed) == list(map(need, needs))
    fields = {"offset": str(PLACE), "topic": "mine"}
    needed = needs_of(facts(stored("t")), request(Code.VIEW_MESSAGE_BY_ID, fields))
    assert SUPER_NEED in needed


def test_the_end_of_a_transaction() -> None:
    half = stored("RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="t")
    for message, topic, needs in (
        (half, "", ["Topic:t Pub"]),
        (half, "t", ["Topic:t Pub"]),
        (half, "mine", ["Topic:mine Pub", "Topic:t Pub"]),
        (None, "mine", ["Topic:mine Pub"]),
    ):
        fields = {**ENDED, **({"topic": topic} if topic else {})}
        needed = needs_of(facts(message), request(Code.END_TRANSACTION, fields))
        assert list(needed) == list(map(need, needs))


def test_messages_by_id() -> None:
    half = facts(stored("RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="t"))
    needed = needs_of(half, request(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": ID}))
    assert list(needed) == [need("Topic:t Update")]
    fields = {"consumerGroup": "g", "clientId": "c", "msgId": ID}
    needed = needs_of(facts(stored("t")), request(Code.CONSUME_MESSAGE_DIRECTLY, fields))
    assert list(needed) == list(map(need, BOTH))


def test_a_batch_of_acknowledgements() -> None:
    ack = {"c": "g", "r": "0", "so": 0, "rq": 0, "q": 0, "pt": 0, "it": 0, "b": "AQ=="}
    acks = [{**ack, "t": topic} for topic in ("t", "t", "u")] + [{**ack, "t": "v", "c": "h"}]
    body = {"brokerName": "b", "acks": acks}
    needed = needs_of(facts(), request(Code.BATCH_ACK_MESSAGE, {}, body))
    names = {(need_.type, need_.name) for need_ in needed}
    assert names == {
        (ResourceType.GROUP, "g"), (ResourceType.GROUP, "h"),
        (ResourceType.TOPIC, "t"), (ResourceType.TOPIC, "u"), (ResourceType.TOPIC, "v"),
    }  # fmt: skip
