"""The body of REGISTER_BROKER, compared with bytes that Java wrote.

``tests/data/remoting/register_*`` is the output of ``RegisterBrokerBody.encode`` of that version
for three topics (5.5.0: two), with ``true`` and with ``false``.
"""

import json
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from reput.errors import InvalidBody, LimitExceeded
from reput.format import bodies, limits
from reput.format.bodies import DataVersion, RegisterBrokerBody, TopicConfigData
from reput.namesrv import registration_body
from reput.remoting.time_slices import run_whole

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
    body = run_whole(bodies.decompress_registration(OF_4))
    assert body.filter_server_list == ["10.0.0.1:7000", "10.0.0.1:7001"]
    table = body.topic_config_serialize_wrapper
    assert table.data_version == DataVersion(counter=42, timestamp=1700000000123)
    assert table.topic_config_table == TOPICS


def test_plain_of_4_9() -> None:
    """The plain form contains what the compressed one loses: order and system flag."""
    data = (DATA / "register_4.9.7_plain.json").read_bytes()
    table = bodies.decode(RegisterBrokerBody, data).topic_config_serialize_wrapper
    ordered = table.topic_config_table["Ordered"]
    assert (ordered.order, ordered.topic_sys_flag, ordered.perm) == (True, 3, 4)


def test_compressed_by_5_5() -> None:
    """Attributes follow the words, with spaces; the mapping of static topics is at the end."""
    body = run_whole(bodies.decompress_registration(OF_5))
    plain = bodies.decode(RegisterBrokerBody, (DATA / "register_5.5.0_plain.json").read_bytes())
    assert body == plain
    fifo = body.topic_config_serialize_wrapper.topic_config_table["Fifo"]
    assert fifo.attributes == {"note": "two words", "+message.type": "FIFO"}
    assert body.topic_config_serialize_wrapper.data_version.state_version == 7


def test_no_filter_servers() -> None:
    """``JSON.toJSONString`` writes a list that is null in this way."""
    data = zlib.compress(
        struct.pack(">i", 2) + b"{}" + struct.pack(">i", 0) + struct.pack(">i", 4) + b"null"
    )
    assert run_whole(bodies.decompress_registration(data)).filter_server_list == []


@pytest.mark.parametrize("end", range(0, len(OF_4), 7))
def test_a_truncated_body_is_refused(end: int) -> None:
    with pytest.raises(InvalidBody):
        run_whole(bodies.decompress_registration(OF_4[:end]))


def test_a_body_cut_at_any_position_is_refused() -> None:
    plain = zlib.decompress(OF_4)
    for end in range(len(plain)):
        with pytest.raises(InvalidBody):
            run_whole(bodies.decompress_registration(zlib.compress(plain[:end])))


@pytest.mark.parametrize(
    "words", [b"A 1 1 6", b"A x 1 6 SINGLE_TAG", b"A 1 1 6 SINGLE_TAG {", b"\xff", b""]
)
def test_an_invalid_topic_is_named(words: bytes) -> None:
    data = struct.pack(">i", 2) + b"{}" + struct.pack(">ii", 1, len(words)) + words
    with pytest.raises(InvalidBody):
        run_whole(
            bodies.decompress_registration(zlib.compress(data + struct.pack(">i", 2) + b"[]"))
        )


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidBody, match="length of -1"):
        run_whole(bodies.decompress_registration(zlib.compress(struct.pack(">i", -1))))


def test_an_impossible_size_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="limit registration_part_bytes"):
        run_whole(bodies.decompress_registration(zlib.compress(struct.pack(">i", 1 << 30))))


def test_a_zip_bomb_is_refused_and_never_whole_in_memory() -> None:
    """64 MiB were inflated at once: 30 ms in which no other request was served."""
    bomb = zlib.compress(zlib.decompress(OF_4) + bytes(100 << 20))
    steps = bodies.decompress_registration(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="limit registration_bytes"):
            run_whole(steps)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_input_that_inflates_to_nothing_is_read_in_small_steps() -> None:
    """Megabytes of empty zlib blocks were read in a single step."""
    empty_blocks = b"\0\0\0\xff\xff" * (1 << 20)
    steps = bodies.decompress_registration(zlib.compress(b"")[:2] + empty_blocks)
    pauses: list[None] = []
    with pytest.raises(InvalidBody, match="is cut"):
        pauses.extend(steps)  # Keeps the earlier bytes.
    assert len(pauses) >= len(empty_blocks) / (64 << 10) - 1


# --- long bodies --------------------------------------------------------------


def topic_json(name: str) -> dict[str, Any]:
    return {
        "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 3, "writeQueueNums": 8,
    }  # fmt: skip


