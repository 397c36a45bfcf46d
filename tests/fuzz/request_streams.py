"""Random bytes from clients: mostly requests that the fast path serves.

The rest are odd requests, damaged frames, frames with wrong lengths, and noise. All follow from a
``Random``.
"""

import base64
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from reput.broker.kernels import send_rules
from reput.format import bodies, command, cq_unit, names
from reput.format.bodies import ConsumerData, HeartbeatData, SubscriptionData
from reput.format.codes import RequestCode
from reput.format.command import Command, Serialization

NOW_MS = 1_700_000_000_123
TOPICS = ["T", "U", "Orders", "t" * 126]
"""Topics that take the fast path."""
ODD_TOPICS = ["d" * 200, "Крамниця", "%RETRY%g"]
ODD_TOPICS += [names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.TIMER_TOPIC]
QUEUE_IDS = (0, 1, 9)
GROUPS = ["group", "please_rename_unique_group_name"]
TAGS = ["TagA", "TagB"]
EXPRESSIONS = [None, None, "*", "TagA", "TagB", "TagA || TagB", ""]
TIMER_MAX_MS = 600_000
"""The longest timer of the brokers and worlds that read these bytes."""
DELAY_LEVELS = "1s 5s 2h"

PROPERTIES = ["KEYS\1k1 k2", "TAGS\1TagA", "UNIQ_KEY\1" + "7F" * 16, "WAIT\1true", "own\1value"]
PROPERTIES += ["PGROUP\1g", "a" * 33 + "\1" + "v" * 40, 'quoted\1"\\/', "TTL\x01100", "x\1y"]
PROPERTIES += [f"{start}X\1v" for start in send_rules.NAMES_OF_PYTHON]
ODD_PROPERTIES = ["WAIT\1false", "WAIT\1", "", "name", "\1value", "a\1b\1c", "日本\1x", "a\1日本"]
ODD_PROPERTIES += ["x\1y\3", "DELAY\x013", "WAITS\1true", "WAI\1true", "k\1" + "v" * 32_700]
ODD_PROPERTIES += [
    "back\1a\\",
    "back\1\\\\",
    "empty\1",
    "_SYS_MSG_PRIORITY\x013",
    "__CRC32#\x011234567890",
]
ODD_PROPERTIES += ["__LITE_TOPIC\1x", "__RMQ.TRANSIENT.x\1y", "INNER_NUM\x013", "POP_CK\x011 2 3"]
WAITING = ["TRAN_MSG\1true", "DELAY\x011", "DELAY\x012", "TIMER_DELAY_MS\x0110"]
WAITING += ["TIMER_DELAY_SEC\x013"]
ODD_WAITING = ["TRAN_MSG\1TRUE", "TRAN_MSG\1false", "TRAN_MSG\1tru", "TRAN_MSX\1true", "DELAY\x010"]
ODD_WAITING += [
    *("DELAY\x013", "DELAY\x014", "DELAY\x0103", "DELAY\1x", "DELAY\1" + "9" * 19, "DELAX\x011"),
    *("TIMER_DELAY_MS\x010", "TIMER_DELAY_MS\x0100001", "TIMER_DELAY_MS\x01600001"),
    *("TIMER_DELAY_SEC\x01600", "TIMER_DELAY_SEC\x01601", "TIMER_DELAY_SEC\1" + "9" * 18),
    *("TIMER_DELIVER_MS\1" + "9" * 19, "TIMER_DELIVER_MS\1x", "TIMER_DELAY_XS\x013"),
    *("TIMER_DELAY_MSX\x013", "TIMER_OUT_MS\x013", "TIMER_DEL_UNIQKEY\x013"),
]
ODD_VALUES = ["", "0", "1", "-1", "00", "07", "4", "true", "false", "False", " 0", "1e3", "1.0"]
ODD_TEXTS = [
    "2147483648",
    "1" * 18,
    "1" * 19,
    "9" * 25,
    "日本",
    "é",
    "grün",
    "a\nb",
    "4096",
    "\\",
    '"',
    "x\\y",
]
LETTERS = "abcdefghijklmn"
SPLICES = [b'"', b"\\", b"\\u0001", b"\\u0003", b"\0", b"\x80", b"\xc3\xa9", b",", b"{", b"}", b":"]
SPLICES += [b'"a":"b",', b'"code":310,', b"-", b"0", b"\1", b"\2", b"\x7f", b"null", b" ", b"[]"]


