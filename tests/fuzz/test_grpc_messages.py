"""Damaged messages of 5.x clients: each has a documented error, or is a message.

Messages of every type are made, then damaged: bytes are changed, removed, repeated and inserted.
Decoded messages are encoded again, and a send is checked and converted as the front does it.
"""

import os
import random
from typing import Any

import pytest

import seeds
from reput.errors import InvalidProtobuf
from reput.format import properties as props
from reput.grpc import conversion, validation
from reput.grpc.statuses import StatusError
from reput.grpc.wire import grpc_messages, protobuf
from reput.grpc.wire.protobuf import MessageField, MessageTable

IS_SOAK = "REPUT_SOAK" in os.environ
INPUTS = 10_000_000 if IS_SOAK else 20_000
PARTS = 40 if IS_SOAK else 4
TABLES = list(grpc_messages.TABLES.values())
SEND = grpc_messages.SEND_MESSAGE_REQUEST
NOW_MS = 1_700_000_000_000
PIECES = [
    b"\x80", b"\xff" * 9 + b"\x01", b"\x80" * 10, b"\x00", b"\x7f", b"\x0b", b"\x0c", b"\x0a\x00",
    b"\xed\xa0\x80", b"\xc0\x80", b"\xff\xff\xff\xff\x07", b"\x01\x02",
]  # fmt: skip
TEXTS = ["", " ", "Orders", "TAGS", "a|b", "订单", "a\x01b\x02", "x" * 130, "%RETRY%g", "\ud800"]
NUMBERS = [0, 1, -1, 127, 128, 20000, (1 << 31) - 1, -(1 << 31)]


def _value(field: MessageField, draw: random.Random) -> Any:
    if field.message:
        return _message(field.message, draw)
    if field.kind == "string":
        return draw.choice(TEXTS)
    if field.kind == "bytes":
        return draw.randbytes(draw.choice([0, 5, 200]))
    if field.kind == "bool":
        return draw.random() < 0.5
    return draw.random() if field.kind == "float" else draw.choice(NUMBERS)


def _message(table: MessageTable, draw: random.Random) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for field in table.fields:
        if draw.random() < 0.4:
            continue
        if field.label == "repeated":
            message[field.name] = [_value(field, draw) for _ in range(draw.randrange(3))]
        elif field.label == "map":
            message[field.name] = {draw.choice(TEXTS): draw.choice(TEXTS) for _ in range(2)}
        else:
            message[field.name] = _value(field, draw)
    return message


def _damaged(data: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(draw.randrange(4)):
        start = draw.randrange(len(damaged) + 1)
        stop = min(start + draw.randrange(5), len(damaged))
        kind = draw.randrange(4)
        if kind == 0 and start < len(damaged):
            damaged[start] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del damaged[start:stop]
        elif kind == 2:
            damaged[start:start] = damaged[start:stop] * draw.randrange(1, 5)
        else:
            damaged[start:stop] = draw.choice(PIECES)
    return bytes(damaged)


def _convert(request: dict[str, Any]) -> None:
    """Check and convert the messages of a send; checked ones fit a property string."""
    messages = request.get("messages", [])
    try:
        validation.check_topic_of(messages)
        for message in messages:
            validation.check_message(message, NOW_MS)
        outgoing = [conversion.outgoing(each, ("192.0.2.7", 1), NOW_MS) for each in messages]
    except (StatusError, InvalidProtobuf):
        return
    for each in outgoing:
        assert props.decode(props.encode(each.properties)) == each.properties


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_message_has_a_documented_error_or_is_a_message(part: int) -> None:
    draw = seeds.random("grpc messages", part)
    refused = 0
    for number in range(INPUTS // PARTS):
        if number % 20 == 0:  # each message is damaged in several ways
            table = SEND if number % 100 == 0 else draw.choice(TABLES)
            data = protobuf.encode(table, _message(table, draw))
        damaged = _damaged(data, draw)
        try:
            decoded = protobuf.decode(table, damaged)
        except InvalidProtobuf:
            refused += 1
            continue
        encoded = protobuf.encode(table, decoded)
        assert protobuf.encode(table, protobuf.decode(table, encoded)) == encoded
        if table is SEND:
            _convert(decoded)
    assert INPUTS // PARTS * 0.1 < refused < INPUTS // PARTS * 0.9


VALID_MESSAGE = {
    "topic": {"name": "Orders"},
    "user_properties": {"color": "red"},
    "system_properties": {
        "tag": "TagA",
        "keys": ["k"],
        "message_id": "01" + "A" * 32,
        "message_type": 1,
        "born_timestamp": {"seconds": 1_700_000_000},
        "born_host": "laptop",
        "message_group": "g",
        "trace_context": "t",
    },
    "body": b"hello",
}


def test_damaged_send_is_refused_or_fits_a_property_string() -> None:
    draw = seeds.random("grpc messages", "values")
    data = protobuf.encode(SEND, {"messages": [VALID_MESSAGE]})
    passed = 0
    for _ in range(INPUTS // 10):
        try:
            decoded = protobuf.decode(SEND, _damaged(data, draw))
        except InvalidProtobuf:
            continue
        passed += 1
        _convert(decoded)
    assert passed > INPUTS // 100


def test_damaged_handle_is_refused_or_parsed() -> None:
    draw = seeds.random("grpc messages", "handles")
    handle = b"100 1700000000000 60000 0 0 broker-a 3 105 8192"
    for _ in range(INPUTS // 10):
        damaged = _damaged(handle, draw).decode("utf-8", "replace")
        try:
            parsed = conversion.Receipt.parse(damaged)
        except StatusError:
            continue
        assert conversion.Receipt.parse(str(parsed)) == parsed
