"""Conversions of the stores that official brokers wrote: the messages that Java's clients saw."""

import hashlib
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import foreign_stores
from cases import each
from reput.errors import CorruptRecord, InvalidOption, ReputError, StoreUnavailable
from reput.format.message import StoredMessage
from reput.format.message_id import decode_offset_id
from reput.spark.jobs.convert import Converted, convert
from reput.store.foreign.opening import open_reader
from reput.store.reader import StoreReader
from reput.store.verify import Severity, verify

FIRST = "dledger-n0/data/00000000000000000000"
TIMER_UNIT = struct.Struct(">iqiqiqiiq")
Place = tuple[str, int, int]


def converted(root: Path, form: str = "dledger", **options: Any) -> tuple[Converted, StoreReader]:
    target = root.with_name("plain")
    result = convert(None, str(root), str(target), form=form, **options)
    return result, StoreReader.open(str(target))


def place_of(message: StoredMessage) -> Place:
    return message.topic, message.queue_id, message.queue_offset


def expect_all(version: str, name: str, reader: StoreReader) -> None:
    """Compare a plain store with what Java's clients saw of the other one."""
    manifest = foreign_stores.manifest(version, name)
    known = {
        message["physical_offset"]: (*queue.rsplit("/", 1), message["queue_offset"])
        for queue, entry in manifest["queues"].items()
        for message in entry["messages"]
    }
    references = 0
    for queue, entry in manifest["queues"].items():
        topic, queue_id = queue.rsplit("/", 1)
        for expected in entry["messages"]:
            message = reader.message_in_queue(topic, int(queue_id), expected["queue_offset"])
            assert hashlib.sha256(message.plain_body()).hexdigest() == expected["body_sha256"]
            same = ("store_size", "flag", "born_timestamp", "store_timestamp")
            assert all(getattr(message, field) == expected[field] for field in same)
            named = [(message.prepared_transaction_offset, expected["prepared_transaction_offset"])]
            if origin := message.properties.get("ORIGIN_MESSAGE_ID"):
                before = expected["properties"]["ORIGIN_MESSAGE_ID"]
                named.append((decode_offset_id(origin).physical_offset, int(before[-16:], 16)))
            for new, old in named:
                if old in known and old:
                    topic_of, queue_of, number = known[old]
                    assert place_of(reader.message_at(new)) == (topic_of, int(queue_of), number)
                    references += 1
    assert references > 5, "messages that name others are among them"
    hits = reader.messages_by_key("Orders", "shared").messages
    asked = Counter(manifest["with_key_shared"])  # Java returns 64 messages at most
    assert asked <= Counter(hit.queue_offset for hit in hits)
    report = verify(reader)
    assert report.severity <= Severity.NOTE
    assert report.unit_count == report.queued_count == report.record_count


@pytest.mark.parametrize(("version", "name"), foreign_stores.IN_LEDGER)
def test_messages_keep_their_queue_offsets(version: str, name: str, tmp_path: Path) -> None:
    root = foreign_stores.unpack(version, name, tmp_path)
    files = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    result, reader = converted(root)
    expect_all(version, name, reader)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == files, "only read"
    source = open_reader(str(root))
    assert result.record_count == sum(1 for _ in source.messages())
    assert [place_of(message) for message in reader.messages()] == [
        place_of(message) for message in source.messages()
    ]
    lost_headers = 48 * (result.ledger.last_index + 1) if result.ledger else 0
    assert result.end_offset < result.source_end <= result.end_offset + lost_headers + (8 << 16)
    assert (result.uncommitted == "keep") == (name == "uncommitted")
    for table in ("topics.json", "consumerOffset.json", "subscriptionGroup.json"):
        copied = reader.folder.read(f"config/{table}")
        assert bytes(copied) == (root / "config" / table).read_bytes()
    assert source.delay_offsets() == reader.delay_offsets()


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_uncommitted_entries_can_be_dropped(version: str, tmp_path: Path) -> None:
    result, reader = converted(
        foreign_stores.unpack(version, "uncommitted", tmp_path), uncommitted="drop"
    )
    expect_all(version, "uncommitted", reader)
    (left_out,) = result.left_out
    assert not left_out.is_damage
    assert "entries after committed index" in left_out.reason
    manifest = foreign_stores.manifest(version, "uncommitted")
    assert reader.queue("Orders", 1).max_offset == manifest["queues"]["Orders/1"]["max"]


def test_units_of_the_timer_log_name_the_same_messages(tmp_path: Path) -> None:
    root = foreign_stores.unpack("5.5.0", "single", tmp_path)
    _, reader = converted(root)
    source = open_reader(str(root))
    name = "timerlog/00000000000000000000"
    count = 0
    before, after = (bytes(store.folder.read(name, 0, 52 * 10)) for store in (source, reader))
    for old, new in zip(TIMER_UNIT.iter_unpack(before), TIMER_UNIT.iter_unpack(after), strict=True):
        if old[0]:
            assert old[:5] + old[6:] == new[:5] + new[6:]
            assert place_of(source.message_at(old[5])) == place_of(reader.message_at(new[5]))
            count += 1
    assert count == 2


