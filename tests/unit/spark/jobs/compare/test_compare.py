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
    """Return a message with a unit from the middle of the log."""
    candidates = [
        message
        for message in golden.messages(version, "clean")
        if message["storedBodyLength"] >= least_body
        and message["sysFlag"] == 0
        and all(message[name] == value for name, value in wanted.items())
    ]
    return candidates[len(candidates) // 2]


def stored(store: Path, physical_offset: int) -> record.StoredMessage:
    return StoreReader.open(str(store)).log.message_at(physical_offset)


def position_of_body(message: record.StoredMessage) -> int:
    topic = message.topic.encode()
    tail_bytes = 1 + len(topic) + 2 + len(message.property_bytes)
    return message.store_size - tail_bytes - len(message.body)


@VERSION
def test_copies_are_equal(version: str, tmp_path: Path) -> None:
    left, right = copies(tmp_path, version)
    got = run(left, right)
    assert got.findings == ()
    assert got.is_equal
    assert json.loads(json.dumps(got.as_json()))["is_equal"] is True


def test_backups_of_tables_are_not_compared(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    (right / "config" / "topics.json.bak").write_text("{}")
    (right / "config" / "subscriptionGroup.json.bak").unlink(missing_ok=True)
    assert run(left, right).is_equal


def test_another_store_at_the_same_path_is_read_again(tmp_path: Path) -> None:
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
    expected = a_message()
    physical_offset = expected["commitLogOffset"]
    inside = position_of_body(stored(left, physical_offset)) + 7
    path, position = log_place(right, physical_offset)
    flip(path, position + inside)
    got = run(left, right)
    assert got.counts["files"] == {"only_left": 0, "only_right": 0, "different": 1}
    assert got.counts["messages"] == {"only_left": 0, "only_right": 0, "different": 1}
    assert not any(got.counts["queues"].values())
    assert not any(got.counts["tables"].values())
    file, message = got.findings
    assert file.file == f"commitlog/{path.name}"
    assert file.field == "body[7]"
    assert file.physical_offset == physical_offset + inside
    assert f"record at {physical_offset}" in file.text
    assert (message.topic, message.queue_id) == (expected["topic"], expected["queueId"])
    assert message.queue_offset == expected["queueOffset"]
    assert message.physical_offset == physical_offset
    assert message.field == "body"
    assert "body[7]" in message.text
    assert "right: body does not match BODYCRC" in message.text


def test_a_changed_property(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    expected = next(m for m in golden.messages("4.9.7", "clean") if m["properties"].get("KEYS"))
    physical_offset = expected["commitLogOffset"]
    message = stored(left, physical_offset)
    start = message.store_size - len(message.property_bytes)
    inside = start + message.property_bytes.index(b"KEYS\x01") + len(b"KEYS\x01")
    path, position = log_place(right, physical_offset)
    flip(path, position + inside, 0x01)
    got = run(left, right, sections=["messages"])
    (finding,) = got.findings
    assert finding.field == "properties"
    assert "property KEYS" in finding.text
    assert finding.left == expected["properties"]["KEYS"]


def test_a_changed_store_time_can_be_ignored(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    physical_offset = a_message()["commitLogOffset"]
    path, position = log_place(right, physical_offset)
    flip(path, position + record.POSITION_BORN_HOST + 8 + 7, 0x01)
    got = run(left, right, sections=["messages"])
    assert [finding.field for finding in got.findings] == ["store_timestamp"]
    ignoring = run(left, right, ignore=OTHER_BROKER)
    assert ignoring.is_equal
    assert "files" not in ignoring.sections


@pytest.mark.parametrize("position", [record.POSITION_MAGIC, record.POSITION_TOTAL_SIZE + 3])
def test_a_record_with_a_damaged_head(position: int, tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    expected = a_message()
    path, start = log_place(right, expected["commitLogOffset"])
    flip(path, start + position)
    got = run(left, right, sections=["files", "messages"])
    assert got.counts["messages"] == {"only_left": 1, "only_right": 0, "different": 0}
    file, message = got.findings
    assert file.field == ("magic" if position == record.POSITION_MAGIC else "total_size")
    assert message.physical_offset == expected["commitLogOffset"]
    assert "right: " in message.text
    turned = run(right, left, sections=["messages"])
    assert turned.counts["messages"] == {"only_left": 0, "only_right": 1, "different": 0}


def test_a_moved_queue_offset(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    expected = a_message(topic="GoldenOne")
    assert expected["uniqKey"]
    path, start = log_place(right, expected["commitLogOffset"])
    with path.open("r+b") as file:
        file.seek(start + record.POSITION_QUEUE_OFFSET)
        file.write(struct.pack(">q", 5_000))
    got = run(left, right, sections=["messages"])
    (finding,) = got.findings
    assert finding.kind == "different"
    assert finding.field == "queue_offset"
    assert (finding.left, finding.right) == (str(expected["queueOffset"]), "5000")
    assert finding.physical_offset == expected["commitLogOffset"]


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
    by_file = {finding.file: finding for finding in got.findings if finding.section == "files"}
    assert by_file[f"commitlog/{files[-1].name}"].field == "size"
    assert by_file[f"commitlog/{files[-1].name}"].right == "200"
    assert by_file[f"commitlog/{files[4].name}"].kind == "only_left"
    assert by_file["index/note.txt"].kind == "only_right"
    gone = [
        message
        for message in golden.messages("4.9.7", "clean")
        if log_place(left, message["commitLogOffset"])[0].name == files[4].name
        or message["commitLogOffset"] + message["storeSize"] > int(files[-1].name) + 200
    ]
    assert got.counts["messages"] == {"only_left": len(gone), "only_right": 0, "different": 0}
    units = golden.manifest("4.9.7", "clean")["queues"]
    (queue,) = [q for q in units if (q["topic"], q["queueId"]) == ("GoldenFour", 1)]
    assert got.counts["queues"]["only_left"] == len(queue["units"])


def test_changed_tables(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    offsets = right / "config/consumerOffset.json"
    reader = StoreReader.open(str(left))
    expected = next(o for o in reader.consumer_offsets() if o.consumer_offset > 1)
    text = offsets.read_text()
    key = f'"{expected.topic}@{expected.group}":'
    head, _, rest = text.partition(key)
    entry, brace, tail = rest.partition("}")
    changed = entry.replace(f":{expected.consumer_offset}", f":{expected.consumer_offset - 1}", 1)
    assert changed != entry
    offsets.write_text(head + key + changed + brace + tail)
    got = run(left, right)
    assert got.counts["tables"] == {"only_left": 0, "only_right": 0, "different": 1}
    assert got.counts["files"]["different"] == 1
    finding = got.findings[-1]
    assert finding.section == "tables"
    assert finding.topic == expected.topic
    assert f"group {expected.group}" in finding.text


def test_a_missing_setting_of_a_group_is_the_default(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    path = right / "config/subscriptionGroup.json"
    table = json.loads(path.read_text())
    first, *others = table["subscriptionGroupTable"].values()
    for group in others:
        group |= {"consumeTimeoutMinute": 15, "attributes": {}, "groupSysFlag": 0}
    first["consumeTimeoutMinute"] = 16
    path.write_text(json.dumps(table))
    got = run(left, right)
    assert got.counts["tables"] == {"only_left": 0, "only_right": 0, "different": 1}
    assert got.findings[-1].field == first["groupName"]


def test_findings_are_limited_but_not_counts(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    golden.log_files(right)[3].unlink()
    limited = run(left, right, findings_max=2, sections=["messages"])
    assert limited.counts["messages"]["only_left"] > 2
    assert len(limited.findings) == 2


def test_queues_of_a_running_broker(tmp_path: Path) -> None:
    """The messages of a broker need Spark's tables: tests/spark/test_compare.py."""
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
        assert [
            (finding.topic, finding.queue_offset, finding.left, finding.right)
            for finding in got.findings
        ] == [
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


def test_a_namespace_limits_both_sides_to_its_topics(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    topics = {"t%Orders": 1, "Orders": 1, "%RETRY%t%g": 1}
    with LocalBroker(topics=topics, folder=left) as broker, broker_producer(broker) as mine:
        mine.send(Message("t%Orders", b"x"))
        broker.messages("t%Orders", at_least=1)
    shutil.copytree(left, right)
    with LocalBroker(folder=right) as broker, broker_producer(broker) as mine:
        running = {"nameServer": broker.namesrv_addr, "Namespace": "t"}
        mine.send(Message("Orders", b"of nobody"))
        broker.messages("Orders", at_least=1)
        assert compare(InProcess(), str(left), running, sections=["queues"]).is_equal
        for topic in ("t%Orders", "%RETRY%t%g"):
            mine.send(Message(topic, b"y"))
        broker.messages("t%Orders", at_least=2)
        broker.messages("%RETRY%t%g", at_least=1)
        got = compare(InProcess(), str(left), running, sections=["queues"])
        assert [(finding.topic, finding.left, finding.right) for finding in got.findings] == [
            ("%RETRY%t%g", "nothing", "0 to 1"),
            ("t%Orders", "0 to 1", "0 to 2"),
        ]


def broker_producer(broker: LocalBroker) -> blocking.Producer:
    return blocking.Producer("p", namesrv=broker.namesrv_addr)


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    left = golden.unpack("4.9.7", "clean")
    for name, options in (
        ("sections", {"sections": ["file"]}),
        ("match", {"match": "id"}),
        ("ignore", {"ignore": ["time"]}),
    ):
        with pytest.raises(InvalidOption, match=name):
            run(left, left, **options)
