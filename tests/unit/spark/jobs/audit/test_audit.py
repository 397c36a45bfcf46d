"""The audit of golden stores, with tasks in this process, against manifests. Spark: tests/spark."""

import json
import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import golden
import store_builder
from reput.errors import InvalidOption, StoreUnavailable
from reput.format import names, sys_flag as flags
from reput.spark.jobs.audit import message_table, run_audit
from reput.spark.jobs.audit.verdicts import (
    AuditResult,
    Fault,
    GroupAudit,
    Indexed,
    MessageVerdict,
    Stage,
)
from reput.spark.jobs.running import Done, SequentialRunner, Task
from reput.store.files.folder_lock import FolderLock

LATER_MS = 2_000_000_000_000
RANGE_BYTES = 50_000


SOUND = golden.STORES if golden.IS_SOAK else golden.EACH_STORE
STORES = pytest.mark.parametrize(("version", "name"), SOUND)
TORN = pytest.mark.parametrize(("version", "variant"), golden.EACH_DAMAGE)


class Backwards(SequentialRunner):
    """Runs tasks in this process in reverse: their order must not matter."""

    def __call__(
        self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
    ) -> list[Done]:
        return super().__call__(stage, function, tasks[::-1])[::-1]


def audited(store: Path, **options: Any) -> AuditResult:
    return run_audit(
        Backwards(), str(store), **{"now_ms": LATER_MS, "range_bytes": RANGE_BYTES, **options}
    )


def rows_of(table: Path) -> list[dict[str, Any]]:
    rows = pq.read_table(table / message_table.MESSAGES).to_pylist()
    return sorted(rows, key=lambda row: (row["physical_offset"], row["queue_offset"]))


# --- sound stores -------------------------------------------------------------------------------


@STORES
def test_stores_of_java_have_no_lost_messages(version: str, name: str) -> None:
    manifest = golden.manifest(version, name)
    result = audited(golden.unpack(version, name))
    assert result.is_clean
    assert result.lost_count == 0
    assert result.hole_count == 0
    assert result.messages == manifest["log"]["records"]
    assert set(result.verdicts) <= {MessageVerdict.DISPATCHED, MessageVerdict.UNDISPATCHED}
    waiting = manifest.get("recordsNotInQueues", [])
    assert result.verdicts.get(MessageVerdict.UNDISPATCHED, 0) == (
        waiting if isinstance(waiting, int) else len(waiting)
    )


@pytest.mark.parametrize("version", golden.VERSIONS)
@pytest.mark.sampled(3)
def test_every_message_has_a_row_with_the_values_of_java(version: str, tmp_path: Path) -> None:
    """Also the lag of groups: offsets and ends of queues are values that Java's classes read."""
    result = audited(golden.unpack(version, "clean"), table=str(tmp_path / "table"))
    expected, manifest = golden.messages(version, "clean"), golden.manifest(version, "clean")
    rows = rows_of(tmp_path / "table")
    plain = {
        "physical_offset": "commitLogOffset",
        "topic": "topic",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "size": "storeSize",
        "body_crc": "bodyCRC",
        "uniq_key": "uniqKey",
        "attempts": "reconsumeTimes",
        "sys_flag": "sysFlag",
    }
    for row, message in zip(rows, expected, strict=True):
        for name, java in plain.items():
            assert row[name] == message[java], name
        known = golden.known_properties(version, message["properties"])
        assert row["origin_message_id"] == known.get("ORIGIN_MESSAGE_ID")
        assert row["real_topic"] == known.get("REAL_TOPIC")
        assert (row["verdict"], row["reason"]) == (MessageVerdict.DISPATCHED, None)
    assert sum(audit.messages for audit in result.topics) == len(expected)
    sizes: Counter[str] = Counter()
    for message in expected:
        sizes[message["topic"]] += message["storeSize"]
    assert {audit.topic: audit.bytes for audit in result.topics} == sizes
    check_groups(result, rows, expected, manifest)