# --- frames ---------------------------------------------------------------------------------


def framed(header: bytes, body: bytes, kind: int) -> bytes:
    """Return a frame of a header's bytes."""
    mark = (kind << 24 | len(header)).to_bytes(4)
    return (4 + len(header) + len(body)).to_bytes(4) + mark + header + body


def damaged(random: Random, frame: bytes) -> bytes:
    """Return a frame with some changed header bytes; its lengths mostly fit."""
    kind = frame[4]
    size = int.from_bytes(frame[5:8])
    header, body = bytearray(frame[8 : 8 + size]), frame[8 + size :]
    for _ in range(random.choice([1, 1, 2])):
        begin = random.randint(0, len(header))
        end = begin + random.choice([0, 0, 1, 1, 2, 5])
        header[begin:end] = random.choice([b"", *SPLICES, random.randbytes(1)])
    result = bytearray(framed(bytes(header), body, kind))
    if random.random() < 0.1:
        result[random.randrange(8)] = random.randrange(256)
    return bytes(result)


def with_repeats(random: Random, frame: bytes) -> bytes:
    """Return a binary frame with a repeated field, bytes after its fields, or a remark."""
    size = int.from_bytes(frame[5:8])
    header, body = frame[8 : 8 + size], frame[8 + size :]
    fixed, fields = header[:13], header[21:]
    remark = random.choice([b"", b"", b"why"])
    if random.random() < 0.5 and fields:
        name_size = int.from_bytes(fields[:2])
        value_size = int.from_bytes(fields[2 + name_size : 6 + name_size])
        fields += fields[: 6 + name_size + value_size]
    fields_size = len(fields) - random.choice([0, 0, 0, 1, 7])
    tail = random.choice([b"", b"", b"x", bytes(6)])
    sizes = len(remark).to_bytes(4) + remark + max(0, fields_size).to_bytes(4)
    return framed(fixed + sizes + fields + tail, body, 1)


def json_frame(
    random: Random,
    odd: float,
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    fields: dict[str, str],
    body: bytes,
) -> bytes:
    """Return a frame with its keys in any order, and text as another library may write it."""
    shuffled = list(fields.items())
    random.shuffle(shuffled)
    members: list[tuple[str, Any]] = [
        ("code", code),
        ("opaque", opaque),
        ("flag", flag),
        ("extFields", dict(shuffled)),
        ("language", random.choice(["JAVA", "GO", "OTHER"])),
        ("version", random.choice([0, 407, 513])),
        ("serializeTypeCurrentRPC", "JSON"),
    ]
    if remark is not None:
        members.append(("remark", remark))
    random.shuffle(members)
    if random.random() < 0.1 * odd:
        del members[random.randrange(len(members))]
    separators = (", ", ": ") if random.random() < 0.1 * odd else (",", ":")
    ascii_only = random.random() > 0.3 * odd
    header = json.dumps(dict(members), separators=separators, ensure_ascii=ascii_only)
    if random.random() < 0.1 * odd:  # A repeated key or field.
        first = json.dumps(dict([random.choice(members)]), separators=(",", ":"))[1:-1]
        header = f"{{{first},{header[1:]}"
    if random.random() < 0.1 * odd and shuffled:
        first = json.dumps(dict([random.choice(shuffled)]), separators=(",", ":"))[1:-1]
        header = header.replace('"extFields":{', f'"extFields":{{{first},', 1)
    if random.random() < 0.1:
        header = header.replace("/", "\\/")
    if random.random() < 0.1:
        header += random.choice(["\n", " ", "\t\r\n  "])
    if random.random() < 0.15 * odd:
        header += random.choice(["\0", "}", ",", "x"])
    return framed(header.encode(errors="replace"), body, 0)