def registration(topics: str, **more: Any) -> bytes:
    """Return a registration with the given table of topics."""
    table = f'{{"dataVersion":{{"counter":42,"timestamp":1}},"topicConfigTable":{topics}}}'
    rest = "".join(f',"{key}":{json.dumps(value)}' for key, value in more.items())
    return f'{{"topicConfigSerializeWrapper":{table}{rest}}}'.encode()


def read(body: bytes, *, version: int = 500, is_compressed: bool = False) -> RegisterBrokerBody:
    return run_whole(registration_body.read(body, version, is_compressed=is_compressed))


NAMES = [f'topic-{i:05}-ü\U0001f600\\"' for i in range(5_000)]


@pytest.mark.parametrize(("separators", "indent"), [((",", ":"), None), ((", ", ": "), 3)])
def test_a_long_body_read_in_steps_equals_one_read_whole(
    separators: tuple[str, str], indent: int | None
) -> None:
    table = {name: topic_json(name) for name in NAMES}
    table["last"] = {**topic_json("other name"), "attributes": {"+a": '{"}'}}
    text = json.dumps(table, separators=separators, indent=indent, ensure_ascii=False)
    body = registration(text, filterServerList=["f:1"], unknown=[{}, 1])
    assert len(body) > limits.LENIENT_JSON_BYTES.maximum
    assert read(body) == bodies.decode(RegisterBrokerBody, body)
    assert sum(1 for _ in registration_body.read(body, 500, is_compressed=False)) >= 100
    old = body[len(b'{"topicConfigSerializeWrapper":') : body.index(b',"filterServerList"')]
    assert read(old, version=36).topic_config_serialize_wrapper == (
        read(body).topic_config_serialize_wrapper
    )


def test_a_long_compressed_body_is_read_in_steps() -> None:
    words = b"".join(
        struct.pack(">i", 29) + b"topic-%06d " % i + b"8 8 6 SINGLE_TAG" for i in range(20_000)
    )
    data = struct.pack(">i", 2) + b"{}" + struct.pack(">i", 20_000) + words
    body = zlib.compress(data + struct.pack(">i", 2) + b"[]")
    assert len(read(body).topic_config_serialize_wrapper.topic_config_table) == 20_000
    assert sum(1 for _ in registration_body.read(body, 500, is_compressed=True)) >= 200


LONG = limits.LENIENT_JSON_BYTES.maximum


@pytest.mark.parametrize(
    ("topics", "error"),
    [
        ('{"a":[' + "[]," * LONG + "[]]}", "limit registration_part_bytes"),
        ('{"' + "a" * LONG + '":1}', "limit registration_part_bytes"),
        ('{"a":' + "[" * 900 + "1" + "]" * 900 + "," + '"b":' + " " * LONG + "1}", "a topic"),
        ("{" + ",".join(f'"{i}":1' for i in range(LONG)) + "}", "a topic"),
        ("{" + '"a":{},' * LONG + '"b":{}}', "a topic"),
        ("[" + "1," * LONG + "1]", "topicConfigTable is no object"),
        ('{"a":' + "9" * LONG + "}", "limit registration_part_bytes"),
        ("{" + " " * LONG + "}", ""),
        (r'{"a":{"topicName":"\ud800"}' + " " * LONG + "}", "hex escape"),
        ("{" + '\\"' * LONG + "}", "body is no RegisterBrokerBody"),
        ("[" * LONG, "body is no RegisterBrokerBody"),
    ],
    ids=range(11),
)
def test_a_long_hostile_body_is_refused_in_small_steps(topics: str, error: str) -> None:
    body = registration(topics)
    if not error:
        assert read(body).topic_config_serialize_wrapper.topic_config_table == {}
        return
    with pytest.raises((InvalidBody, LimitExceeded), match=error):
        read(body)


def test_more_topics_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REGISTRATION_TOPICS", limits.REGISTRATION_TOPICS.at(1_000))
    text = json.dumps({name: topic_json(name) for name in NAMES})
    with pytest.raises(LimitExceeded, match="limit registration_topics"):
        read(registration(text))
    data = struct.pack(">i", 2) + b"{}" + struct.pack(">i", 1_001)
    with pytest.raises(LimitExceeded, match="limit registration_topics"):
        read(zlib.compress(data))


@pytest.mark.parametrize("number", ["9" * 4_000, "2147483648", "-2147483649"])
def test_numbers_have_javas_ranges(number: str) -> None:
    words = f"A {number} 1 6 SINGLE_TAG".encode()
    data = struct.pack(">i", 2) + b"{}" + struct.pack(">ii", 1, len(words)) + words
    with pytest.raises(InvalidBody):
        read(zlib.compress(data + struct.pack(">i", 2) + b"[]"))