def check_groups(
    result: AuditResult,
    rows: list[dict[str, Any]],
    messages: list[dict[str, Any]],
    manifest: dict[str, Any],
) -> None:
    expected = {}
    for key, offsets in manifest["consumerOffsets"].items():
        topic, group = key.split("@", 1)
        of_topic = [message for message in messages if message["topic"] == topic]
        left = [
            message
            for message in of_topic
            if message["queueOffset"] >= offsets.get(str(message["queueId"]), 0)
        ]
        expected[group, topic] = GroupAudit(
            group,
            topic,
            lag=sum(
                queue["maxOffset"] - offsets.get(str(queue["queueId"]), 0)
                for queue in manifest["queues"]
                if queue["topic"] == topic
            ),
            consumed=len(of_topic) - len(left),
            pending=len(left),
            pending_bytes=sum(message["storeSize"] for message in left),
            oldest_pending_ms=min((message["storeTimestamp"] for message in left), default=None),
        )
    assert {(audit.group, audit.topic): audit for audit in result.groups} == expected
    for row in rows:
        groups = {group for group, topic in expected if topic == row["topic"]}
        pending = {
            group
            for group in groups
            for offsets in [manifest["consumerOffsets"][f"{row['topic']}@{group}"]]
            if row["queue_offset"] >= offsets.get(str(row["queue_id"]), 0)
        }
        assert set(row["groups_pending"] or ()) == pending
        assert set(row["groups_consumed"] or ()) == groups - pending


@pytest.mark.parametrize("version", golden.VERSIONS)
@pytest.mark.sampled(3)
def test_delayed_messages_have_the_stage_of_their_level(version: str) -> None:
    manifest = golden.manifest(version, "clean")
    delayed = [
        message
        for message in golden.messages(version, "clean")
        if message["topic"] == names.SCHEDULE_TOPIC
    ]
    done = {int(level): queue_offset for level, queue_offset in manifest["delayOffsets"].items()}
    units = {
        (queue["queueId"], queue_offset): unit
        for queue in manifest["queues"]
        if queue["topic"] == names.SCHEDULE_TOPIC
        for queue_offset, unit in enumerate(queue["units"])
    }
    left = [m for m in delayed if m["queueOffset"] >= done.get(m["queueId"] + 1, 0)]
    due = sorted(units[message["queueId"], message["queueOffset"]][2] for message in left)
    assert due  # or nothing would be tested
    for now_ms in (LATER_MS, due[0] - 1, due[0]):
        delays = audited(golden.unpack(version, "clean"), now_ms=now_ms).delays
        due_count = sum(due_ms <= now_ms for due_ms in due)
        totals = [
            sum(getattr(level, name) for level in delays)
            for name in ("due", "waiting", "delivered", "backlog_bytes")
        ]
        sizes = sum(message["storeSize"] for message in left)
        assert totals == [due_count, len(due) - due_count, len(delayed) - len(due), sizes]
        counts = {level.level: level.delivered + level.due + level.waiting for level in delays}
        assert counts == Counter(message["queueId"] + 1 for message in delayed)


def test_the_time_of_a_delayed_message_is_read_from_its_extension_unit(tmp_path: Path) -> None:
    store = golden.copy_store("4.9.7", "ext", tmp_path)
    for path in (store / "config").glob("delayOffset.json*"):
        path.unlink()  # or all messages would be delivered
    times = [message["storeTimestamp"] for message in golden.messages("4.9.7", "ext")]
    (level,) = audited(store, now_ms=LATER_MS).delays
    assert level.due > 0
    assert level.oldest_due_ms is not None
    assert min(times) <= level.oldest_due_ms < max(times) + 60_000
    (level,) = audited(store, now_ms=min(times)).delays
    assert (level.due, level.waiting > 0) == (0, True)


# --- damaged stores ------------------------------------------------------------------------------