def some_request(
    random: Random,
    odd: float,
    code: int,
    fields: dict[str, str],
    body: bytes = b"",
    *,
    can_be_binary: bool = True,
    flags: Sequence[int] = (0,),
) -> bytes:
    """Return a request in the encoding of some client library."""
    opaque = random.choice([0, 1, 77, 2**31 - 1])
    flag = random.choice(flags)
    remark = None
    if random.random() < 0.2 * odd:
        opaque, flag, remark = random.choice(
            [(-1, 0, None), (1, 1, None), (1, 2, None), (1, 3, None), (1, 0, "why"), (1, 4, None),
             (1, 0, ""), (1 << 31, 0, None)]
        )  # fmt: skip
    is_binary = can_be_binary and random.random() < 0.4
    if opaque >> 31 > 0 or (random.random() < 0.5 and not is_binary):
        return json_frame(random, odd, code, opaque, flag, remark, fields, body)
    kind = Serialization(is_binary)
    request = Command(code, opaque, flag, 0, 407, remark, fields, body, kind)
    frame = command.encode(request)
    if is_binary and random.random() < 0.2 * odd:
        return with_repeats(random, frame)
    return frame


def with_odd_field(random: Random, odd: float, fields: dict[str, str]) -> dict[str, str]:
    """Return fields, possibly one of them odd, missing, or unknown."""
    fields = dict(fields)
    if random.random() < 0.25 * odd:
        name = random.choice(list(fields))
        fields[name] = random.choice(ODD_VALUES if random.random() < 0.5 else ODD_TEXTS)
    if random.random() < 0.1 * odd:
        del fields[random.choice(list(fields))]
    if random.random() < 0.1 * odd:
        fields[random.choice(["o", "zz", "topic", "", "A", "ReqT", "a", "maxReconsumeTimex"])] = "x"
    return fields


# --- sends and pulls ------------------------------------------------------------------------


def some_properties(random: Random, odd: float, now_ms: int) -> str:
    """Return a property string: mostly a few pairs without a repeated name.

    Two properties that wait, and a repeated name, are also in messages that are not odd otherwise:
    in odd ones, something else often makes the message fall back.
    """
    pairs = random.sample(PROPERTIES[:10], random.choice([0, 1, 3, 5, 8]))
    waiting = [*WAITING, f"TIMER_DELIVER_MS\1{now_ms + 1000}"]
    if random.random() < 0.4:
        for _ in range(random.choice([1] * 7 + [2])):
            pairs.insert(random.randint(0, len(pairs)), random.choice(waiting))
    if random.random() < 0.05:
        pairs.insert(random.randint(0, len(pairs)), "long\1" + "v" * random.choice([300, 900]))
    if random.random() < 0.05 and pairs:
        name, _, value = random.choice(pairs).partition("\1")
        pairs.append(f"{name}\1{random.choice([value, value, 'other'])}")
    if random.random() < 0.3 * odd:
        deliver_ms = now_ms + random.choice([-1, 0, 1, TIMER_MAX_MS, TIMER_MAX_MS + 1])
        waiting += [*ODD_WAITING, *[f"TIMER_DELIVER_MS\1{deliver_ms}"] * 9]
        pairs.insert(random.randint(0, len(pairs)), random.choice(waiting))
    if random.random() < 0.5 * odd:
        pairs.insert(random.randint(0, len(pairs)), random.choice(PROPERTIES + ODD_PROPERTIES))
    return "\2".join(pairs) + random.choice(["", "\2"] if pairs else [""])


