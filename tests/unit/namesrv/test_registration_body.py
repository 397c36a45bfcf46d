"""The body of REGISTER_BROKER, against bytes that Java made.

``tests/data/remoting/register_*`` is what ``RegisterBrokerBody.encode`` of that version returns for
three topics (5.5.0: two), with ``true`` and with ``false``.
"""

import struct
import zlib
from pathlib import Path

import pytest

from reput.errors import InvalidBody
from reput.format import bodies
from reput.format.bodies import DataVersion, RegisterBrokerBody, TopicConfigData

DATA = Path(__file__).parents[2] / "data" / "remoting"
OF_4 = (DATA / "register_4.9.7_compressed.bin").read_bytes()
OF_5 = (DATA / "register_5.5.0_compressed.bin").read_bytes()


def topic(name: str, read: int, write: int, perm: int, kind: str = "SINGLE_TAG") -> TopicConfigData:
    return TopicConfigData(
        order=False,
        perm=perm,
        read_queue_nums=read,
        topic_filter_type=kind,
        topic_name=name,
        topic_sys_flag=0,
        write_queue_nums=write,
    )


TOPICS = {
    "TopicA": topic("TopicA", 4, 8, 6),
    "%RETRY%group": topic("%RETRY%group", 1, 1, 6, "MULTI_TAG"),
    "Ordered": topic("Ordered", 2, 2, 4),
}


def test_compressed_by_4_9() -> None:
    body = bodies.decompress_registration(OF_4)
    assert body.filter_server_list == ["10.0.0.1:7000", "10.0.0.1:7001"]
    table = body.topic_config_serialize_wrapper
    assert table.data_version == DataVersion(counter=42, timestamp=1700000000123)
    assert table.topic_config_table == TOPICS


def test_plain_of_4_9() -> None:
    """The plain form has what the compressed one loses: order and system flag."""
    data = (DATA / "register_4.9.7_plain.json").read_bytes()
    table = bodies.decode(RegisterBrokerBody, data).topic_config_serialize_wrapper
    ordered = table.topic_config_table["Ordered"]
    assert (ordered.order, ordered.topic_sys_flag, ordered.perm) == (True, 3, 4)


def test_compressed_by_5_5() -> None:
    """Attributes behind the words, with spaces; the mapping of static topics at the end."""
    body = bodies.decompress_registration(OF_5)
    plain = bodies.decode(RegisterBrokerBody, (DATA / "register_5.5.0_plain.json").read_bytes())
    assert body == plain
    fifo = body.topic_config_serialize_wrapper.topic_config_table["Fifo"]
    assert fifo.attributes == {"note": "two words", "+message.type": "FIFO"}
    assert body.topic_config_serialize_wrapper.data_version.state_version == 7


def test_no_filter_servers() -> None:
    """``JSON.toJSONString`` of a list that is null."""
    data = zlib.compress(
        struct.pack(">i", 2) + b"{}" + struct.pack(">i", 0) + struct.pack(">i", 4) + b"null"
    )
    assert bodies.decompress_registration(data).filter_server_list == []


@pytest.mark.parametrize("end", range(0, len(OF_4), 7))
def test_a_cut_one_is_refused(end: int) -> None:
    with pytest.raises(InvalidBody):
        bodies.decompress_registration(OF_4[:end])


def test_every_cut_inside_is_refused() -> None:
    plain = zlib.decompress(OF_4)
    for end in range(len(plain)):
        with pytest.raises(InvalidBody):
            bodies.decompress_registration(zlib.compress(plain[:end]))


@pytest.mark.parametrize(
    "words", [b"A 1 1 6", b"A x 1 6 SINGLE_TAG", b"A 1 1 6 SINGLE_TAG {", b"\xff", b""]
)
def test_a_wrong_topic_is_named(words: bytes) -> None:
    data = struct.pack(">i", 2) + b"{}" + struct.pack(">ii", 1, len(words)) + words
    with pytest.raises(InvalidBody):
        bodies.decompress_registration(zlib.compress(data + struct.pack(">i", 2) + b"[]"))


@pytest.mark.parametrize("size", [-1, 1 << 30])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidBody, match=str(size)):
        bodies.decompress_registration(zlib.compress(struct.pack(">i", size)))


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "REGISTRATION_BYTES_MAX", 1000)
    with pytest.raises(InvalidBody, match="more than 1000 bytes"):
        bodies.decompress_registration(zlib.compress(bytes(100_000)))