def zeroed(text: str) -> set[tuple[str, int, int]]:
    """Return topic, queue id and queue offset of the units that a manifest reports as zeroed."""
    listed = json.loads(text[text.index("[[") : text.rindex("]]") + 2])
    return {
        (topic, queue_id, number)
        for topic, queue_id, first, end in listed
        for number in range(first, end)
    }


def beyond(text: str) -> int:
    """Return the number of units that a manifest reports after the end of the log."""
    listed = json.loads(text[text.rindex("[[") : text.rindex("]]") + 2])
    return sum(count for _, _, count in listed)


@TORN
@pytest.mark.sampled(6)
def test_torn_stores_have_the_losses_of_their_damage(
    version: str, variant: str, tmp_path: Path
) -> None:
    """The expected result follows from the description of the damage."""
    text = golden.torn_variants(version)[variant]["damage"]
    messages = golden.messages(version, "clean")
    by_offset = {message["commitLogOffset"]: message for message in messages}
    table = tmp_path / "table"
    result = audited(golden.unpack(version, f"torn/{variant}"), table=str(table), sample=1000)
    rows = rows_of(table)
    gone = {row["physical_offset"] for row in rows if row["verdict"] == MessageVerdict.DAMAGED}
    lost = {
        (row["topic"], row["queue_id"], row["queue_offset"])
        for row in rows
        if row["verdict"] in (MessageVerdict.LOST, MessageVerdict.UNDISPATCHED)
    }
    is_clean = False
    if hurt := re.search(r"record at (\d+)|record, at (\d+), is zeros", text):
        assert gone == {int(hurt[1] or hurt[2])}
    elif variant == "log-short":
        assert gone == {max(by_offset)}
    elif variant == "log-missing":
        start = int(re.findall(r"Log file (\d+)", text)[0])
        size = int(golden.manifest(version, "clean")["config"]["mappedFileSizeCommitLog"])
        there = [place for place in by_offset if start <= place < start + size]
        assert gone == set(there)
        (hole,) = result.holes
        assert (hole.physical_offset, hole.length, hole.lost_count) == (start, size, len(there))
        before = max(place for place in by_offset if place < start)
        after = min(place for place in by_offset if place >= start + size)
        times = [by_offset[place]["storeTimestamp"] for place in (before, after)]
        assert [hole.before_ms, hole.after_ms] == times
    elif variant == "cq-ahead":
        assert len(gone) == beyond(text)
    elif variant.startswith("cq-zeroed"):
        assert lost == zeroed(text)
    elif variant.startswith("no-cq"):
        assert len(lost) == len(messages)
    elif variant in ("cq-short", "log-empty-file"):
        assert result.faults[Fault.FILE_SIZE] == 1
    else:
        is_clean = True
    assert result.is_clean is is_clean
    waiting = result.verdicts.get(MessageVerdict.UNDISPATCHED, 0) if "abort" in variant else 0
    assert result.lost_count == len(gone) + len(lost) - waiting
    if not variant.startswith(("cq-", "no-")):
        assert lost == set()
    if "no-index" in variant:
        assert result.indexed.get(Indexed.INDEXED, 0) == 0
        assert result.indexed[Indexed.UNCOVERED] > 0


@pytest.mark.parametrize("variant", ["torn-tail", "cq-ahead"])
def test_records_cut_off_by_a_recovery_are_damaged_if_a_unit_remains(
    variant: str, tmp_path: Path
) -> None:
    """Java ends queues at the end of the log, and leaves the bytes of later units."""
    variant_facts = golden.torn_variants("4.9.7")[variant]
    table = tmp_path / "table"
    result = audited(golden.unpack("4.9.7", f"torn/{variant}-recovered"), table=str(table))
    gone = {
        row["physical_offset"] for row in rows_of(table) if row["verdict"] == MessageVerdict.DAMAGED
    }
    assert result.messages == variant_facts["recordsAfter"]
    assert gone <= set(variant_facts["recordsLost"])
    assert len(gone) == (beyond(variant_facts["damage"]) if variant == "cq-ahead" else 1)


