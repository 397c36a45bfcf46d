"""Compare: each planted difference is found and explained, and equal copies are equal."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import golden
from reput.client import blocking
from reput.client.message import Message
from reput.errors import InvalidOption
from reput.format import message as record
from reput.spark.jobs.compare import OTHER_BROKER, Comparison, compare
from reput.store.reader import StoreReader
from reput.testing import LocalBroker
from spark.in_process import InProcess
from spark.jobs_setting import flip, log_place

VERSION = pytest.mark.parametrize("version", golden.VERSIONS)


def run(left: Path, right: Path, **options: Any) -> Comparison:
    return compare(InProcess(), str(left), str(right), partition_bytes=150_000, **options)


def copies(tmp_path: Path, version: str = "4.9.7") -> tuple[Path, Path]:
    return golden.unpack(version, "clean"), golden.copy_store(version, "clean", tmp_path)


def a_message(version: str = "4.9.7", least_body: int = 20, **wanted: Any) -> dict[str, Any]:
    """A message from the middle of the log that a unit stands for."""
    found = [
        one
        for one in golden.messages(version, "clean")
        if one["storedBodyLength"] >= least_body
        and one["sysFlag"] == 0
        and all(one[name] == value for name, value in wanted.items())
    ]
    return found[len(found) // 2]


def stored(store: Path, physical_offset: int) -> record.StoredMessage:
    return StoreReader.open(str(store)).log.message_at(physical_offset)


def position_of_body(one: record.StoredMessage) -> int:
    topic = one.topic.encode()
    behind = 1 + len(topic) + 2 + len(one.property_bytes)
    return one.store_size - behind - len(one.body)


@VERSION
def test_copies_are_equal(version: str, tmp_path: Path) -> None:
    left, right = copies(tmp_path, version)
    got = run(left, right)
    assert got.findings == ()
    assert got.is_equal
    assert json.loads(json.dumps(got.as_json()))["is_equal"] is True


def test_another_store_at_the_same_path_is_read_anew(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    assert run(left, right).is_equal
    shutil.rmtree(right)
    shutil.copytree(golden.unpack("4.9.7", "expired"), right)
    assert not run(left, right).is_equal
    shutil.rmtree(right)
    shutil.copytree(left, right)
    assert run(left, right).is_equal


def test_a_flipped_byte_of_a_body(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    one = a_message()
    at = one["commitLogOffset"]
    inside = position_of_body(stored(left, at)) + 7
    path, position = log_place(right, at)
    flip(path, position + inside)
    got = run(left, right)
    assert got.counts["files"] == {"only_left": 0, "only_right": 0, "different": 1}
    assert got.counts["messages"] == {"only_left": 0, "only_right": 0, "different": 1}
    assert not any(got.counts["queues"].values())
    assert not any(got.counts["tables"].values())
    file, message = got.findings
    assert file.file == f"commitlog/{path.name}"
    assert file.field == "body[7]"
    assert file.physical_offset == at + inside
    assert f"record at {at}" in file.text
    assert (message.topic, message.queue_id) == (one["topic"], one["queueId"])
    assert message.queue_offset == one["queueOffset"]
    assert message.physical_offset == at
    assert message.field == "body"
    assert "body[7]" in message.text
    assert "right: body does not match BODYCRC" in message.text


def test_a_changed_property(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    one = next(m for m in golden.messages("4.9.7", "clean") if m["properties"].get("KEYS"))
    at = one["commitLogOffset"]
    message = stored(left, at)
    start = message.store_size - len(message.property_bytes)
    inside = start + message.property_bytes.index(b"KEYS\x01") + len(b"KEYS\x01")
    path, position = log_place(right, at)
    flip(path, position + inside, 0x01)
    got = run(left, right, sections=["messages"])
    (found,) = got.findings
    assert found.field == "properties"
    assert "property KEYS" in found.text
    assert found.left == one["properties"]["KEYS"]


def test_a_changed_store_time_can_be_ignored(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    at = a_message()["commitLogOffset"]
    path, position = log_place(right, at)
    flip(path, position + record.POSITION_BORN_HOST + 8 + 7, 0x01)
    got = run(left, right, sections=["messages"])
    assert [one.field for one in got.findings] == ["store_timestamp"]
    ignoring = run(left, right, ignore=OTHER_BROKER)
    assert ignoring.is_equal
    assert "files" not in ignoring.sections


@pytest.mark.parametrize("position", [record.POSITION_MAGIC, record.POSITION_TOTAL_SIZE + 3])
def test_a_record_that_is_none_any_more(position: int, tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    one = a_message()
    path, start = log_place(right, one["commitLogOffset"])
    flip(path, start + position)
    got = run(left, right, sections=["files", "messages"])
    assert got.counts["messages"] == {"only_left": 1, "only_right": 0, "different": 0}
    file, message = got.findings
    assert file.field == ("magic" if position == record.POSITION_MAGIC else "total_size")
    assert message.physical_offset == one["commitLogOffset"]
    assert "right: " in message.text
    turned = run(right, left, sections=["messages"])
    assert turned.counts["messages"] == {"only_left": 0, "only_right": 1, "different": 0}


def test_a_moved_queue_offset(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    one = a_message(topic="GoldenOne")
    assert one["uniqKey"]
    path, start = log_place(right, one["commitLogOffset"])
    with path.open("r+b") as file:
        file.seek(start + record.POSITION_QUEUE_OFFSET)
        file.write(struct.pack(">q", 5_000))
    got = run(left, right, sections=["messages"])
    (found,) = got.findings
    assert found.kind == "different"
    assert found.field == "queue_offset"
    assert (found.left, found.right) == (str(one["queueOffset"]), "5000")
    assert found.physical_offset == one["commitLogOffset"]


def test_a_dropped_unit_and_a_changed_one(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    path = right / "consumequeue/GoldenOne/0/00000000000000000000"
    with path.open("r+b") as file:
        file.seek(20 * 3)
        file.write(bytes(20))
    flip(path, 20 * 5 + 19, 0x01)
    got = run(left, right)
    assert got.counts["queues"] == {"only_left": 1, "only_right": 0, "different": 1}
    assert got.counts["messages"] == {"only_left": 0, "only_right": 0, "different": 0}
    file, lost, changed = got.findings
    assert "unit 3" in file.text
    assert file.field == "physical_offset"
    assert (lost.topic, lost.queue_id, lost.queue_offset) == ("GoldenOne", 0, 3)
    assert (changed.queue_offset, changed.field) == (5, "tags_code")


def test_cut_missing_and_extra_files(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    files = golden.log_files(right)
    with files[-1].open("r+b") as file:
        file.truncate(200)
    files[4].unlink()
    (right / "index" / "note.txt").write_text("foreign")
    shutil.rmtree(right / "consumequeue/GoldenFour/1")
    got = run(left, right)
    by_file = {one.file: one for one in got.findings if one.section == "files"}
    assert by_file[f"commitlog/{files[-1].name}"].field == "size"
    assert by_file[f"commitlog/{files[-1].name}"].right == "200"
    assert by_file[f"commitlog/{files[4].name}"].kind == "only_left"
    assert by_file["index/note.txt"].kind == "only_right"
    gone = [
        one
        for one in golden.messages("4.9.7", "clean")
        if log_place(left, one["commitLogOffset"])[0].name == files[4].name
        or one["commitLogOffset"] + one["storeSize"] > int(files[-1].name) + 200
    ]
    assert got.counts["messages"] == {"only_left": len(gone), "only_right": 0, "different": 0}
    units = golden.manifest("4.9.7", "clean")["queues"]
    (queue,) = [q for q in units if (q["topic"], q["queueId"]) == ("GoldenFour", 1)]
    assert got.counts["queues"]["only_left"] == len(queue["units"])


def test_changed_tables(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    offsets = right / "config/consumerOffset.json"
    reader = StoreReader.open(str(left))
    one = next(o for o in reader.consumer_offsets() if o.consumer_offset > 1)
    text = offsets.read_text()
    key = f'"{one.topic}@{one.group}":'
    head, _, rest = text.partition(key)
    entry, brace, tail = rest.partition("}")
    changed = entry.replace(f":{one.consumer_offset}", f":{one.consumer_offset - 1}", 1)
    assert changed != entry
    offsets.write_text(head + key + changed + brace + tail)
    got = run(left, right)
    assert got.counts["tables"] == {"only_left": 0, "only_right": 0, "different": 1}
    assert got.counts["files"]["different"] == 1
    found = got.findings[-1]
    assert found.section == "tables"
    assert found.topic == one.topic
    assert f"group {one.group}" in found.text


def test_findings_are_limited_and_counts_are_not(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    golden.log_files(right)[3].unlink()
    limited = run(left, right, findings_max=2, sections=["messages"])
    assert limited.counts["messages"]["only_left"] > 2
    assert len(limited.findings) == 2


def test_queues_of_a_running_broker(tmp_path: Path) -> None:
    """Its messages take Spark's tables: tests/spark/test_compare.py."""
    left, right = tmp_path / "left", tmp_path / "right"
    with LocalBroker(topics={"Orders": 1}, folder=left) as broker, broker_producer(broker) as mine:
        mine.send(Message("Orders", b"x"))
        broker.messages("Orders", at_least=1)
    shutil.copytree(left, right)
    with LocalBroker(topics={"New": 1}, folder=right) as broker, broker_producer(broker) as mine:
        running = {"nameServer": broker.namesrv_addr, "broker": "broker-a"}
        assert compare(InProcess(), str(left), running, sections=["queues"]).is_equal
        for topic in ("Orders", "New"):
            mine.send(Message(topic, b"y"))
        broker.messages("Orders", at_least=2)
        broker.messages("New", at_least=1)
        got = compare(InProcess(), str(left), running, sections=["queues"])
        assert got.right == broker.namesrv_addr
        assert got.counts == {"queues": {"only_left": 0, "only_right": 2, "different": 0}}
        assert [(one.topic, one.queue_offset, one.left, one.right) for one in got.findings] == [
            ("New", 0, "nothing", "0 to 1"),
            ("Orders", 1, "0 to 1", "0 to 2"),
        ]
        for given, text in (
            ({"broker": "another"}, "one broker, as a store is one's: broker-a"),
            ({"nameServer": ""}, "nameServer"),
            ({"topic": "Orders"}, "options of the connection only"),
        ):
            with pytest.raises(InvalidOption, match=text):
                compare(InProcess(), str(left), {**running, **given})
        with pytest.raises(InvalidOption, match="sections"):
            compare(InProcess(), str(left), running, sections=["files"])
        with pytest.raises(InvalidOption, match="match"):
            compare(InProcess(), str(left), running, match="physical")


def broker_producer(broker: LocalBroker) -> blocking.Producer:
    return blocking.Producer("p", namesrv=broker.namesrv_addr)


def test_wrong_arguments(tmp_path: Path) -> None:
    left = golden.unpack("4.9.7", "clean")
    for name, options in (
        ("sections", {"sections": ["file"]}),
        ("match", {"match": "id"}),
        ("ignore", {"ignore": ["time"]}),
    ):
        with pytest.raises(InvalidOption, match=name):
            run(left, left, **options)