def send_fields(random: Random, odd: float = 0, now_ms: int = NOW_MS) -> dict[str, str]:
    """Return the fields of a send, by their short names."""
    topics = ODD_TOPICS + TOPICS if random.random() < 0.2 * odd else TOPICS
    topic = random.choice(["", "Nobody", "T" * 128]) if random.random() < 0.05 * odd else None
    fields = {
        "a": random.choice(GROUPS),
        "b": random.choice(topics) if topic is None else topic,
        "c": "TBW102",
        "d": "4",
        "e": str(random.choice(QUEUE_IDS)),
        "f": random.choice(["0", "0", "0", "1", "2", "259", "513", "769"]),
        "g": str(NOW_MS),
        "h": random.choice(["0", "7", "2147483647"]),
        "i": some_properties(random, odd, now_ms),
        "j": "0",
        "k": "false",
        "l": "16",
        "m": "false",
        "n": "broker-a",
    }
    for name in "ijklmn":
        if random.random() < 0.3:
            del fields[name]
    if "TRAN_MSG" in fields.get("i", "") and random.random() < 0.5:
        fields["f"] = random.choice(["4", "5", "773"])
    if random.random() < 0.3 * odd:
        name, value = random.choice(
            [("e", "10"), ("e", "10"), ("e", "11"), ("f", "4"), ("f", "8"), ("f", "48"), ("j", "1"),
             ("k", "true"), ("m", "true"), ("m", "x")]
        )  # fmt: skip
        fields[name] = value
    return with_odd_field(random, odd, fields)


def some_send(random: Random, odd: float, now_ms: int = NOW_MS, body_max: int = 4096) -> bytes:
    """Return a send of a message."""
    fields = send_fields(random, odd, now_ms)
    code = 310
    if random.random() < 0.3:
        code = 10
        long_names = dict(zip(LETTERS, send_rules.FIELD_NAMES, strict=True))
        fields = {long_names.get(name, name): value for name, value in fields.items()}
    body = random.randbytes(random.choice([1, 5, 80, 80, 300, 1500]))
    if random.random() < 0.15 * odd:
        body = random.randbytes(random.choice([0, body_max, body_max + 1]))
    if random.random() < 0.05 * odd:
        code = random.choice([320, 11])
    return some_request(random, odd, code, fields, body)


def sends(random: Random) -> list[bytes]:
    """Return sends that take the fast path, most of them to one queue."""
    frames = []
    for _ in range(random.choice([0, 12, 20, 30])):
        fields = send_fields(random)
        if random.random() < 0.8:
            fields |= {"b": "T", "e": "0"}
        fields["i"] = random.choice(["TAGS\1TagA", "TAGS\1TagB", "TAGS\1other", "KEYS\1k"])
        body = random.randbytes(random.choice([1, 80]))
        frames.append(command.encode(Command(310, 1, ext_fields=fields, body=body)))
    return frames


def heartbeat(random: Random) -> bytes:
    """Return a heartbeat of a member of one of the groups that pull."""
    tags = random.choice(["*", "TagA", "TagA || TagB"])
    wanted = [] if tags == "*" else tags.split(" || ")
    subscriptions = [
        SubscriptionData(
            topic=topic,
            sub_string=tags,
            sub_version=random.choice([4, 5, 5, 6]),
            tags_set=wanted,
            code_set=[cq_unit.tags_code(tag) for tag in wanted],
        )
        for topic in TOPICS
    ]
    consumer = ConsumerData(
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name=random.choice(GROUPS),
        message_model="CLUSTERING",
        subscription_data_set=subscriptions,
        unit_mode=False,
    )
    data = HeartbeatData(client_id="me", consumer_data_set=[consumer], producer_data_set=[])
    return command.encode(Command(RequestCode.HEART_BEAT, body=bodies.encode(data)))


Reader = tuple[str, str | None]
"""A group and its subscription; None: the one of its heartbeat."""


