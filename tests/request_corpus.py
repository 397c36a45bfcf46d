"""Requests that brokers serve with their fast path, and others that fall back to processors.

A row of a table is named by the difference from a request of a Java client.
``behaviour.test_both_paths`` sends each one; ``fuzz.test_broker_paths`` damages them.
"""

import base64
from typing import Any

import world
from broker_pair import NOW_MS
from reput.format import batch as batches, bodies, command as commands, cq_unit, headers
from reput.format.bodies import ConsumerData, HeartbeatData, SubscriptionData
from reput.format.codes import PullFlag, RequestCode
from reput.format.command import IS_ONEWAY, Command
from reput.format.headers import (
    AckMessageHeader,
    EndTransactionHeader,
    Header,
    PopMessageHeader,
    SendBackHeader,
)
from world import with_fields

Table = dict[str, dict[str, Any]]

OF_COMMANDS = ("body", "opaque", "remark", "serialization", "version")
LONG_MAX = (1 << 63) - 1
NOWHERE = 1 << 40
"""A physical offset after the end of each log."""
ADDED = {
    "AccessKey": "account",
    "SecurityToken": "token",
    "Signature": "NLvGjWych3OXP4GNbt5Ds48yoXI=",
    "OnsChannel": "ALIYUN",
    "ns": "space",
    "nsd": "true",
}
"""Fields that clients add to any request, for access control and namespaces."""
SIGNED = {"extra": ADDED}


def request(code: int, header: Header | dict[str, str], fields: dict[str, Any]) -> bytes:
    """Return a frame.

    Args:
        code: Code of the request.
        header: Header, or its encoded fields.
        fields: Other values of fields of the header, or of the command; its ``flag`` is
            ``command_flag``. ``extra`` has encoded fields; None removes one.
    """
    given = {"opaque": 7} | {name: fields.pop(name) for name in OF_COMMANDS if name in fields}
    flag, extra = fields.pop("command_flag", 0), fields.pop("extra", {})
    if isinstance(header, Header):
        is_v2 = code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        header = with_fields(header, fields)
        encoded = headers.encode_v2(header) if is_v2 else headers.encode(header)
    else:
        encoded = header | fields
    encoded = {name: text for name, text in (encoded | extra).items() if text is not None}
    return commands.encode(Command(code, flag=flag, ext_fields=encoded or None, **given))


# --- sends ------------------------------------------------------------------------------------

