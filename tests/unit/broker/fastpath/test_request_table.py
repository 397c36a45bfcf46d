"""Consecutive requests as rows of a table."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from cases import case
from reput.broker.fastpath import request_table
from reput.broker.fastpath.request_table import Field, Kind, RequestList
from reput.broker.kernels import hot as kernels, scan_args as rules
from reput.format import command
from reput.format.command import IS_ONEWAY, Command, Serialization
from reput.store.kernels import hot

if not kernels.is_compiled:
    pytest.skip("no compiled kernels here", allow_module_level=True)

BUFFER = bytearray(1 << 17)


@pytest.fixture
def acks() -> RequestList:
    fields = [
        Field("consumerGroup", Kind.TEXT, is_required=True),
        Field("extraInfo", Kind.TEXT),
        Field("queueId", Kind.INT, is_required=True),
        Field("offset", Kind.LONG),
        Field("isLast", Kind.BOOL),
    ]
    return RequestList(200, fields, BUFFER)


def ack(serialization: Serialization = Serialization.JSON, **about: Any) -> bytes:
    fields = {"consumerGroup": "readers", "extraInfo": "0 17 a", "queueId": "3"}
    fields |= about.pop("fields", {})
    sent = Command(200, 7, ext_fields=fields, serialization=serialization)
    for name, value in about.items():
        setattr(sent, name, value)
    return command.encode(sent)


def taken(acks: RequestList, data: bytes, position: int = 0) -> list[list[int]]:
    BUFFER[: len(data)] = data
    return acks.collect(position, len(data))


@pytest.mark.parametrize("serialization", list(Serialization))
def test_fields_of_rows(acks: RequestList, serialization: Serialization) -> None:
    more = {"offset": "9" * 18, "isLast": "true"}
    frames = [
        ack(serialization),
        ack(serialization, flag=IS_ONEWAY, opaque=8, body=b"body", fields=more),
    ]
    first, second = taken(acks, b"".join(frames))
    assert first[: rules.ROW.body] == [7, 0, serialization, len(frames[0])]
    assert second[: rules.ROW.body] == [8, IS_ONEWAY, serialization, len(frames[0] + frames[1])]
    assert hot.bytes_at(second[rules.ROW.body], second[rules.ROW.body_size]) == b"body"
    assert first[rules.ROW.body_size] == 0
    value: Callable[[str], int] = acks.value
    assert (first[value("queueId")], first[value("queueId") + 1]) == (3, 1)
    assert (first[value("offset")], first[value("offset") + 1]) == (0, rules.ABSENT)
    assert (second[value("offset")], second[value("isLast")]) == (10**18 - 1, 1)
    assert acks.text(first, "consumerGroup") == b"readers"
    assert acks.text(second, "extraInfo") == b"0 17 a"


def test_a_repeated_text_keeps_its_position(acks: RequestList) -> None:
    others = {"consumerGroup": "writers"}
    frames = [ack(), ack(Serialization.ROCKETMQ), ack(fields=others), ack()]
    rows = taken(acks, b"".join(frames))
    column = acks.value("consumerGroup")
    assert rows[0][column] == rows[1][column]
    assert len({row[column] for row in rows}) == 3  # only the previous row's text is compared
    texts = [acks.text(row, "consumerGroup") for row in rows]
    assert texts == [b"readers", b"readers", b"writers", b"readers"]


@pytest.mark.parametrize("opaques", [[7], [10, 99], [9, 10], [0, 2**31 - 1], []])
@pytest.mark.parametrize("flags", [[0], [0, IS_ONEWAY]])
def test_consecutive_replies_are_equal_to_single_ones(
    acks: RequestList, opaques: list[int], flags: list[int]
) -> None:
    frames, expected = [], []
    for serialization in Serialization:
        for opaque in opaques:
            for flag in flags:
                frames.append(ack(serialization, opaque=opaque, flag=flag))
                if not flag:
                    request = Command(200, opaque, serialization=serialization)
                    expected.append(command.encode(command.reply(request)))
        assert request_table.empty_replies(taken(acks, b"".join(frames))) == b"".join(expected)


def test_an_absent_text_is_none(acks: RequestList) -> None:
    request = Command(200, 7, ext_fields={"consumerGroup": "g", "queueId": "0"})
    (row,) = taken(acks, command.encode(request))
    assert acks.text(row, "extraInfo") is None


OTHERS: tuple[dict[str, Any], ...] = (
    *({"code": 201}, {"flag": 1}, {"flag": 4}, {"opaque": -1}, {"remark": "why"}),
    *({"fields": {"queueId": "-1"}}, {"fields": {"queueId": "2147483648"}}),
    *({"fields": {"queueId": "03"}}, {"fields": {"offset": "9" * 19}}),
    *({"fields": {"isLast": "TRUE"}}, {"fields": {"more": "x"}}, {"ext_fields": None}),
    *({"fields": {"consumerGroup": "grün"}}, {"ext_fields": {"consumerGroup": "g"}}),
    {"fields": {"extraInfo": 'a"b\\'}},
)


def test_it_stops_before_other_requests(acks: RequestList) -> None:
    for about, serialization in itertools.product(OTHERS, Serialization):
        with case(about, serialization):
            frame, other = ack(serialization), ack(serialization, **about)
            (row,) = taken(acks, frame + other + frame)
            assert row[rules.ROW.end] == len(frame)


def test_truncated_frames_and_impossible_lengths(acks: RequestList) -> None:
    whole = ack()
    for cut in range(len(whole)):
        assert len(taken(acks, whole + whole[:cut])) == 1
    assert len(taken(acks, whole + b"\0\0\0\3xyz")) == 1
    assert len(taken(acks, whole * 3, len(whole))) == 2


def test_more_requests_than_one_call_takes(acks: RequestList) -> None:
    rows = taken(acks, ack() * (request_table.ROWS_MAX + 1))
    assert len(rows) == request_table.ROWS_MAX