def some_readers(random: Random) -> list[Reader]:
    return [(random.choice(GROUPS), random.choice(EXPRESSIONS)) for _ in range(2)]


def some_pull(
    random: Random, odd: float, offsets: Sequence[int], readers: Sequence[Reader] = ()
) -> bytes:
    """Return a pull of a reader, mostly of queue 0 of T, at some queue offset."""
    topic, queue_id = "T", 0
    if random.random() < 0.2:
        topic, queue_id = random.choice(TOPICS), random.choice(QUEUE_IDS)
    group, text = random.choice(readers or some_readers(random))
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(random.choice(offsets)),
        "maxMsgNums": str(random.choice([1, 2, 4, 32, 32, 5000])),
        "sysFlag": str(random.choice([0, 1, 2, 3, 18]) | (text is not None) * 4),
        "commitOffset": str(random.choice([0, 5, 1 << 50])),
        "suspendTimeoutMillis": "15000",
        "subscription": text if text is not None else "*",
        "subVersion": random.choice(["0", "5", "5", "6" if odd else "4"]),
        "expressionType": "TAG",
        "maxMsgBytes": "2147483647",
        "bname": "broker-a",
    }
    for name in ("subscription", "expressionType", "maxMsgBytes", "bname"):
        if random.random() < 0.3:
            del fields[name]
    if random.random() < 0.1 * odd:
        fields["expressionType"] = random.choice(["SQL", "SQL92", "tag"])
    if random.random() < 0.1 * odd:
        fields["queueId"] = random.choice(["10", "11", "-1"])
    body = b"body" if random.random() < 0.05 * odd else b""
    fields = with_odd_field(random, odd, fields)
    return some_request(random, odd, random.choice([11, 361]), fields, body)


# --- pops, acknowledgements, ends of transactions, messages that are sent back ----------------


def some_pop(random: Random, odd: float, now_ms: int) -> bytes:
    """Return a pop, mostly of queue 0 of T."""
    fields = {
        "consumerGroup": random.choice(GROUPS),
        "topic": "T" if random.random() < 0.9 else random.choice(TOPICS),
        "queueId": random.choice(["0", "0", "0", "1", "-1"]),
        "maxMsgNums": random.choice(["1", "2", "3", "8", "32"]),
        "invisibleTime": random.choice(["10", "60000", "60000"]),
        "pollTime": random.choice(["0", "0", "1000"]),
        "bornTime": str(now_ms),
        "initMode": random.choice(["0", "0", "1"]),
        "expType": "TAG",
        "exp": random.choice(["*", "*", "TagA", "TagB", "TagA || TagB", "TagZ"]),
        "order": random.choice(["false"] * 5 + ["true"]),
    }
    if random.random() < 0.1 * odd:
        fields["maxMsgNums"] = random.choice(["0", "33", "-1"])
    return some_request(random, odd, 200_050, with_odd_field(random, odd, fields),
                        can_be_binary=False)  # fmt: skip


class Pop:
    """A pop whose messages can be acknowledged."""

    def __init__(
        self, topic: str, group: str, queue_id: int, start: int, pop_ms: int, count: int = 32
    ) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.start = start
        self.pop_ms = pop_ms
        self.count = count


