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


def write_at(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@VERSION
@pytest.mark.sampled(3)
def test_copies_are_equal(version: str, tmp_path: Path) -> None:
    """Without the backups of tables; a store at the same path is read again."""
    left, right = copies(tmp_path, version)
    (right / "config" / "topics.json.bak").write_text("{}")
    (right / "config" / "subscriptionGroup.json.bak").unlink(missing_ok=True)
    got = run(left, right)
    assert got.findings == ()
    assert got.is_equal
    assert json.loads(json.dumps(got.as_json()))["is_equal"] is True
    golden.log_files(right)[3].unlink()
    limited = run(left, right, findings_max=2, sections=["messages"])
    assert not limited.is_equal
    assert limited.counts["messages"]["only_left"] > 2
    assert len(limited.findings) == 2
    for name, value in (("sections", ["file"]), ("match", "id"), ("ignore", ["time"])):
        with pytest.raises(InvalidOption, match=name):
            run(left, right, **{name: value})


def test_changed_records(tmp_path: Path) -> None:
    """A byte of a body, a property, a time, a queue offset, and two damaged heads."""
    left, right = copies(tmp_path)
    reader = StoreReader.open(str(left))
    messages = [
        (message, reader.log.message_at(message["commitLogOffset"]))
        for message in golden.messages("4.9.7", "clean")
        if message["topic"] == "GoldenOne"
        and (message["storedBodyLength"] >= 20, message["sysFlag"]) == (True, 0)
        and message["uniqKey"]
    ]
    body, keyed, time, offset, magic, size = (stored for _, stored in messages[5:35:5])
    tail = 1 + len(body.topic) + 2 + len(body.property_bytes)
    start_of_body = body.store_size - tail - len(body.body)
    key = keyed.property_bytes.index(b"UNIQ_KEY\x01") + len(b"UNIQ_KEY\x01")
    start_of_properties = keyed.store_size - len(keyed.property_bytes)
    for message, inside, mask in (
        (body, start_of_body + 7, 0x10),
        (keyed, start_of_properties + key, 0x01),
        (time, record.POSITION_BORN_HOST + 8 + 7, 0x01),
        (magic, record.POSITION_MAGIC, 0x10),
        (size, record.POSITION_TOTAL_SIZE + 3, 0x10),
    ):
        path, position = log_place(right, message.physical_offset)
        flip(path, position + inside, mask)
    path, position = log_place(right, offset.physical_offset)
    write_at(path, position + record.POSITION_QUEUE_OFFSET, struct.pack(">q", 5_000))

    got = run(left, right)
    assert got.counts["messages"] == {"only_left": 2, "only_right": 0, "different": 4}
    assert not any((*got.counts["queues"].values(), *got.counts["tables"].values()))
    found_at = {f.physical_offset: f for f in got.findings if f.section == "messages"}
    finding = found_at[body.physical_offset]
    place = finding.topic, finding.queue_id, finding.queue_offset
    assert place == (body.topic, body.queue_id, body.queue_offset)
    assert finding.field == "body"
    assert "body[7]" in finding.text
    assert "right: body does not match BODYCRC" in finding.text
    finding = found_at[keyed.physical_offset]
    assert (finding.field, finding.left) == ("properties", keyed.unique_key)
    assert "property UNIQ_KEY" in finding.text
    assert found_at[time.physical_offset].field == "store_timestamp"
    finding = found_at[offset.physical_offset]
    values = finding.kind, finding.field, finding.left, finding.right
    assert values == ("different", "queue_offset", str(offset.queue_offset), "5000")
    for damaged in (magic, size):
        assert found_at[damaged.physical_offset].kind == "only_left"
        assert "right: " in found_at[damaged.physical_offset].text
    assert run(right, left, sections=["messages"]).counts["messages"] == {
        **{"only_left": 0, "only_right": 2, "different": 4}
    }
    files = [finding for finding in got.findings if finding.section == "files"]
    assert {finding.file for finding in files} == {
        f"commitlog/{log_place(right, message.physical_offset)[0].name}"
        for message in (body, keyed, time, offset, magic, size)
    }
    assert files[0].field == "body[7]"
    assert files[0].physical_offset == body.physical_offset + start_of_body + 7
    assert f"record at {body.physical_offset}" in files[0].text
    ignoring = run(left, right, ignore=OTHER_BROKER)
    assert ignoring.counts["messages"] == {"only_left": 2, "only_right": 0, "different": 3}
    assert "files" not in ignoring.sections


def test_a_dropped_unit_and_a_changed_one(tmp_path: Path) -> None:
    left, right = copies(tmp_path)
    path = right / "consumequeue/GoldenOne/0/00000000000000000000"
    write_at(path, 20 * 3, bytes(20))
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
