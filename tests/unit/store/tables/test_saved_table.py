"""Tables on disk: a whole one at any moment, without a loss of Java's fields."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import golden
import seeds
from lossy_disk import Loss, LossyDisk
from reput.errors import CorruptRecord, WriteFailed
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.tables import config_tables
from reput.store.tables.config_tables import ConsumerOffset, TopicConfig
from reput.store.tables.filters import ConsumerFilter, ConsumerFilterTable
from reput.store.tables.groups import SubscriptionGroup, SubscriptionGroupTable
from reput.store.tables.offsets import ConsumerOffsetTable, DelayOffsetTable
from reput.store.tables.saved_file import Written
from reput.store.tables.saved_table import PREPARED_AT_ONCE, DataVersion
from reput.store.tables.topics import TopicTable

STORE = pytest.mark.parametrize(("version", "name"), golden.STORES)
TABLES = (
    TopicTable,
    SubscriptionGroupTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    ConsumerFilterTable,
)

OLD = {"offsetTable": {"1": 1}}
NEW = {"offsetTable": {"1": 2}}
PATH = paths.DELAY_OFFSETS

FILTER = ConsumerFilter(
    topic="T",
    group="g",
    expression="a > 5",
    expression_type="SQL92",
    client_version=3,
    born_ms=2,
    bloom_bits=112,
    bloom_positions=(36, 98, 22),
)


class Crash(BaseException):
    """The process is gone."""


class CrashingDisk(Disk):
    """A disk whose machine stops at the n-th operation, before or after it."""

    def __init__(self, last: int, *, is_done: bool) -> None:
        super().__init__()
        self.left = last
        self._is_done = is_done

    def _count(self, action: Callable[[], None]) -> None:
        self.left -= 1
        if self.left > 0 or self._is_done:
            action()
        if self.left <= 0:
            raise Crash

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        if self.left == 1 and not self._is_done:  # half of the data
            super().write(descriptor, path, position, memoryview(data)[: len(data) // 2])
        self._count(lambda: super(CrashingDisk, self).write(descriptor, path, position, data))

    def sync_file(self, descriptor: int, path: str) -> None:
        self._count(lambda: super(CrashingDisk, self).sync_file(descriptor, path))

    def sync_folder(self, path: str) -> None:
        self._count(lambda: super(CrashingDisk, self).sync_folder(path))

    def rename(self, source: str, target: str) -> None:
        self._count(lambda: super(CrashingDisk, self).rename(source, target))

    def unlink(self, path: str) -> None:
        self._count(lambda: super(CrashingDisk, self).unlink(path))


def file(store: Path, suffix: str = "") -> Path:
    return store / (PATH + suffix)


def read(store: Path) -> Any:
    return config_tables.load(open_folder(str(store)), PATH)


def table_of(store: Path, disk: Disk | None = None) -> DelayOffsetTable:
    return DelayOffsetTable.load(str(store), disk or Disk())


def save(store: Path, table: dict[str, Any], disk: Disk | None = None) -> None:
    """Save one of the tables below, as a broker that has just started."""
    new_table = table_of(store, disk)
    new_table.put(1, table["offsetTable"]["1"])
    new_table.save(0)


# --- D26: whole at any moment ------------------------------------------------


def test_config_files_are_written_atomically(tmp_path: Path) -> None:
    """A stop at any operation leaves the old table or the new one, and never a worse backup."""
    stops = 0
    for is_done in (False, True):
        for last in range(1, 30):
            store = tmp_path / f"{last}-{is_done}"
            store.mkdir()
            save(store, {"offsetTable": {"1": 0}})
            save(store, OLD)
            disk = CrashingDisk(last, is_done=is_done)
            try:
                save(store, NEW, disk)
            except Crash:
                stops += 1
            assert read(store) in (OLD, NEW)
            for suffix in ("", ".bak"):
                assert isinstance(json.loads(file(store, suffix).read_text()), dict)
            save(store, NEW)  # the remains of the crash block no later save
            assert read(store) == NEW
            assert {path.name for path in file(store).parent.iterdir()} == {
                "delayOffset.json",
                "delayOffset.json.bak",
            }
            if disk.left > 0:
                break
        else:
            raise AssertionError("more operations than were tried")
    assert stops >= 10


def test_a_table_is_synced_before_it_is_renamed(tmp_path: Path) -> None:
    calls: list[str] = []

    class Recorder(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            calls.append(f"sync {Path(path).name}")

        def sync_folder(self, path: str) -> None:
            calls.append(f"sync {Path(path).name}/")

        def rename(self, source: str, target: str) -> None:
            calls.append(f"rename {Path(source).name}")
            super().rename(source, target)

    save(tmp_path, OLD)
    save(tmp_path, NEW, Recorder())
    assert calls == [
        "sync delayOffset.json",  # it was loaded, and becomes the backup next
        "sync delayOffset.json.tmp",
        "rename delayOffset.json.bak.tmp",
        "rename delayOffset.json.tmp",
        "sync config/",
    ]


def test_the_old_table_is_the_backup(tmp_path: Path) -> None:
    save(tmp_path, OLD)
    assert not file(tmp_path, ".bak").exists()
    save(tmp_path, NEW)
    assert json.loads(file(tmp_path, ".bak").read_text()) == OLD


@pytest.mark.parametrize("bad", [b"", b"{", b"\xff", b"[]", b"null"])
def test_a_bad_file_never_becomes_the_backup(tmp_path: Path, bad: bytes) -> None:
    save(tmp_path, OLD)
    save(tmp_path, OLD)
    file(tmp_path).write_bytes(bad)
    save(tmp_path, NEW)
    assert read(tmp_path) == NEW
    assert json.loads(file(tmp_path, ".bak").read_text()) == OLD


def test_the_backup_is_copied_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    save(tmp_path, OLD)
    save(tmp_path, NEW)
    assert (read(tmp_path), json.loads(file(tmp_path, ".bak").read_text())) == (NEW, OLD)


def test_a_failed_save_leaves_the_table_and_stays_dirty(tmp_path: Path) -> None:
    class Full(Disk):
        def write(
            self, descriptor: int, path: str, position: int, data: bytes | memoryview
        ) -> None:
            raise WriteFailed(path, "no room")

    save(tmp_path, OLD)
    table = DelayOffsetTable.load(str(tmp_path), Full())
    table.put(1, 2)
    with pytest.raises(WriteFailed):
        table.step(1_000)
    assert table.is_dirty
    assert read(tmp_path) == OLD


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file(tmp_path, ".tmp").mkdir(parents=True)
    with pytest.raises(WriteFailed, match=r"delayOffset\.json\.tmp"):
        save(tmp_path, NEW)


# --- without waiting for the disk ---------------------------------------------


def saved(store: Path, *values: int, is_durable: bool) -> DelayOffsetTable:
    """Return a table that was saved once with each of these values, in order."""
    table = table_of(store)
    for value in values:
        table.put(1, value)
        table.save(0, is_durable=is_durable)
    return table


def value_in(store: Path, suffix: str = "") -> int:
    value: int = json.loads(file(store, suffix).read_text())["offsetTable"]["1"]
    return value


def test_a_save_without_a_sync_leaves_the_table_dirty(tmp_path: Path) -> None:
    class NoSync(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            raise WriteFailed(path, "no sync was requested")

        def sync_folder(self, path: str) -> None:
            raise WriteFailed(path, "no sync was requested")

    (tmp_path / "config").mkdir()
    table = table_of(tmp_path, NoSync())
    table.put(1, 5)
    table.save(0, is_durable=False)
    assert value_in(tmp_path) == 5
    assert table.is_dirty
    assert not table.is_saved
    with pytest.raises(WriteFailed):
        table.step(1)
    assert value_in(tmp_path) == 5


def test_only_a_durable_table_becomes_the_backup(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, is_durable=True)
    table = saved(tmp_path, 3, 4, is_durable=False)
    assert (value_in(tmp_path), value_in(tmp_path, ".bak")) == (4, 2)
    table.put(1, 5)
    table.save(0)
    assert (value_in(tmp_path), value_in(tmp_path, ".bak")) == (5, 2)
    assert table.is_saved
    table.put(1, 6)
    table.save(0)
    assert (value_in(tmp_path), value_in(tmp_path, ".bak")) == (6, 5)


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b'{\n\t"offsetTable":{\n'])
def test_the_last_durable_table_survives_a_power_loss(tmp_path: Path, left: bytes) -> None:
    saved(tmp_path, 1, 2, is_durable=True)
    saved(tmp_path, 3, 4, is_durable=False)
    file(tmp_path).write_bytes(left)  # possible after a lost write
    assert table_of(tmp_path).get(1) == 2


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.sampled(4)
def test_a_backup_is_durable_before_an_unsynced_table_replaces_the_old_one(
    tmp_path: Path, loss: Loss
) -> None:
    for seed in range(30):
        root = tmp_path / str(seed)
        (root / "config").mkdir(parents=True)
        disk = LossyDisk(root)
        table = table_of(root, disk)
        table.put(1, 2)
        table.save(0)  # the first save: there is no backup
        table.put(1, 4)
        table.save(0, is_durable=False)
        disk.lose_power(seeds.random("saved table", seed), loss)
        assert table_of(root).get(1) in (2, 4)


def test_an_older_snapshot_never_replaces_a_newer_one(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.put(1, 1)
    early = table.take(0)
    table.put(1, 2)
    table.save(0)
    table.write(early, 0)
    assert value_in(tmp_path) == 2


def test_a_table_that_is_saved_while_another_thread_waits_for_the_disk_stays(
    tmp_path: Path,
) -> None:
    class Slow(Disk):
        meanwhile: Callable[[], None] | None = None

        def sync_file(self, descriptor: int, path: str) -> None:
            action, self.meanwhile = self.meanwhile, None
            if action is not None:
                action()
            super().sync_file(descriptor, path)

    def change() -> None:
        table.put(1, 2)
        table.save(0, is_durable=False)

    disk = Slow()
    table = table_of(tmp_path, disk)
    table.put(1, 1)
    draft = table.take(0)
    disk.meanwhile = change
    table.write(draft, 0)
    assert value_in(tmp_path) == 2
    assert not table.is_saved
    assert table.step(0)
    assert table.is_saved
    assert value_in(tmp_path) == 2


class HookedDisk(Disk):
    """A disk that calls a hook at each sync of a file, and at the next sync of a folder."""

    def __init__(self) -> None:
        super().__init__()
        self.at_sync_of_file: Callable[[], None] = lambda: None
        self.at_sync_of_folder: Callable[[], None] | None = None
        self.synced: list[int] = []
        """Inodes of the synced files."""

    def sync_file(self, descriptor: int, path: str) -> None:
        self.synced.append(os.fstat(descriptor).st_ino)
        self.at_sync_of_file()
        super().sync_file(descriptor, path)

    def sync_folder(self, path: str) -> None:
        action, self.at_sync_of_folder = self.at_sync_of_folder, None
        if action is not None:
            action()
        super().sync_folder(path)


def test_writes_without_a_sync_do_not_starve_a_durable_write(
    tmp_path: Path,
) -> None:
    """Writes without a sync overtake a durable write during each of its syncs."""
    disk = HookedDisk()
    table = table_of(tmp_path, disk)
    table.put(1, 1)
    draft = table.take(0)

    def overtake() -> None:
        disk.at_sync_of_file = lambda: None
        table.put(1, 2)
        table.save(0, is_durable=False)

    disk.at_sync_of_file = overtake
    assert table.write(draft, 0) is Written.DURABLE
    assert value_in(tmp_path) == 2
    assert file(tmp_path).stat().st_ino == disk.synced[-1]
    table.put(1, 3)
    table.save(0, is_durable=False)
    assert value_in(tmp_path, ".bak") == 2, "a power loss may damage what was not waited for"
    assert table.write(draft, 0) is Written.DURABLE
    assert file(tmp_path).stat().st_ino == disk.synced[-1]
    assert value_in(tmp_path) == 3


def test_a_write_overtaken_by_a_failed_one_is_not_reported_durable(
    tmp_path: Path,
) -> None:
    class Failing(HookedDisk):
        is_full = False

        def write(self, descriptor: int, path: str, position: int, data: Any) -> None:
            if self.is_full:
                raise WriteFailed(path, "full")
            super().write(descriptor, path, position, data)

    disk = Failing()
    table = table_of(tmp_path, disk)
    table.put(1, 1)
    table.save(0)
    table.put(1, 2)
    draft = table.take(0)

    def overtake() -> None:
        disk.at_sync_of_file, disk.is_full = lambda: None, True
        with pytest.raises(WriteFailed):
            table.save(0, is_durable=False)
        disk.is_full = False

    disk.at_sync_of_file = overtake
    assert table.write(draft, 0) is Written.OVERTAKEN
    assert value_in(tmp_path) == 1
    assert not table.is_saved
    assert table.write(table.take(0), 0) is Written.DURABLE
    assert value_in(tmp_path) == 2
    assert table.is_saved


def test_two_durable_writes_do_not_overtake_each_other(tmp_path: Path) -> None:
    disk = HookedDisk()
    table = table_of(tmp_path, disk)
    table.put(1, 1)
    first = table.take(0)
    table.put(1, 2)
    second = table.take(0)
    written: list[Written] = []
    other = threading.Thread(target=lambda: written.append(table.write(second, 0)))

    def write_the_second() -> None:
        disk.at_sync_of_file = lambda: None
        other.start()
        other.join(0.2)  # it may be done, or wait for the first

    disk.at_sync_of_file = write_the_second
    written.append(table.write(first, 0))
    other.join(30)
    assert written == [Written.DURABLE] * 2
    assert value_in(tmp_path) == 2
    assert table.is_saved


def test_a_table_stays_saved_when_an_earlier_write_ends_after_a_later_one(tmp_path: Path) -> None:
    disk = HookedDisk()
    table = table_of(tmp_path, disk)
    table.put(1, 1)
    first = table.take(0)
    table.put(1, 2)
    second = table.take(0)
    other = threading.Thread(target=table.write, args=(second, 0))

    def write_the_second() -> None:
        other.start()
        other.join(0.2)  # it may be done, or wait for the first

    disk.at_sync_of_folder = write_the_second
    table.write(first, 0)
    other.join(30)
    assert value_in(tmp_path) == 2
    assert table.is_saved


def test_changes_after_a_snapshot_are_in_the_next_write(tmp_path: Path) -> None:
    table = ConsumerOffsetTable.load(str(tmp_path), Disk())
    table.put("T", "g", 0, 1)
    draft = table.take(0)
    table.put("T", "g", 0, 2)
    table.write(draft, 0)
    assert not table.is_saved
    assert ConsumerOffsetTable.load(str(tmp_path), Disk()).get("T", "g", 0) == 1
    table.step(0)
    assert table.is_saved
    assert ConsumerOffsetTable.load(str(tmp_path), Disk()).get("T", "g", 0) == 2


# --- the text ----------------------------------------------------------------


def as_json(table: object) -> str:
    return json.dumps(table, indent="\t", sort_keys=True, separators=(",", ":"))


def test_the_text_is_that_of_json_after_every_change(tmp_path: Path) -> None:
    """Each change encodes the text of one entry only."""
    chance = seeds.random("table texts")
    topics = TopicTable.load(str(tmp_path), Disk())
    offsets = ConsumerOffsetTable.load(str(tmp_path), Disk())
    model: dict[str, dict[str, int]] = {}
    for _ in range(60):
        topic, queue_id = f"t{chance.randrange(9)}", chance.randrange(12)
        if chance.random() < 0.3:
            topics.delete(topic, 7)
            offsets.delete(topic=topic)
            model.pop(f"{topic}@g", None)
        else:
            size = chance.randrange(1, 9)
            kind = (("message.type", "FIFO"),) if size == 8 else ()
            topics.put(TopicConfig(topic, size, size, 6, attributes=kind), 7)
            offsets.put(topic, "g", queue_id, size)
            model.setdefault(f"{topic}@g", {})[str(queue_id)] = size
        topics.save(7, is_durable=False)
        offsets.save(7, is_durable=False)
        text = (tmp_path / paths.TOPICS).read_text("ascii")
        assert text == as_json(json.loads(text))
        assert json.loads(text)["topicConfigTable"].keys() == topics.all().keys()
        text = (tmp_path / paths.CONSUMER_OFFSETS).read_text("ascii")
        assert text == as_json({"offsetTable": model})
    assert TopicTable.load(str(tmp_path), Disk()).all() == topics.all()


def test_texts_may_be_prepared_while_the_table_changes(tmp_path: Path) -> None:
    table = ConsumerOffsetTable.load(str(tmp_path), Disk())
    count = 2 * PREPARED_AT_ONCE + 1
    for number in range(count):
        table.put(f"t{number:04d}", "g", 0, 1)
    pauses = 0
    for _ in table.prepare():
        table.put(f"t{pauses:04d}", "g", 0, 2)
        table.delete(topic=f"t{count - 1 - pauses:04d}")
        pauses += 1
    assert pauses == 2
    table.save(0)
    again = ConsumerOffsetTable.load(str(tmp_path), Disk())
    assert list(again.all()) == [
        ConsumerOffset(f"t{number:04d}", "g", 0, 2 if number < pauses else 1)
        for number in range(count - pauses)
    ]


def test_the_text_is_plain_json_in_ascii(tmp_path: Path) -> None:
    table = ConsumerOffsetTable.load(str(tmp_path), Disk())
    table.put("日本", "g", 10, 1)
    table.put("日本", "g", 2, 7)
    table.save(0)
    text = (tmp_path / paths.CONSUMER_OFFSETS).read_text("ascii")
    assert text == (
        '{\n\t"offsetTable":{\n\t\t"\\u65e5\\u672c@g":{\n\t\t\t"10":1,\n\t\t\t"2":7\n\t\t}\n\t}\n}'
    )


# --- Java's tables, loaded and saved -----------------------------------------


@STORE
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.sampled(8)
def test_saving_a_brokers_table_keeps_everything(
    kind: type[TopicTable], version: str, name: str, tmp_path: Path
) -> None:
    store = golden.copy_store(version, name, tmp_path)
    before = config_tables.load(open_folder(str(store)), kind.path)
    table = kind.load(str(store), Disk())
    table.save(1)
    after = config_tables.load(open_folder(str(store)), kind.path)
    assert after == (before or after)
    assert kind.load(str(store), Disk()).version == table.version


@STORE
def test_the_tables_have_the_values_of_java(version: str, name: str) -> None:
    root, manifest = str(golden.unpack(version, name)), golden.manifest(version, name)
    topics = TopicTable.load(root, Disk())
    assert {config.name: config.perm for config in topics.all().values()} == {
        topic: value["perm"] for topic, value in manifest["topics"].items()
    }
    groups = SubscriptionGroupTable.load(root, Disk())
    assert {config.name: config.retry_max for config in groups.all().values()} == {
        group: value["retryMaxTimes"] for group, value in manifest["subscriptionGroups"].items()
    }
    offsets = ConsumerOffsetTable.load(root, Disk())
    for key, queues in (manifest["consumerOffsets"] or {}).items():
        topic, group = key.split("@", 1)
        assert offsets.of(topic, group) == {int(config): value for config, value in queues.items()}
    delays = DelayOffsetTable.load(root, Disk())
    expected = {int(level): value for level, value in (manifest["delayOffsets"] or {}).items()}
    assert delays.all() == expected


def test_filters_of_a_broker() -> None:
    table = ConsumerFilterTable.load(str(golden.unpack("4.9.7", "ext")), Disk())
    entry = table.get("GoldenFour-ext", "CG_Sql0")
    assert entry is not None
    assert (entry.expression, entry.expression_type) == ("n > 20", "SQL92")
    assert (entry.bloom_bits, entry.bloom_positions) == (112, (4, 110, 30))
    assert entry.is_dead
    assert sorted(table.of("GoldenFour-ext")) == ["CG_Sql0", "CG_Sql2"]
    assert len(list(table.all())) == 6


def test_unknown_members_are_kept(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    stored = {
        "dataVersion": {"counter": 7, "stateVersion": 3, "timestamp": 5},
        "later": {"x": [1]},
        "topicConfigTable": {"T": {"topicName": "T", "perm": 6, "mood": "good"}},
    }
    (tmp_path / paths.TOPICS).write_text(json.dumps(stored))
    table = TopicTable.load(str(tmp_path), Disk())
    table.put(TopicConfig("T", 4, 4, 2), now_ms=900)
    table.save(1_000)
    document = json.loads((tmp_path / paths.TOPICS).read_text())
    assert document["dataVersion"] == {"counter": 8, "stateVersion": 3, "timestamp": 900}
    assert document["later"] == {"x": [1]}
    assert document["topicConfigTable"]["T"]["mood"] == "good"
    assert document["topicConfigTable"]["T"]["perm"] == 2
    assert "attributes" not in document["topicConfigTable"]["T"]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("text", ["[]", '{"%s":[1]}', '{"%s":{"x":7}}', '{"dataVersion":1}'])
def test_a_table_of_another_type_is_an_error(
    kind: type[TopicTable], text: str, tmp_path: Path
) -> None:
    (tmp_path / "config").mkdir()
    text = text.replace("%s", kind.entries_member)
    (tmp_path / kind.path).write_text(text)
    if kind.is_progress:  # a loss of this table only causes repeated delivery
        table = kind.load(str(tmp_path), Disk())
        assert (tmp_path / f"{kind.path}.damaged").read_text() == text
        assert f"{kind.path}.damaged" in table.damage
        assert not (tmp_path / kind.path).exists()
        return
    with pytest.raises(CorruptRecord):
        kind.load(str(tmp_path), Disk())


# --- the verbs ---------------------------------------------------------------


def test_topics(tmp_path: Path) -> None:
    table = TopicTable.load(str(tmp_path), Disk())
    topic = TopicConfig("T", 8, 4, 6, attributes=(("message.type", "FIFO"),))
    table.put(topic, 100)
    assert table.version == DataVersion(1, 100)
    table.put(topic, 200)
    assert table.version == DataVersion(1, 100), "nothing has changed"
    assert table.get("T") == topic
    table.save(300)
    again = TopicTable.load(str(tmp_path), Disk())
    assert again.all() == {"T": topic}
    assert again.version == DataVersion(1, 100)
    assert again.delete("T", 400)
    assert not again.delete("T", 500)
    assert again.get("T") is None
    assert again.version == DataVersion(2, 400)


def test_groups(tmp_path: Path) -> None:
    table = SubscriptionGroupTable.load(str(tmp_path), Disk())
    group = SubscriptionGroup(name="g", retry_max=3, consume_enable=False)
    table.put(group, 100)
    table.save(100)
    again = SubscriptionGroupTable.load(str(tmp_path), Disk())
    assert again.get("g") == group
    assert again.delete("g", 200)
    assert not again.delete("g", 200)
    assert again.all() == {}


def test_consumer_offsets(tmp_path: Path) -> None:
    table = ConsumerOffsetTable.load(str(tmp_path), Disk())
    assert table.get("T", "g", 0) is None
    table.put("T", "g", 0, 5)
    table.put("T", "g", 0, 3)
    table.put("T", "h", 1, 9)
    table.put("U", "g", 0, 1)
    table.save(0)
    again = ConsumerOffsetTable.load(str(tmp_path), Disk())
    assert again.get("T", "g", 0) == 3
    assert again.of("T", "h") == {1: 9}
    assert ConsumerOffset("U", "g", 0, 1) in list(again.all())
    assert again.delete(topic="T", group="g")
    assert again.delete(group="g")
    assert not again.delete(topic="U")
    assert [entry.group for entry in again.all()] == ["h"]


def test_offsets_have_a_version_only_where_the_file_has_one(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / PATH).write_text('{"dataVersion":{"counter":1,"timestamp":2},"offsetTable":{1:2}}')
    table = DelayOffsetTable.load(str(tmp_path), Disk())
    table.save(50)
    assert table.version == DataVersion(1, 2), "nothing has changed"
    table.put(1, 3)
    table.save(60)
    assert DelayOffsetTable.load(str(tmp_path), Disk()).version == DataVersion(2, 60)


def test_filters(tmp_path: Path) -> None:
    table = ConsumerFilterTable.load(str(tmp_path), Disk())
    table.put(FILTER)
    assert not FILTER.is_dead
    table.save(0)
    again = ConsumerFilterTable.load(str(tmp_path), Disk())
    assert again.get("T", "g") == FILTER
    assert again.delete("T", "g")
    assert not again.delete("T", "g")
    assert list(again.all()) == []


def test_step_saves_when_it_is_due(tmp_path: Path) -> None:
    table = DelayOffsetTable.load(str(tmp_path), Disk(), interval_ms=1_000)
    assert not table.step(10_000), "nothing to save"
    table.put(1, 1)
    assert table.step(10_000)
    table.put(1, 2)
    assert not table.step(10_999)
    assert table.step(11_000)
    assert read(tmp_path) == {"offsetTable": {"1": 2}}
    table.put(1, 3)
    assert table.step(5_000), "the clock was set back"


def test_many_names_are_sorted_in_parts_despite_changes(tmp_path: Path) -> None:
    table = TopicTable.load(str(tmp_path), Disk())
    names = [f"topic-{number * 7919 % 30_011:05d}" for number in range(30_000)]
    for name in names:
        table.put(TopicConfig(name, 1, 1, 6), 0)
    steps = 0
    for steps, _ in enumerate(table.prepare(), 1):
        if steps == 170:  # among the names
            table.put(TopicConfig("topic-00000-new", 1, 1, 6), 0)
            table.delete(names[3], 0)
    assert steps > 170
    table.save(0)
    names_in_file = list(
        json.loads((tmp_path / "config/topics.json").read_text())["topicConfigTable"]
    )
    assert names_in_file == sorted({*names, "topic-00000-new"} - {names[3]})