def break_entry(root: Path) -> int:
    """Change the magic of the second entry, and return its position."""
    with (root / FIRST).open("r+b") as file:
        (position,) = struct.unpack(">i", file.read(8)[4:])
        file.seek(position)
        file.write(struct.pack(">i", 7))
    return position


def test_damage_is_refused_or_left_out_on_request(tmp_path: Path) -> None:
    root = foreign_stores.unpack("4.9.7", "single", tmp_path)
    whole = sum(1 for _ in open_reader(str(root)).messages())
    position = break_entry(root)
    with pytest.raises(CorruptRecord, match=r"magic 7; allowed is 1.*skip-damage") as raised:
        converted(root)
    assert (raised.value.file, raised.value.physical_offset) == (FIRST[-20:], position)
    assert not root.with_name("plain").exists()
    result, reader = converted(root, skip_damage=True)
    assert result.is_damaged
    assert [part.physical_offset for part in result.left_out] == [position]
    assert sum(1 for _ in reader.messages()) == result.record_count == whole - 1


def test_a_torn_entry_is_reported(tmp_path: Path) -> None:
    root = foreign_stores.unpack("4.9.7", "uncommitted", tmp_path)
    whole = [place_of(message) for message in open_reader(str(root)).messages()]
    with (root / "dledger-n1/data/00000000000000000000").open("r+b") as file:
        end = len(file.read().rstrip(b"\0"))
        file.seek(end - 30)
        file.write(bytes(30))
    result, reader = converted(root)
    assert [place_of(message) for message in reader.messages()] == whole[:-1]
    assert "half-written" in result.left_out[0].reason
    assert not result.is_damaged


def drop_checkpoint(root: Path) -> None:
    (root / "dledger-n0/checkpoint").unlink()


@each(
    ("options", "error", "text"),
    [
        ({"form": "rocks"}, InvalidOption, "dledger or rocksdb"),
        ({"form": "rocksdb"}, StoreUnavailable, "neither queues nor tables in RocksDB"),
        ({"uncommitted": "some"}, InvalidOption, "keep or drop"),
        ({"uncommitted": "drop", "change": drop_checkpoint}, InvalidOption, "checkpoint does not"),
        ({"target": "store/inside"}, InvalidOption, "a folder outside of"),
        ({"target": "."}, StoreUnavailable, "exists already"),
    ],
)
def test_wrong_requests_are_refused(
    tmp_path_factory: pytest.TempPathFactory,
    options: dict[str, Any],
    error: type[ReputError],
    text: str,
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    root = foreign_stores.unpack("4.9.7", "single", folder)
    options = {"form": "dledger", "target": "new", **options}
    options.pop("change", lambda _: None)(root)
    target = str(folder / options.pop("target"))
    with pytest.raises(error, match=text):
        convert(None, str(root), target, **options)


def test_a_run_deletes_what_a_killed_one_left(tmp_path: Path) -> None:
    root = foreign_stores.unpack("4.9.7", "uncommitted", tmp_path)
    rest = tmp_path / "plain.convert-draft/commitlog/00000000000000000000"
    rest.parent.mkdir(parents=True)
    rest.write_text("half a file")
    _, reader = converted(root)
    expect_all("4.9.7", "uncommitted", reader)
    assert not rest.exists()


@pytest.mark.parametrize(
    ("version", "name"), [store for store in foreign_stores.STORES if store[1] == "rocksdb"]
)
def test_queues_and_tables_leave_rocksdb(version: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip("rocksdict", reason="missing rocksdict: pip install rocksdict")
    root = foreign_stores.unpack(version, name, tmp_path)
    before = sorted(path for path in root.rglob("*"))
    source = open_reader(str(root))
    expect_all(version, name, source)
    _, reader = converted(root, "rocksdb")
    expect_all(version, name, reader)
    assert sorted(path for path in root.rglob("*")) == before, "only read"
    manifest = foreign_stores.manifest(version, name)
    consumed = {
        (entry.topic, entry.group): entry.consumer_offset for entry in reader.consumer_offsets()
    }
    assert ("Orders", "readers") in consumed
    assert {queue.rsplit("/", 1)[0] for queue in manifest["queues"]} <= {
        *reader.topics(),
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "rmq_sys_wheel_timer",
    }
    assert {"readers", "of-delays"} <= set(reader.subscription_groups())
    for queue in source.queues():
        assert queue.max_offset == reader.queue(queue.topic, queue.queue_id).max_offset
