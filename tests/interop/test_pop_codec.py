"""The stored formats of pop consumption, against the classes of RocketMQ 5.5."""

from pathlib import Path

import pytest

import seeds
from interop.java_oracle import ClusterOracle, Oracle
from interop.recorded_oracle import oracle_fixture
from reput.format import bodies, names, pop_codec
from reput.format.pop_codec import AckRecord, BatchAckBody, CheckpointRecord, Handle
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.tables.pop_tables import (
    POP,
    ConsumerOrderTable,
    OrderBlock,
    RequestMode,
    RequestModeTable,
)

pytestmark = pytest.mark.interop

TOPICS = ("T", "Orders-1", "%RETRY%G_T", "%RETRY%G+T", "%RETRY%g_with_more_x")
POP_MS = 1_700_000_000_000


class PopOracle(ClusterOracle):
    """Running ``PopOracle.java``."""

    main_class = "PopOracle"


java = oracle_fixture(PopOracle, ["5.5.0"])


def test_handles_are_equal(java: Oracle) -> None:
    for topic in TOPICS:
        handle = Handle(5, POP_MS, 60_000, 7, pop_codec.kind_of(topic), "broker-a", 3, 9)
        words = (topic, "broker-a", 5, POP_MS, 60_000, 7, 3, 9)
        assert java.ask_one("handle", *words) == str(handle)
        assert pop_codec.parse_handle(str(handle), 3, 9) == handle


def test_offset_infos_are_equal(java: Oracle) -> None:
    for topic in TOPICS:
        ours = [pop_codec.start_info(topic, 3, 5), pop_codec.message_info(topic, 3, [5, 6, 9])]
        assert java.ask_one("infos", topic, 3, 5, 5, 6, 9) == ours
        assert java.ask_one("order", topic, 3, 0, 5, 2, 6, 1) == pop_codec.order_info(
            topic, 3, [(5, 2), (6, 1)], 0
        )


def test_topic_names_are_equal(java: Oracle) -> None:
    for topic, group in (("T", "G"), ("a_b", "c_d"), ("T", "G+x")):
        ours = [names.pop_retry_topic(topic, group), names.pop_retry_topic_v2(topic, group)]
        assert java.ask_one("topics", topic, group) == ours
        for topic_name in (*ours, topic):
            assert java.ask_one("normal", topic_name, group) == names.popped_topic(
                topic_name, group
            )


def test_checkpoints_are_read_both_ways(java: Oracle) -> None:
    chance = seeds.random("pop codec", 7)
    for number in range(java.size(50, 20)):
        start = chance.randrange(1 << 40)
        offsets = sorted(chance.sample(range(start, start + 100), chance.randint(1, 32)))
        ours = CheckpointRecord(
            broker_name="broker-a",
            group="G\u00e9\u4e2d",
            diffs=[place - start for place in offsets],
            invisible_ms=60_000 + number,
            message_count=len(offsets),
            pop_ms=POP_MS,
            queue_id=number,
            start_offset=start,
            is_suspended=number % 2 == 1,
            topic="T",
        )
        fields = java.ask_one("checkpoint", pop_codec.encode(ours).decode())
        text = fields.pop("text")
        assert fields == {
            "topic": "T",
            "group": "G\u00e9\u4e2d",
            "queue": number,
            "start": start,
            "pop": POP_MS,
            "revive": POP_MS + 60_000 + number,
            "broker": "broker-a",
            "suspend": number % 2 == 1,
            "offsets": offsets,
        }
        theirs = pop_codec.decode_checkpoint(text.encode())
        assert theirs == ours
        assert theirs.queue_offsets == offsets


def test_acks_are_read_both_ways(java: Oracle) -> None:
    single = AckRecord(
        ack_offset=7, broker_name="b", group="G", pop_ms=POP_MS, queue_id=2, start_offset=5,
        topic="T",
    )  # fmt: skip
    *fields, text = java.ask_one("ack", pop_codec.encode(single).decode())
    assert fields == ["T", "G", 2, 5, POP_MS, 7]
    assert pop_codec.decode_ack(text.encode()).queue_offsets == [7]
    many = AckRecord(
        ack_offsets=[5, 6, 9], broker_name="b", group="G", pop_ms=POP_MS, queue_id=2,
        start_offset=5, topic="T",
    )  # fmt: skip
    *fields, text = java.ask_one("bAck", pop_codec.encode(many).decode())
    assert fields == ["T", "G", 2, 5, POP_MS, [5, 6, 9]]
    assert pop_codec.decode_ack(text.encode()).queue_offsets == [5, 6, 9]


@pytest.mark.parametrize("bits", [[0], [0, 1, 7], [8], [3, 31], [100]])
def test_batch_acks_of_java_are_read(java: Oracle, bits: list[int]) -> None:
    body = java.ask_one("acks", "T", "G", 1, 40, *bits)
    (ack,) = bodies.decode(BatchAckBody, body.encode()).acks
    assert (ack.start_offset, ack.distances) == (40, sum(1 << bit for bit in bits))
    assert (ack.topic, ack.group, ack.kind) == ("T", "G", "1")
    assert (ack.queue_id, ack.revive_queue_id, ack.pop_ms) == (3, 5, POP_MS)
    assert pop_codec.topic_of(ack.kind, ack.topic, ack.group) == "%RETRY%G_T"


def test_ordered_blocks_are_read_both_ways(java: Oracle, tmp_path: Path) -> None:
    block = OrderBlock(POP_MS, 60_000, [5, 7, 9], POP_MS, acked=1, attempt_id="attempt")
    block.visible_ms[7] = POP_MS + 1
    block.counts[7] = 3
    table = ConsumerOrderTable.load(str(tmp_path), Disk())
    table.put("T", "G", 2, block)
    table.save(POP_MS)
    path = tmp_path / paths.CONSUMER_ORDER
    fields = java.ask_one("orders", path.read_text())
    text = fields.pop("text")
    assert fields == {
        "pop": POP_MS,
        "invisible": 60_000,
        "second": 7,
        "next": 7,
        "attempt": "attempt",
        "visible": POP_MS + 1,
        "count": 3,
    }
    path.write_text(text)
    assert ConsumerOrderTable.load(str(tmp_path), Disk()).get("T", "G", 2) == block


def test_request_modes_are_read_both_ways(java: Oracle, tmp_path: Path) -> None:
    mode = RequestMode("T", "G", POP, 2)
    table = RequestModeTable.load(str(tmp_path), Disk())
    table.put(mode)
    table.save(POP_MS)
    path = tmp_path / paths.REQUEST_MODES
    *fields, text = java.ask_one("modes", path.read_text())
    assert fields == ["POP", 2]
    path.write_text(text)
    assert RequestModeTable.load(str(tmp_path), Disk()).get("T", "G") == mode