def test_tasks_that_run_twice_write_the_same_bytes(tmp_path: Path) -> None:
    class Twice(Backwards):
        def __call__(
            self, stage: str, function: Callable[[Task], Done], tasks: Sequence[Task]
        ) -> list[Done]:
            super().__call__(stage, function, tasks)
            files = {path: path.read_bytes() for path in (tmp_path / "table").rglob("*.parquet")}
            done = super().__call__(stage, function, tasks)
            assert {path: path.read_bytes() for path in files} == files
            return done

    store = golden.unpack("4.9.7", "torn/log-missing")
    table = str(tmp_path / "table")
    options: dict[str, Any] = {"now_ms": LATER_MS, "table": table}
    result = run_audit(Twice(), str(store), range_bytes=RANGE_BYTES, **options)
    assert result == audited(store, table=table)
    assert result == audited(store, table=table, range_bytes=1 << 30)


# --- tables, groups, arguments -------------------------------------------------------------------


def built(root: Path, count: int = 20, **options: Any) -> store_builder.Built:
    return store_builder.build(root, store_builder.messages(count), **options)


def test_a_table_replaces_an_earlier_table_and_no_other_files(tmp_path: Path) -> None:
    stores = [built(tmp_path / str(count), count).root for count in (40, 5)]
    for store in stores:
        audited(store, table=str(tmp_path / "table"))
    assert len(rows_of(tmp_path / "table")) == 5
    assert not list((tmp_path / "table").glob(".*"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(InvalidOption, match=r"thesis\.txt"):
        audited(stores[0], table=str(mine))
    assert (mine / "thesis.txt").read_text() == "all of it"
    for name, value in (("range_bytes", 0), ("range_bytes", 1 << 32), ("sample", -1)):
        with pytest.raises(InvalidOption, match=name):
            audited(stores[0], **{name: value})
    with pytest.raises(StoreUnavailable, match="is no store"):
        audited(tmp_path)
    lock = FolderLock(str(stores[0]))
    try:
        # This process holds the lock, which the system does not report to itself.
        assert audited(stores[0], allow_live=True).lost_count == 0
    finally:
        lock.release()


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    store = built(tmp_path / "store")
    for name in ("topics", "consumerOffset", "delayOffset", "subscriptionGroup"):
        table = store.root / "config" / f"{name}.json"
        good = table.read_text() if table.exists() else None
        table.write_text("{nonsense")
        result = audited(store.root)
        assert (result.is_clean, result.lost_count) == (False, 0)
        (finding,) = result.findings
        assert (finding.fault, finding.where) == (Fault.TABLE, f"config/{name}.json")
        table.unlink() if good is None else table.write_text(good)
    store.index_file(0).write_bytes(b"short")
    store.log_file(0).write_bytes(b"\0" * store.log_file_bytes)
    result = audited(store.root)
    assert result.faults[Fault.INDEX_FILE] == 1
    plain = json.loads(json.dumps(result.as_json()))
    assert plain["lost_count"] == result.lost_count > 0
    assert plain["is_clean"] is result.is_clean is False
    assert plain["verdicts"] == result.verdicts
    assert [hole["lost_count"] for hole in plain["holes"]] == [
        hole.lost_count for hole in result.holes
    ]
    assert {topic["topic"]: topic["verdicts"] for topic in plain["topics"]} == {
        topic.topic: topic.verdicts for topic in result.topics
    }


def offsets(store: Path, table: dict[str, dict[int, int]]) -> None:
    text = json.dumps({"offsetTable": table})
    (store / "config" / "consumerOffset.json").write_text(text)


def test_impossible_offsets_are_findings(tmp_path: Path) -> None:
    store = built(tmp_path / "store", 20)
    end = len(store.queue("TopicA", 0))
    offsets(
        store.root, {"TopicA@ahead": {0: end + 3}, "Gone@stale": {0: 7}, "TopicA@fine": {0: end}}
    )
    result = audited(store.root)
    assert result.faults == {Fault.GROUP_AHEAD: 1, Fault.GROUP_WITHOUT_QUEUE: 1}
    assert [(f.fault, f.where) for f in result.findings] == [
        (Fault.GROUP_AHEAD, "ahead"),
        (Fault.GROUP_WITHOUT_QUEUE, "stale"),
    ]
    assert not result.is_clean


def test_messages_that_expired_unread_are_a_note(tmp_path: Path) -> None:
    store = built(tmp_path / "store", physical_offset=40960, queue_offsets={("TopicA", 0): 50})
    offsets(store.root, {"TopicA@slow": {0: 44}})
    result = audited(store.root)
    (slow,) = result.groups
    count = len(store.queue("TopicA", 0)) + len(store.queue("TopicA", 1))
    assert (slow.expired, slow.pending, slow.consumed) == (6, count, 0)
    assert result.faults == {Fault.GROUP_EXPIRED: 6}
    assert result.is_clean


def test_messages_of_a_deleted_topic_are_not_lost(tmp_path: Path) -> None:
    store = built(tmp_path / "store")
    topics = store.root / "config" / "topics.json"
    table = json.loads(topics.read_text())
    del table["topicConfigTable"]["TopicB"]
    topics.write_text(json.dumps(table))
    shutil.rmtree(store.root / "consumequeue" / "TopicB")
    result = audited(store.root)
    of_b = [message for message in store.messages if message.topic == "TopicB"]
    assert result.verdicts[MessageVerdict.DELETED] == len(of_b)
    assert result.is_clean


def test_prepared_and_rolled_back_messages_have_no_queue(tmp_path: Path) -> None:
    sent = [
        store_builder.message("TopicA"),
        store_builder.message("TopicA", sys_flag=flags.TRANSACTION_PREPARED),
        store_builder.message("TopicA", sys_flag=flags.TRANSACTION_ROLLBACK),
    ]
    result = audited(store_builder.build(tmp_path / "store", sent).root)
    assert result.verdicts == {MessageVerdict.DISPATCHED: 1, MessageVerdict.UNQUEUED: 2}
    assert result.is_clean


def test_stages_follow_from_topics_and_op_messages_name_half_messages(tmp_path: Path) -> None:
    sent = [
        store_builder.message(names.HALF_TOPIC),
        store_builder.message(names.OP_HALF_TOPIC, b"0", tags="d"),
        store_builder.message(names.OP_HALF_TOPIC, b"3,4", tags="d"),
        store_builder.message(names.retry_topic("G"), reconsume_times=2),
        store_builder.message(names.dlq_topic("G")),
    ]
    table = tmp_path / "table"
    result = audited(store_builder.build(tmp_path / "store", sent).root, table=str(table))
    assert result.stages == {
        Stage.UNDECIDED: 1,
        Stage.OPERATION: 2,
        Stage.RETRY: 1,
        Stage.DEAD: 1,
    }
    rows = rows_of(table)
    assert [row["ends"] for row in rows] == [None, [0], [3, 4], None, None]
    assert [row["attempts"] for row in rows] == [0, 0, 0, 2, 0]


def test_a_gap_without_a_hole_is_lost_messages(tmp_path: Path) -> None:
    """As if a log file had been inserted whose records begin later."""
    store = built(tmp_path / "store", 8)
    placed = store.queue("TopicA", 0)
    assert len(placed) == 2
    log = store.log_file(0)
    data = bytearray(log.read_bytes())
    struct.pack_into(">q", data, placed[1].physical_offset + 20, 5)  # its queue offset
    log.write_bytes(data)
    result = audited(store.root)
    assert result.faults[Fault.GAP] == 4
    assert result.lost_count == 4 + 1  # and the message whose unit is not at its place