PROPERTIES = "UNIQ_KEY\x01AB\x02{}\x02WAIT\x01true\x02"
HALF = "UNIQ_KEY\x01AC\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02WAIT\x01true\x02"
TIMER = "UNIQ_KEY\x01AD\x02TIMER_DELAY_MS\x0110\x02"
IN_NARROW = {"topic": "Narrow", "queue_id": 0}
NAMES_OF_BROKERS = (
    *("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
    *("TRAN_MSG", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "REAL_TOPIC"),
    *("CHECK_IMMUNITY_TIME_IN_SECONDS", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"),
    *("POP_CK", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "CLUSTER", "__CRC32#"),
    *("INNER_MULTI_QUEUE_OFFSET", "_SYS_MSG_PRIORITY_", "__LITE_TOPIC", "__transactionId__"),
)
"""Properties that say where a message goes, or that only brokers write."""
ONE = batches.encode([batches.InnerMessage(0, b"one", b"K\x01V\x02")])


def send(
    body: bytes = b"some body", *, code: int = RequestCode.SEND_MESSAGE_V2, **fields: Any
) -> bytes:
    """Return a send to queue 1 of ``T``."""
    header = world.send_header(
        "T",
        1,
        born_timestamp=NOW_MS - 5,
        flag=3,
        properties="UNIQ_KEY\x017F00\x02KEYS\x01a b\x02TAGS\x01TagA\x02WAIT\x01true\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    return request(code, header, {"body": body, **fields})


def with_property(text: str, **fields: Any) -> dict[str, Any]:
    """Return the fields of a send with a property between usual ones."""
    return {"properties": PROPERTIES.format(text), **fields}


SENDS: Table = {
    "as a Java client sends it": {},
    "long names": {"code": RequestCode.SEND_MESSAGE},
    "signed": SIGNED,
    "signed, long names": {"code": RequestCode.SEND_MESSAGE, **SIGNED},
    "without properties": {"properties": None},
    "no last separator": {"properties": "KEYS\x01a"},
    "no WAIT": {"properties": "KEYS\x01a\x02"},
    "only WAIT": {"properties": "WAIT\x01true\x02"},
    "names of a user": with_property("colour\x01red\x02Clusters\x01x"),
    "compressed": {"sys_flag": 0x301},
    "another topic": IN_NARROW,
    "opaque 0": {"opaque": 0},
    "a long body": {"body": b"x" * 4096},
    "any bytes": {"body": bytes(range(256))},
    "quotes": with_property('a\x01"x\\y/z"'),
    "a delay": with_property("DELAY\x011"),
    "the longest delay, first": {"properties": "DELAY\x0118\x02TAGS\x01a\x02"},
    "a delay, last": {"properties": "TAGS\x01a\x02DELAY\x012"},
    "a half message": with_property("TRAN_MSG\x01true\x02PGROUP\x01g", sys_flag=4),
    "a half message without the flag": with_property("TRAN_MSG\x01true"),
    "a compressed half message": {"properties": "TRAN_MSG\x01true", "sys_flag": 0x305},
    "a timer": with_property("TIMER_DELAY_MS\x0110"),
    "a timer in seconds, first": {"properties": "TIMER_DELAY_SEC\x013\x02UNIQ_KEY\x01AB\x02"},
    "a timer at a time, last": {
        "properties": f"WAIT\x01true\x02UNIQ_KEY\x01AB\x02TIMER_DELIVER_MS\x01{NOW_MS + 1}"
    },
    "a timer in a whole second": {"properties": f"TIMER_DELIVER_MS\x01{NOW_MS + 2000}"},
    "a timer as far as can be": with_property("TIMER_DELAY_SEC\x01259200"),
    "a timer of another topic": with_property("TIMER_DELAY_MS\x0110", **IN_NARROW),
    "a half message of another topic": {
        "properties": "WAIT\x01true\x02TRAN_MSG\x01true\x02",
        **IN_NARROW,
    },
}
OTHER_SENDS: Table = {
    "an unknown field": {"extra": {"zz": "1"}},
    "a remark": {"remark": "hello"},
    "one-way": {"command_flag": IS_ONEWAY},
    "text beyond ASCII": with_property("name\x01grün"),
    "WAIT=false": {"properties": "WAIT\x01false\x02"},
    "an empty value": with_property("empty\x01"),
    "an empty name": with_property("\x01value"),
    "no value": with_property("name"),
    "a name twice": with_property("KEYS\x01a\x02KEYS\x01b"),
    "a user's name twice": with_property("x\x01a\x02x\x01b"),
    "reconsumed": {"reconsume_times": 1},
    "unit mode": {"unit_mode": True},
    "queue beyond the end": {"queue_id": 4},
    "queue that is not written": {"topic": "Narrow", "queue_id": 3},
    "a missing topic": {"topic": "New", "default_topic": "T"},
    "a topic that may not be written": {"topic": "ReadOnly"},
    "a retry topic": {"topic": "%RETRY%g", "queue_id": 0},
    "the schedule topic": {"topic": "SCHEDULE_TOPIC_XXXX"},
    "a long topic": {"topic": "x" * 128},
    "no topic": {"topic": ""},
    "a delay without end": with_property("DELAY\x0119"),
    "no delay": with_property("DELAY\x010"),
    "a delay that is no number": with_property("DELAY\x01one"),
    "a delay as one would not write it": with_property("DELAY\x0101"),
    "a delay twice": with_property("DELAY\x011\x02DELAY\x012"),
    "a delay of a prepared one": with_property("DELAY\x011", sys_flag=4),
    "a half message that says it oddly": with_property("TRAN_MSG\x01True"),
    "no half message": with_property("TRAN_MSG\x01false"),
    "a delayed half message": with_property("TRAN_MSG\x01true\x02DELAY\x011"),
    "a half message that waits for its check": with_property(
        "TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130"
    ),
    "a half message of a retry": with_property("TRAN_MSG\x01true\x02DELAY\x011", reconsume_times=1),
    "a half message that does not wait": {"properties": "TRAN_MSG\x01true\x02WAIT\x01false\x02"},
    "prepared": {"sys_flag": 4},
    "committed": {"sys_flag": 8},
    "v6 bits": {"sys_flag": 0x30},
    "a timer for now": with_property("TIMER_DELAY_MS\x010"),
    "a timer for a time that is past": {"properties": f"TIMER_DELIVER_MS\x01{NOW_MS}"},
    "a timer as one would not write it": {"properties": "TIMER_DELAY_MS\x0101000"},
    "a timer that is no number": {"properties": "TIMER_DELAY_MS\x01soon"},
    "a timer without end": with_property("TIMER_DELAY_SEC\x01259201"),
    "a timer in two ways": {"properties": "TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x0110"},
    "a timer and a delay": {"properties": "DELAY\x011\x02TIMER_DELAY_MS\x0110"},
    "a timer of a prepared one": {"properties": "TIMER_DELAY_MS\x0110", "sys_flag": 4},
    "a half message with a timer": {"properties": "TIMER_DELAY_MS\x0110\x02TRAN_MSG\x01true"},
    "a timer with a long key": {"properties": f"UNIQ_KEY\x01{'k' * 200}\x02TIMER_DELAY_MS\x0110"},
    "a timer that does not wait": {"properties": "TIMER_DELAY_MS\x0110\x02WAIT\x01false\x02"},
    "a timer that has waited": {"properties": "TIMER_OUT_MS\x011\x02TIMER_DELAY_MS\x0110"},
    "a recall": {"properties": "TIMER_DEL_UNIQKEY\x01AB\x02TIMER_DELAY_MS\x0110"},
    "its own cluster": with_property("CLUSTER\x01other"),
    "a real topic": with_property("REAL_TOPIC\x01other\x02REAL_QID\x013"),
    "no body": {"body": b""},
    "a body too long": {"body": b"x" * 4097},
    "properties too long": with_property("long\x01" + "x" * 32_740),
    "negative flag": {"flag": -1},
    "negative time": {"born_timestamp": -5},
    "a number too long": {"extra": {"g": "1234567890123456789"}},
    "a number with a sign": {"extra": {"e": "+1"}},
    "no number": {"extra": {"e": "one"}},
    "a batch": {"code": RequestCode.SEND_BATCH_MESSAGE, "batch": True, "body": ONE},
    "a batch by its flag": {"batch": True, "body": ONE},
}


def _with_fields(*changes: dict[str, str | None]) -> Table:
    """Return sends with other encoded fields; None removes one."""
    return {str(change)[:40]: {"extra": change} for change in changes}


SENDS |= _with_fields(
    *({"e": "0"}, {"f": "1"}, {"f": "2"}, {"f": "769"}, {"f": "515"}, {"h": "2147483647"}),
    *({"j": None, "k": None, "m": None}, {"l": "16"}, {"n": "any"}, {"g": "0"}),
    *({"i": text} for text in ("PGROUP\1g\2TTL\x01100\2TRACE_ON\1false", "WAITING\1x\2wait\1x")),
    {"i": "KEYS\1k1 k2\2own\1it's"},
)
OTHER_SENDS |= _with_fields(
    *({"e": text} for text in ("-1", "03", "", "2147483648", None)),
    *({"f": text} for text in ("16", "32", "64", "128", "1024")),
    *({"m": "0"}, {"l": "x"}, {"h": "-1"}, {"h": "2147483648"}, {"d": "x"}, {"a": None}),
    *({"a": "группа"}, {"o": "x"}, {"topic": "x"}),
    *(
        {"i": text}
        for text in (
            *("WAIT\1TRUE", "WAIT\1true\2WAIT\1true", "a\1b\2\2", "\2", "a\1b\1c", "a\1b\3"),
            *("own\1a\2x\1y\2own\1b", "ключ\1x", "a\1b\n", "a\1\U0001f600"),
            *(f"UNIQ_KEY\1{key}" for key in ("a" * 129, 'a"b', "a\\b")),
            *(f"{name}\1x\2TAGS\1a" for name in NAMES_OF_BROKERS),
        )
    ),
)
OTHER_SENDS |= {
    "a flag of replies": {"command_flag": 1},
    "a flag of 5.x": {"command_flag": 4},
    "a negative opaque": {"opaque": -1},
    "a half message that is committed": {"properties": "TRAN_MSG\x01true", "sys_flag": 8},
}

# --- pulls ------------------------------------------------------------------------------------

MESSAGES = 90
"""Number of messages in queue 1 of ``T`` that the pulls and acknowledgements are for."""
TEXT = int(PullFlag.HAS_SUBSCRIPTION)
COMMIT = int(PullFlag.COMMIT_OFFSET)
SUSPEND = int(PullFlag.SUSPEND)


def tagged_sends(count: int) -> bytes:
    """Return sends to queue 1 of ``T``; every second message has the tag TagB."""
    return b"".join(
        send(b"body %d" % i, properties=f"TAGS\1Tag{'AB'[i % 2]}") for i in range(count)
    )


def pull(*, code: int = RequestCode.PULL_MESSAGE, **fields: Any) -> bytes:
    header = world.pull_header(
        "T",
        1,
        40,
        consumer_group="readers",
        max_msg_nums=8,
        suspend_timeout_millis=15_000,
        expression_type="TAG",
    )
    return request(code, header, fields)


def members_pull(**fields: Any) -> bytes:
    """Return a pull of a member whose subscription is in its heartbeats."""
    return pull(**{"sys_flag": 0, "subscription": None, "sub_version": 5, **fields})


def heartbeat(tags: str, version: int, *topics: str) -> bytes:
    """Subscribe the connection, as a member of the group, to tags of topics."""
    names = [] if tags == "*" else tags.split(" || ")
    subscriptions = [
        SubscriptionData(
            topic=topic,
            sub_string=tags,
            sub_version=version,
            tags_set=names,
            code_set=[cq_unit.tags_code(tag) for tag in names],
        )
        for topic in topics or ("T",)
    ]
    consumer = ConsumerData(
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name="readers",
        message_model="CLUSTERING",
        subscription_data_set=subscriptions,
        unit_mode=False,
    )
    data = HeartbeatData(client_id="me", consumer_data_set=[consumer], producer_data_set=[])
    return commands.encode(Command(RequestCode.HEART_BEAT, body=bodies.encode(data)))


PULLS: Table = {
    "as a lite pull consumer sends it": {},
    "from the beginning": {"queue_offset": 0},
    "the last one": {"queue_offset": MESSAGES - 1},
    "one message": {"max_msg_nums": 1},
    "more than the broker gives": {"max_msg_nums": 1000},
    "commit": {"sys_flag": TEXT | COMMIT, "commit_offset": 2},
    "commit of 0": {"sys_flag": TEXT | COMMIT},
    "may wait": {"sys_flag": TEXT | SUSPEND},
    "lite": {"code": RequestCode.LITE_PULL_MESSAGE, "sys_flag": TEXT | PullFlag.LITE},
    "a tag": {"subscription": "TagB"},
    "two tags": {"subscription": "TagA || TagB"},
    "tags that some have": {"subscription": "TagB || TagC", "max_msg_nums": 3},
    "no expression type": {"expression_type": None},
    "signed": SIGNED,
    "as 5.x sends it": {"extra": {"maxMsgBytes": "2147483647", "bname": "broker-a"}},
    "opaque 0": {"opaque": 0},
    "another group": {"consumer_group": "others"},
}
OTHER_PULLS: Table = {
    "an unknown field": {"extra": {"zz": "1"}},
    "a field of sends": {"extra": {"a": "1"}},
    "a remark": {"remark": "hello"},
    "one-way": {"command_flag": IS_ONEWAY},
    "a body": {"body": b"body"},
    "the end": {"queue_offset": MESSAGES},
    "the end, and may wait": {"queue_offset": MESSAGES, "sys_flag": TEXT | SUSPEND},
    "beyond the end": {"queue_offset": MESSAGES + 1},
    "beyond the end, and says where it is": {
        "queue_offset": MESSAGES + 1,
        "sys_flag": TEXT | COMMIT,
        "commit_offset": 9,
    },
    "before the beginning": {"queue_offset": -1},
    "no messages": {"max_msg_nums": 0},
    "less than none": {"max_msg_nums": -5},
    "a number with a sign": {"extra": {"queueOffset": "+3"}},
    "no number": {"extra": {"queueOffset": "three"}},
    "a number too long": {"extra": {"commitOffset": "1234567890123456789"}},
    "a queue that is empty": {"queue_id": 2, "queue_offset": 0},
    "a queue beyond the end": {"queue_id": 4},
    "a negative queue": {"queue_id": -1},
    "a missing topic": {"topic": "Nobody"},
    "no topic": {"topic": ""},
    "no group": {"consumer_group": ""},
    "a topic beyond ASCII": {"topic": "grün"},
    "a tag that none has": {"subscription": "TagZ"},
    "a tag beyond ASCII": {"subscription": "grün"},
    "SQL92": {"subscription": "TAGS = 'TagA'", "expression_type": "SQL92"},
    "an unknown expression type": {"expression_type": "tag"},
    "only separators": {"subscription": "||||"},
    "filter by class": {"sys_flag": TEXT | PullFlag.CLASS_FILTER},
    "no subscription": {"sys_flag": 0},
    "an unknown flag": {"sys_flag": 32 | TEXT, "queue_offset": MESSAGES},
}

# --- pops -------------------------------------------------------------------------------------

INVISIBLE_MS = 60_000


def pop(**fields: Any) -> bytes:
    header = PopMessageHeader(
        consumer_group="G",
        topic="T",
        queue_id=1,
        max_msg_nums=3,
        invisible_time=INVISIBLE_MS,
        poll_time=0,
        born_time=NOW_MS,
        init_mode=0,
        exp_type="TAG",
        exp="*",
    )
    return request(RequestCode.POP_MESSAGE, header, fields)


POPS: Table = {
    "as clients send it": {},
    "a tag": {"exp": "TagB"},
    "a tag that none has": {"exp": "TagZ"},
    "any queue": {"queue_id": -1},
    "an empty queue": {"queue_id": 2},
    "an empty queue, and may wait": {"queue_id": 2, "poll_time": 1_000},
    "in order": {"order": True},
    "an attempt": {"attempt_id": "x"},
    "signed": SIGNED,
    "as 5.x sends it": {"extra": {"bname": "broker-a"}},
    "opaque 0": {"opaque": 0},
    "the largest opaque": {"opaque": (1 << 31) - 1},
    "as long as is allowed": {"invisible_time": 3 * 86_400_000},
    "a body": {"body": b"x"},
    "a remark": {"remark": "x"},
    "words that look like others": {"extra": {"x": '"opaque":5,"bornTime":"6"'}},
}
OTHER_POPS: Table = {
    "one-way": {"command_flag": IS_ONEWAY},
    "too many": {"max_msg_nums": 33},
    "no time": {"invisible_time": 0},
    "longer than is allowed": {"invisible_time": 3 * 86_400_000 + 1},
    "longer than anything": {"invisible_time": 10**20},
    "no such topic": {"topic": "Nobody"},
    "no such queue": {"queue_id": 4},
    "only separators": {"exp": "||"},
    "SQL92 is off": {"exp_type": "SQL92", "exp": "a = 1"},
    "no number": {"extra": {"queueId": "x"}},
    "a time that is none": {"extra": {"bornTime": "x"}},
}

# --- acknowledgements -------------------------------------------------------------------------


def ack(
    offset: int, *, start: int = 0, revive: int = 1, info: str | None = None, **fields: Any
) -> bytes:
    """Return an acknowledgement of a message of the first pop, or of a pop with another start."""
    handle = f"{start} {NOW_MS} {INVISIBLE_MS} {revive} 0 broker-a 1 {offset}"
    header = AckMessageHeader(
        consumer_group="G",
        topic="T",
        queue_id=1,
        offset=offset,
        extra_info=handle if info is None else info,
    )
    return request(RequestCode.ACK_MESSAGE, header, fields)


ACKS: Table = {
    "as clients send it": {"offset": 3},
    "the first": {"offset": 0},
    "of the second pop": {"offset": 40, "start": 32},
    "signed": {"offset": 3, **SIGNED},
    "as 5.x sends it": {"offset": 3, "extra": {"bname": "broker-a", "ns": "x"}},
    "one that the checkpoint does not have": {"offset": 35},
    "of a pop that never was": {"offset": 3, "start": 1},
    "far after its start": {"offset": 80},
    "another queue": {"offset": 0, "queue_id": 0},
    "the end": {"offset": MESSAGES},
    "more words": {"offset": 3, "info": f"0 {NOW_MS} 1 1 0 b 9 9 9"},
}
OTHER_ACKS: Table = {
    "no such topic": {"offset": 3, "topic": "Nobody"},
    "no group": {"offset": 3, "consumer_group": ""},
    "another group": {"offset": 3, "consumer_group": "others"},
    "a topic beyond ASCII": {"offset": 3, "topic": "grün"},
    "no such queue": {"offset": 3, "queue_id": 4},
    "a negative queue": {"offset": 3, "queue_id": -1},
    "after the end": {"offset": MESSAGES + 1},
    "a negative offset": {"offset": -1},
    "a handle that is none": {"offset": 3, "info": "x"},
    "five words": {"offset": 3, "info": f"0 {NOW_MS} 1 1 0"},
    "two spaces": {"offset": 3, "info": f"0  {NOW_MS} 1 1 0 b"},
    "a sign": {"offset": 3, "info": f"+0 {NOW_MS} 1 1 0 b"},
    "in order": {"offset": 3, "revive": 999},
    "one-way": {"offset": 3, "command_flag": IS_ONEWAY},
    "a body": {"offset": 3, "body": b"x"},
    "a remark": {"offset": 3, "remark": "x"},
    "a field that is no number": {"offset": 3, "extra": {"offset": "three"}},
}


def ack_batch(*bits: bytes, text: str | None = None, **fields: Any) -> bytes:
    """Return a request that acknowledges messages of the first pop, or of other pops.

    Fields whose names have one or two letters are those of its entries.
    """
    entry = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 1, "rq": 1, "pt": NOW_MS}
    entry |= {"it": INVISIBLE_MS}
    entry |= {name: fields.pop(name) for name in list(fields) if name in entry}
    acks = [entry | {"b": base64.b64encode(bit_map).decode()} for bit_map in bits]
    body = bodies.encode({"brokerName": "broker-a", "acks": acks})
    body = body if text is None else text.encode()
    return request(RequestCode.BATCH_ACK_MESSAGE, {}, {"body": body, **fields})


NO_BASE64 = '{"acks":[{"c":"G","t":"T","r":"0","so":0,"q":1,"rq":1,"pt":5,"it":6,"b":"?"}]}'
ACK_BATCHES: dict[str, bytes] = {
    "one message": ack_batch(b"\1"),
    "all of a pop": ack_batch(b"\xff" * 4),
    "more than there are": ack_batch(b"\xff" * 8),
    "spread by a filter": ack_batch(b"\1" + b"\0" * 500 + b"\1"),
    "the second pop": ack_batch(b"\x0f", so=32),
    "two of one pop": ack_batch(b"\1", b"\3"),
    "nothing": ack_batch(b""),
    "a retry topic": ack_batch(b"\1", r="1"),
    "no such topic": ack_batch(b"\1", t="Nobody"),
    "numbers as texts": ack_batch(b"\1", so="0", q="1"),
    "a remark": ack_batch(b"\1", remark="x"),
    "the largest opaque": ack_batch(b"\1", opaque=(1 << 31) - 1),
}
OTHER_ACK_BATCHES: dict[str, bytes] = {
    "one-way": ack_batch(b"\1", command_flag=IS_ONEWAY),
    "no body": ack_batch(text=""),
    "no acks": ack_batch(),
    "in order": ack_batch(b"\1", rq=999),
    "a kind that is none": ack_batch(b"\1", r="3"),
    "no Base64": ack_batch(text=NO_BASE64),
    "no JSON": ack_batch(text="{"),
    "the second one is wrong": ack_batch(b"\1", b"\1").replace(b'"r":"0"', b'"r":"7"', 1),
    "a negative opaque": ack_batch(b"\1", opaque=-1),
    "more than a checkpoint has": ack_batch(b"\xff" * 9),
    "further away than a pop reaches": ack_batch(b"\0" * 9_000 + b"\1"),
    "in order, very long": ack_batch(b"\xff" * 20_000, rq=999),
    "a start that no Java has": ack_batch(b"\1", so=1 << 70),
    "in order, at the end of all numbers": ack_batch(b"\1", so=LONG_MAX, rq=999),
    "in order, of no topic": ack_batch(b"\1", t="Nobody", rq=999),
}

# --- transactions -----------------------------------------------------------------------------

Place = tuple[int, int]
"""Queue offset and physical offset of a half message."""
COMMITTED, ROLLED_BACK, UNKNOWN = 8, 12, 0


def half(body: bytes = b"some body", **fields: Any) -> bytes:
    return send(body, properties=HALF, **{"sys_flag": 4} | fields)


def end(place: Place, decision: int = COMMITTED, **fields: Any) -> bytes:
    """Return the end of a transaction."""
    header = EndTransactionHeader(
        producer_group="g",
        tran_state_table_offset=place[0],
        commit_log_offset=place[1],
        commit_or_rollback=decision,
        from_transaction_check=False,
        msg_id="0A0B",
        transaction_id="0A0B",
    )
    return request(RequestCode.END_TRANSACTION, header, fields)


ENDS: Table = {
    "a commit": {},
    "a rollback": {"decision": ROLLED_BACK},
    "a one-way commit": {"command_flag": IS_ONEWAY},
    "a one-way rollback": {"decision": ROLLED_BACK, "command_flag": IS_ONEWAY},
    "as 5.x sends it": {
        "extra": {"topic": "T", "bname": "broker-a", "nsd": "false"},
        "from_transaction_check": True,
    },
}
OTHER_ENDS: Table = {
    "not known yet": {"decision": UNKNOWN},
    "prepared": {"decision": 4},
    "another group": {"producer_group": "others"},
    "a group beyond ASCII": {"producer_group": "групп"},
    "another queue offset": {"tran_state_table_offset": 7},
    "a negative queue offset": {"tran_state_table_offset": -1},
    "another place": {"commit_log_offset": 5},
    "a place beyond the end": {"commit_log_offset": NOWHERE},
    "a negative place": {"commit_log_offset": -1},
    "no half message": {"commit_log_offset": 0},
    "a remark": {"remark": "it failed"},
    "an unknown field": {"extra": {"zz": "1"}},
    "no number": {"extra": {"commitLogOffset": "one"}},
    "a flag of 5.x": {"command_flag": 4},
    "a negative opaque": {"opaque": -3},
}

# --- messages that are sent back --------------------------------------------------------------


def send_back(physical_offset: int, **fields: Any) -> bytes:
    header = SendBackHeader(
        offset=physical_offset,
        group="g",
        delay_level=0,
        origin_msg_id="AC",
        origin_topic="T",
        unit_mode=False,
        max_reconsume_times=16,
    )
    return request(RequestCode.CONSUMER_SEND_MSG_BACK, header, {"version": 399, **fields})


SEND_BACKS: Table = {
    "as clients send it": {},
    "a delay": {"delay_level": 5},
    "of another group": {"opaque": 10, "group": "other"},
    "one-way, in unit mode": {"command_flag": IS_ONEWAY, "unit_mode": True, "group": "unit"},
}
OTHER_SEND_BACKS: Table = {
    "too often": {"max_reconsume_times": 0},
    "to the dead letters": {"delay_level": -1},
    "nowhere": {"offset": NOWHERE},
    "inside of a record": {"offset": 1},
    "no name of a group": {"group": "a b"},
    "a remark": {"remark": "why"},
    "an unknown field": {"extra": {"new": "1"}},
    "a group beyond ASCII": {"group": "группа"},
}

# --- lookups ----------------------------------------------------------------------------------


def lookup(code: int, fields: dict[str, str], **more: Any) -> bytes:
    return request(code, fields, more)


def query(key: str, **fields: str) -> bytes:
    """Return a query by key, for messages of ``T``."""
    known = {"beginTimestamp": "0", "endTimestamp": str(LONG_MAX), "maxNum": "32"}
    return lookup(RequestCode.QUERY_MESSAGE, {"topic": "T", "key": key} | known | fields)


_QUEUE = {"topic": "T", "queueId": "1"}
_AT_A_TIME = _QUEUE | {"timestamp": str(NOW_MS + 700)}
LOOKUPS: dict[str, bytes] = {
    "a key": query("k1"),
    "a unique key": query("u3", _UNIQUE_KEY_QUERY="true"),
    "a key of no message": query("none", indexType="K"),
    "a key in some time": query(
        "Aa", beginTimestamp=str(NOW_MS), endTimestamp=str(NOW_MS + 1000), bname="broker-a"
    ),
    "the end of a queue": lookup(RequestCode.GET_MAX_OFFSET, _QUEUE | {"committed": "true"}),
    "the begin of a queue": lookup(RequestCode.GET_MIN_OFFSET, _QUEUE),
    "a time": lookup(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, _AT_A_TIME),
    "the last one of a time": lookup(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, _AT_A_TIME | {"boundaryType": "UPPER"}
    ),
    "a message": lookup(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
}
OTHER_LOOKUPS: dict[str, bytes] = {
    "there are more": query("all", maxNum="3"),
    "a tag": query("k1", indexType="T"),
    "the next page": query("k1", lastKey="k"),
    "a long key": query("k" * 40_000),
    "a queue of no topic": lookup(RequestCode.GET_MAX_OFFSET, {"topic": "Nowhere", "queueId": "0"}),
    "inside of a record": lookup(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "1"}),
}
