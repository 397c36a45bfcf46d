"""The table of consumer offsets, and the file format of Java's client."""

import pytest

from reput.client.core import offset_table
from reput.client.core.offset_table import OffsetTable
from reput.errors import InvalidBody
from reput.format.bodies import MessageQueue

A = MessageQueue("T", "broker-a", 0)
B = MessageQueue("T", "broker-a", 1)
C = MessageQueue("U", "broker-a", 0)

JAVA_FILE = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:5,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:9223372036854775807
\t}
}"""
"""The text that ``OffsetSerializeWrapper.toJson(true)`` of 4.9.8 prints."""


def test_advance_does_not_lower_an_offset_but_set_does() -> None:
    table = OffsetTable()
    assert table.get(A) is None
    table.advance(A, 0)
    assert table.get(A) == 0
    table.advance(A, 7)
    table.advance(A, 5)
    assert table.get(A) == 7
    table.set(A, 5)
    assert table.get(A) == 5


def test_unsaved_offsets() -> None:
    table = OffsetTable()
    table.advance(A, 7)
    table.advance(B, 8)
    assert table.unsaved() == {A: 7, B: 8}
    table.advance(A, 9)  # the save of 7 is in flight
    table.note_saved(A, 7)
    table.note_saved(B, 8)
    assert table.unsaved() == {A: 9}
    table.set(B, 3)
    assert table.unsaved() == {A: 9, B: 3}


def test_a_removed_queue_is_not_saved_later() -> None:
    table = OffsetTable()
    table.advance(A, 7)
    table.remove(A)
    table.note_saved(A, 7)
    assert table.unsaved() == {}
    table.advance(A, 7)
    assert table.unsaved() == {A: 7}


def test_offsets_of_a_topic() -> None:
    table = OffsetTable()
    for queue in (A, B, C):
        table.set(queue, 1)
    assert table.of_topic("T") == {A: 1, B: 1}


def test_a_file_of_java_is_read() -> None:
    assert offset_table.decode_file(JAVA_FILE) == {A: 5, B: 2**63 - 1}


def test_file_round_trip() -> None:
    offsets = {A: 5, C: 0}
    data = offset_table.encode_file(offsets)
    assert offset_table.decode_file(data) == offsets
    # An object as key, as Java prints it; 5.4 and later read no other form.
    assert data.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5,')


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"offsetTable":5}', JAVA_FILE[:-3]])
def test_damaged_file(data: bytes) -> None:
    with pytest.raises(InvalidBody):
        offset_table.decode_file(data)