def some_ack(random: Random, odd: float, pops: Sequence[Pop]) -> bytes:
    """Return an acknowledgement of one message of a pop."""
    pop = random.choice(pops)
    offset = pop.start + random.choice([random.randrange(pop.count), random.randrange(80)])
    revive = random.choice([0, 1, 1, 2] + [999] * (odd > 0))
    handle = f"{pop.start} {pop.pop_ms} 60000 {revive} 0 broker-a 0 {offset}"
    fields = {
        "consumerGroup": pop.group,
        "topic": pop.topic,
        "queueId": str(pop.queue_id),
        "extraInfo": handle,
        "offset": str(offset),
    }
    body = b""
    if random.random() < 0.4 * odd:
        kind = random.randrange(6)
        if kind == 0:
            fields["extraInfo"] = random.choice(
                ["", "1", "1 2 3 4 0", "1 2 3 4 0 ", "1  2 3 4 0 b", "a 2 3 4 0 b", "01 2 3 4 0 b",
                 "1 2 -3 4 0 b", "1 2 3 4", " 1 2 3 4 0 b", handle.replace(" 0 broker-a", " 0"),
                 f"{pop.start} {pop.pop_ms} 999 1 0 b 0 5", f"{pop.start} {pop.pop_ms} 1 1 0"]
            )  # fmt: skip
        elif kind == 1:
            del fields[random.choice(list(fields))]
        elif kind == 2:
            fields |= random.choice([{"bname": "broker-a"}, {"ns": "x", "lo": "false"}, {"": ""}])
        elif kind == 3:
            body = b"x"
        elif kind == 4:
            fields["consumerGroup"] = random.choice(["", "other", "gruop", "grün"])
        else:
            fields["offset"] = random.choice(["-1", "", "07", "x", str(pop.start + 62 + kind)])
    return some_request(random, odd, 200_051, fields, body, can_be_binary=False,
                        flags=(0,) if odd == 0 else (0, 0, 0, 2))  # fmt: skip


def some_acks(random: Random, odd: float, pops: Sequence[Pop]) -> list[bytes]:
    """Return acknowledgements of several messages, mostly of one pop."""
    some = random.choice([[random.choice(pops)], pops, pops[-3:]])
    return [some_ack(random, odd, some) for _ in range(random.choice([1, 3, 10]))]


def some_ack_batch(random: Random, odd: float, pops: Sequence[Pop]) -> bytes:
    """Return a request that acknowledges messages of several pops."""
    entries = []
    for pop in random.sample(list(pops), min(len(pops), random.choice([1, 2]))):
        bits = random.getrandbits(pop.count).to_bytes(-(-pop.count // 8), "little")
        entries.append(
            {"c": pop.group, "t": pop.topic, "r": "0", "so": pop.start, "q": pop.queue_id, "rq": 1,
             "pt": pop.pop_ms, "it": 60_000, "b": base64.b64encode(bits).decode()}
        )  # fmt: skip
    if random.random() < 0.3 * odd:
        name = random.choice(list(entries[0]))
        entries[0][name] = random.choice([0, -1, "x", "", 999, 1 << 40])
    body = bodies.encode({"brokerName": "broker-a", "acks": entries})
    return some_request(random, odd, 200_151, {}, body, can_be_binary=False)


def some_end(random: Random, odd: float, halves: Sequence[tuple[int, int]], group: str) -> bytes:
    """Return the end of a transaction: queue offset and physical offset of a half message."""
    queue_offset, physical_offset = random.choice(halves)
    fields = {
        "producerGroup": group,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(physical_offset),
        "commitOrRollback": random.choice(["8", "8", "12", "0" if odd else "8"]),
        "fromTransactionCheck": random.choice(["true", "false"]),
        "msgId": "0A0B",
        "transactionId": "0A0B",
        "bname": "broker-a",
    }
    for name in ("fromTransactionCheck", "msgId", "transactionId", "bname"):
        if random.random() < 0.3:
            del fields[name]
    if random.random() < 0.15 * odd:
        name, value = random.choice(
            [("fromTransactionCheck", "yes"), ("commitOrRollback", str((1 << 32) + 8)),
             ("producerGroup", group[::-1]), ("tranStateTableOffset", str(queue_offset + 1)),
             ("commitLogOffset", str(physical_offset + 1)), ("commitLogOffset", "0")]
        )  # fmt: skip
        fields[name] = value
    if random.random() < 0.2 * odd:
        name = random.choice(["producerGroup", "msgId", "transactionId"])
        fields[name] = random.choice(ODD_TEXTS)
    fields = with_odd_field(random, odd, fields)
    return some_request(random, odd, 37, fields, flags=(0, 0, 2))


def some_send_back(random: Random, odd: float, offsets: Sequence[int]) -> bytes:
    """Return a request that sends a message back, by its physical offset."""
    fields = {
        "offset": str(random.choice(offsets)),
        "group": random.choice(["g", "h", "group"]),
        "delayLevel": random.choice(["0", "0", "0", "1", "3", "99"]),
        "originMsgId": "AC",
        "originTopic": "T",
        "unitMode": random.choice(["false", "false", "true"]),
        "maxReconsumeTimes": random.choice(["16", "16", "16", "2", "0"]),
    }
    for name in ("originMsgId", "originTopic", "unitMode", "maxReconsumeTimes"):
        if random.random() < 0.3:
            del fields[name]
    if random.random() < 0.15 * odd:
        name, value = random.choice(
            [("delayLevel", "-1"), ("maxReconsumeTimes", str(1 << 31)), ("unitMode", "yes"),
             ("offset", "1"), ("offset", str(1 << 40)), ("delayLevel", str((1 << 32) + 1))]
        )  # fmt: skip
        fields[name] = value
    fields = with_odd_field(random, odd, fields)
    return some_request(random, odd, 36, fields, flags=(0, 0, 2))


def some_lookup(random: Random, odd: float, offsets: Sequence[int], now_ms: int) -> bytes:
    """Return a query by key, by id or by time, or of the ends of a queue."""
    topic = random.choice([*TOPICS, "T", "T", "T"] + ["Nowhere", "", "Tö"] * (odd > 0))
    queue = {"topic": topic, "queueId": random.choice(["0", "1", "9"] + ["10", "-1"] * (odd > 0))}
    times = [0, now_ms, now_ms - 500, now_ms + 5000, (1 << 63) - 1] + [-1, 1 << 63] * (odd > 0)
    flag = random.choice(["true", "false", "True"])
    code, fields, more = random.choice(
        [
            (12, {"topic": topic, "key": random.choice(["k", "k1", "AC", "none", "", 'quo"te']),
                  "maxNum": random.choice(["1", "3", "32", "64"] + ["0", "-1", "x"] * (odd > 0)),
                  "beginTimestamp": random.choice(["0", str(random.choice(times))]),
                  "endTimestamp": str(random.choice([(1 << 63) - 1, *times]))},
             {"_UNIQUE_KEY_QUERY": flag, "indexType": random.choice(["", "K", "U", "T", "X"]),
              "lastKey": "k", "bname": "broker-a"}),
            (29, queue | {"timestamp": str(random.choice(times))},
             {"boundaryType": random.choice(["LOWER", "UPPER", "upper", ""])}),
            (30, queue, {"committed": flag, "lo": flag}),
            (31, queue, {"lo": flag}),
            (33, {"offset": str(random.choice([*offsets, 0]))}, {"topic": topic}),
        ]
    )  # fmt: skip
    fields = fields | {name: more[name] for name in more if random.random() < 0.2}
    return some_request(random, odd, code, with_odd_field(random, odd, fields), flags=(0, 0, 0, 2))


# --- streams --------------------------------------------------------------------------------


def with_damage(random: Random, frames: Sequence[bytes]) -> bytes:
    """Return concatenated frames, some of them damaged, the last one perhaps truncated."""
    parts = list(frames)
    for _ in range(random.choice([0, 0, 0, 1, 2]) if parts else 0):
        place = random.randrange(len(parts))
        chance = random.random()
        if chance < 0.8:
            parts[place] = damaged(random, frames[place])
        elif chance < 0.9:
            parts[place] = framed(random.randbytes(60), b"x", random.choice([0, 1, 1, 2]))
        else:
            size = random.choice([0, 3, -1, 1 << 24, (1 << 24) + 1])
            parts[place] = size.to_bytes(4, signed=True)
    data = b"".join(parts)
    return data[: random.randint(0, len(data))] if random.random() < 0.2 else data
