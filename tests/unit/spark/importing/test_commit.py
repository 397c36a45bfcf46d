"""Stores created and extended by imports: complete, in order, and old or new after any kill."""

import datetime
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import golden
import own_thread
from reput.errors import InvalidOption, StoreUnavailable, WriteFailed
from reput.format import message as record
from reput.format.message import Verdict
from reput.spark.importing import commit as import_commit, sink as store_sink
from reput.spark.importing.commit import DRAFTS_SUFFIX
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.log import bulk_append
from reput.store.message_store import MessageStore
from reput.store.reader import StoreReader
from reput.store.verify import verify
from reput.store.verify.findings import FindingKind
from reput.store.writing.incoming import IncomingMessage
from spark import importing
from spark.importing import SIZES, Stream, batch, write

FILE_BYTES = int(SIZES["mappedFileSizeCommitLog"])


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncs, which are slow: no test here is about power loss."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(Disk, "sync_filesystem", lambda *_: None)


def some(count: int, mark: str, topic: str = "T", size: int = 500) -> Any:
    """Return a batch of messages with their number in body and key."""
    made = batch(
        [
            {
                "topic": topic,
                "body": f"{mark}-{n}".encode().ljust(size, b"."),
                "queue_id": n % 3,
                "keys": [f"{mark}{n}"],
                "tags": mark,
            }
            for n in range(max(count, 1))
        ]
    )
    return made.slice(0, count)


def named(bodies: list[bytes]) -> list[str]:
    return [body.rstrip(b".").decode() for body in bodies]


def marks(mark: str, count: int) -> list[str]:
    return [f"{mark}-{n}" for n in range(count)]


def bodies(store: Path) -> list[str]:
    return named([message.body for message in StoreReader.open(str(store)).messages()])


def copy(store: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(store, target)


def read_like_java(store: Path) -> list[str]:
    """Return the bodies of the log as a broker of Java reads it after a clean stop.

    The broker looks for the end of the log in the last three files, and trusts all earlier ones.
    """
    files = golden.log_files(store)
    _, end = walked(files[-3:])
    bodies, hole = walked(files)
    assert hole == end, f"a hole at {hole}, and the log ends at {end}"
    return named(bodies)


def walked(files: list[Path]) -> tuple[list[bytes], int]:
    """Return the bodies of log files up to the first invalid record, and its physical offset."""
    bodies: list[bytes] = []
    end = 0
    for path in files:
        data, position, end = path.read_bytes(), 0, int(path.name)
        while True:
            verdict, size = record.classify(data, position, int(path.name) + position)
            if verdict is Verdict.BLANK:
                break
            if verdict is not Verdict.MESSAGE:
                return bodies, end
            bodies.append(record.decode(data, position).body)
            position += size
            end = int(path.name) + position
    return bodies, end


def check(store: Path, expected: list[str]) -> None:
    """Check that a store is complete and has these messages, in log order."""
    reader = StoreReader.open(str(store))
    messages = list(reader.messages())
    assert named([message.body for message in messages]) == expected
    assert {finding.kind for finding in verify(reader).findings} <= (
        set() if messages else {FindingKind.LOG_EMPTY}
    )
    by_queue: dict[tuple[str, int], int] = {}
    for message in messages:
        key = message.topic, message.queue_id
        assert message.queue_offset == by_queue.get(key, 0)
        by_queue[key] = message.queue_offset + 1
        assert reader.message_in_queue(*key, message.queue_offset) == message
    assert [message.store_timestamp for message in messages] == sorted(
        message.store_timestamp for message in messages
    )


def is_clean(store: Path) -> bool:
    """Return True if no draft is left beside the store."""
    return not Path(f"{store}{DRAFTS_SUFFIX}").exists()


# A new store -----------------------------------------------------------------------------------


def test_a_new_store_holds_all_rows_in_the_order_of_partitions(tmp_path: Path) -> None:
    store = tmp_path / "there" / "store"
    conf = tmp_path / "broker.conf"
    conf.write_text("enabledAppendPropCRC=true\nbrokerName=broker-a\n")
    write(store, [[some(100, "a"), some(50, "b")], [some(0, "x")], [some(150, "c")]], config=conf)
    check(store, [*marks("a", 100), *marks("b", 50), *marks("c", 150)])
    assert read_like_java(store) == [*marks("a", 100), *marks("b", 50), *marks("c", 150)]
    assert len(golden.log_files(store)) == 3
    assert is_clean(store)
    reader = StoreReader.open(str(store))
    assert reader.topics()["T"].write_queue_count == reader.topics()["T"].read_queue_count == 8
    (hit,) = reader.messages_by_key("T", "b49").messages
    assert named([hit.body]) == ["b-49"]
    message = [*reader.messages()][7]
    data = bytearray(reader.log.record_bytes(message.physical_offset))
    assert b"__CRC32#" in data
    data[record.POSITION_QUEUE_ID + 3] ^= 1  # no other checksum covers the queue id
    verdict, _ = record.classify(bytes(data), 0, message.physical_offset)
    assert verdict is Verdict.BAD_RECORD_CRC


@pytest.mark.parametrize(
    ("version", "keeps_times"), [("4.9.7", True), ("4.5.2", False), ("5.5.0", False)]
)
@pytest.mark.sampled(3)
def test_messages_of_java_are_unchanged_by_a_round_trip(
    version: str, keeps_times: bool, tmp_path: Path
) -> None:
    table = importing.pa.Table.from_batches(importing.read(golden.unpack(version, "clean")))
    # One message has a property that no producer may send: it contains a separator.
    pairs = [dict(row["properties"]) for row in table.to_pylist()]
    keep = [not any("\x01" in value for value in properties.values()) for properties in pairs]
    assert keep.count(False) == 1
    kept = table.filter(importing.pa.array(keep)).combine_chunks().to_batches(max_chunksize=200)
    sizes = {"mappedFileSizeCommitLog": 256 * 1024, "maxMessageSize": 128 * 1024}
    times = {"keepStoreTimestamps": True} if keeps_times else {}
    target = tmp_path / "copy"
    write(target, [kept[:2], kept[2:]], ignoreReadColumns=True, **sizes, **times)

    def fields(row: dict[str, Any]) -> tuple[Any, ...]:
        properties = dict(row["properties"])
        keys = properties.pop("KEYS", "").split()  # spaces around keys are lost
        if properties.get("DELAY") == "0":
            del properties["DELAY"]  # a delay of 0 is lost
        columns = "topic", "queue_id", "body", "tags", "keys", "flag", "born_timestamp"
        stored = row["store_timestamp"] if keeps_times else None
        return (keys, properties, stored, *(row[name] for name in columns))

    expected = [fields(row) for row in importing.pa.Table.from_batches(kept).to_pylist()]
    assert [fields(row) for row in importing.rows(target)] == expected
    assert verify(StoreReader.open(str(target))).findings == ()


def test_kept_store_times_never_decrease(tmp_path: Path) -> None:
    def batch_at(*seconds: int) -> Any:
        times = [datetime.datetime.fromtimestamp(second, datetime.UTC) for second in seconds]
        return batch([{"topic": "T", "body": b"", "store_timestamp": time} for time in times])

    store = tmp_path / "store"
    options = {"keepStoreTimestamps": True, "ignoreReadColumns": True}
    write(store, [[batch_at(5, 3, 9)], [batch_at(4, 10)]], **options)
    write(store, [[batch_at(1, 12)]], **options)
    times = [message.store_timestamp // 1000 for message in StoreReader.open(str(store)).messages()]
    assert times == [5, 5, 9, 9, 10, 10, 12]


# An existing store -----------------------------------------------------------------------------


def test_an_import_appends_to_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, [[some(0, "x")]])  # a store without messages
    check(store, [])
    write(store, [[some(40, "a")]])
    write(store, [[some(50, "b")], [some(10, "c", topic="Other")]])
    write(store, [[some(400, "d")]])
    expected = [*marks("a", 40), *marks("b", 50), *marks("c", 10), *marks("d", 400)]
    check(store, expected)
    assert read_like_java(store) == expected
    assert bulk_append.read(open_folder(str(store))).begun is None
    with MessageStore.open(str(store), import_options_of(store).store) as broker:
        assert broker.put(IncomingMessage("Other", b"put", 1)).queue_offset == 3
    write(store, [[some(3, "e")]])
    check(store, [*expected, "put", *marks("e", 3)])


def test_an_import_ends_a_file_without_room(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, [[some(1, "a", size=12_000)] * 5])  # five of them leave 5 kB
    write(store, [[some(3, "b", size=6_000)]])
    check(store, ["a-0"] * 5 + marks("b", 3))
    first, second = golden.log_files(store)
    assert (first.name, second.name) == (f"{0:020d}", f"{FILE_BYTES:020d}")


def import_options_of(store: Path) -> Any:
    return importing.import_options.parse(importing.texts(store))


def test_rows_without_queue_are_spread_over_the_queues_of_their_topic(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, [[some(3, "a")]], queues=3)
    write(store, [[some(12, "b").drop_columns(["queue_id"])]], queues=16)
    queues = {message.queue_id for message in StoreReader.open(str(store)).messages()}
    assert queues == {0, 1, 2}
    with pytest.raises(InvalidOption, match="queues of topic T, which are 0 to 2; give it more"):
        write(store, [[batch([{"topic": "T", "body": b"", "queue_id": 3}])]])
    check(store, [*marks("a", 3), *marks("b", 12)])


def test_overwrite_replaces_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, [[some(40, "a")]])
    twice = 2 * FILE_BYTES
    write(store, [[some(5, "b", "New")]], overwrite=True, mappedFileSizeCommitLog=twice)
    check(store, marks("b", 5))
    assert [path.stat().st_size for path in golden.log_files(store)] == [twice]
    assert list(StoreReader.open(str(store)).topics()) == ["New"]
    assert is_clean(store)


def test_other_folders_and_stores_in_use_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, [[some(5, "a")]])
    with MessageStore.open(str(store), import_options_of(store).store):
        for overwrite in (False, True):
            with pytest.raises(StoreUnavailable, match="in use"):
                write(store, [[some(5, "b")]], overwrite=overwrite)
    with pytest.raises(InvalidOption, match="131072; allowed: 65536, as the log files of"):
        write(store, [[some(5, "b")]], mappedFileSizeCommitLog=FILE_BYTES * 2)
    check(store, marks("a", 5))
    assert is_clean(store)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidOption, match="a store, or a folder that is new or empty"):
        write(tmp_path / "mine", [[some(5, "a")]], overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
    schema = importing.from_arrow_schema(some(1, "a").schema)
    with pytest.raises(InvalidOption, match="append or update"):
        store_sink.StoreStreamWriter(import_options_of(store), schema, overwrite=True)


def test_abandoned_drafts_are_deleted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    dead, alive = (Path(f"{store}{DRAFTS_SUFFIX}", name) for name in ("dead", "alive"))
    for draft in (dead, alive):
        draft.mkdir(parents=True)
        (draft / "x.records").touch()
    for path in (dead / "x.records", dead):
        os.utime(path, (0, 0))
    write(store, [[some(1, "a")]])
    assert (dead.exists(), alive.exists()) == (False, True)


# Kills at any call ----------------------------------------------------------------------------


class Killed(BaseException):
    """Raised where the process would end."""


class DyingDisk(Disk):
    """A disk of a process that dies in its n-th call, after half of the work."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def _may_die(self) -> bool:
        self.left -= 1
        return self.left < 0

    def write(self, descriptor: int, path: str, position: int, data: bytes | memoryview) -> None:
        if self._may_die():
            # Eight bytes are written together; other writes may be cut anywhere.
            half = 0 if len(data) <= 8 else len(data) // 2
            super().write(descriptor, path, position, memoryview(data)[:half])
            raise Killed
        super().write(descriptor, path, position, data)


def _dying(name: str) -> Callable[..., Any]:
    plain = getattr(Disk, name)

    def call(self: DyingDisk, *args: Any, **kwargs: Any) -> Any:
        if self._may_die():
            raise Killed
        return plain(self, *args, **kwargs)

    return call


for _name in ("sync_file", "sync_folder", "sync_filesystem", "create", "rename", "unlink"):
    setattr(DyingDisk, _name, _dying(_name))


def killed(
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[], None],
    after: Callable[[bool], None],
    stride: int,
) -> int:
    """Run until a run ends without a kill, each time killed later; return the calls of that run."""
    real = import_commit.Commit

    for calls in range(0, 10_000, stride):
        disk = DyingDisk(calls)

        def dying(*args: Any, disk: Disk = disk) -> import_commit.Commit:
            return real(*args, disk=disk)

        monkeypatch.setattr(store_sink, "Commit", dying)
        monkeypatch.setattr(import_commit.os, "sched_getaffinity", lambda _: {0})
        try:
            run()
        except Killed:
            monkeypatch.setattr(store_sink, "Commit", real)
            after(False)
            continue
        monkeypatch.setattr(store_sink, "Commit", real)
        after(True)
        return calls
    raise AssertionError("it never ends")


def steps(count: int) -> pytest.MarkDecorator:
    """Test some of the calls by default and all in the soak: each costs a store and its checks."""
    every = pytest.param(1, marks=pytest.mark.soak, id="every call")
    return pytest.mark.parametrize("stride", [pytest.param(count, id="some calls"), every])


@steps(15)
def test_a_killed_import_leaves_no_store_or_a_complete_one(
    monkeypatch: pytest.MonkeyPatch, stride: int, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    seen = set()

    def after(is_through: bool) -> None:
        seen.add(store.exists())
        if store.exists():
            check(store, marks("a", 130))
            shutil.rmtree(store)
        assert store.exists() is False or is_through

    kills = killed(monkeypatch, lambda: write(store, [[some(130, "a")]]), after, stride)
    assert kills > 20
    assert seen == {False, True}


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(10, marks=pytest.mark.soak, id="within a file"),
        pytest.param(100, marks=pytest.mark.soak, id="over two files"),
        pytest.param(300, id="over files"),
    ],
)
@steps(13)
def test_a_killed_append_leaves_all_or_none_of_the_new_messages(
    count: int, monkeypatch: pytest.MonkeyPatch, stride: int, tmp_path: Path
) -> None:
    base, store = tmp_path / "base", tmp_path / "store"
    write(base, [[some(80, "a")]])
    old, new = marks("a", 80), [*marks("a", 80), *marks("b", count)]
    outcomes = []

    def run() -> None:
        copy(base, store)
        write(store, [[some(count, "b")]])

    def after(is_through: bool) -> None:
        # Check the store as it was left, for us and for Java; opened by a broker; then extended.
        seen = bodies(store)
        assert seen in (old, new)
        assert read_like_java(store) == seen
        # A broker of Java that was started and killed leaves this file only.
        by_others = tmp_path / "by-others"
        copy(store, by_others)
        (by_others / paths.ABORT).touch()
        for folder in (by_others, store):
            MessageStore.open(str(folder), import_options_of(folder).store).close()
            check(folder, seen)
        write(store, [[some(3, "c")]])
        check(store, [*seen, *marks("c", 3)])
        outcomes.append(seen == new)
        assert not is_through or outcomes[-1]

    assert killed(monkeypatch, run, after, stride) > 20
    # First the old messages, then the new ones, and never back: one call decides.
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


@pytest.mark.parametrize("count", [10, 100, 300], ids=["in a file", "over two", "over many"])
@pytest.mark.sampled(3)
def test_bytes_written_before_the_last_step_are_not_in_the_log(
    count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    write(store, [[some(80, "a")]])
    plain, end = Disk.write, StoreReader.open(str(store)).end_offset

    def die(*_: object) -> None:
        raise Killed

    def dying_write(
        self: Disk, descriptor: int, path: str, position: int, data: bytes | memoryview
    ) -> None:
        if (position, len(data)) == (end, record.BLANK.size) and any(data):
            raise Killed
        plain(self, descriptor, path, position, data)

    with monkeypatch.context() as patch:
        own_thread.replace(patch, Disk, "write", dying_write)
        patch.setattr(import_commit.Commit, "_exchange", die)
        with pytest.raises(Killed):
            write(store, [[some(count, "b")]])
    assert read_like_java(store) == bodies(store) == marks("a", 80)
    write(store, [[some(count, "b")]])
    check(store, [*marks("a", 80), *marks("b", count)])
    assert read_like_java(store) == [*marks("a", 80), *marks("b", count)]


# Streams ---------------------------------------------------------------------------------------


def test_each_batch_of_a_stream_is_appended_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    stream = Stream(monkeypatch, store)
    for batch_id, mark in enumerate("abc"):
        for _ in range(2):  # as after a restart before the commit was recorded
            stream.write(batch_id, [[some(40, mark)], [some(2, mark)]])
    expected = [name for mark in "abc" for name in [*marks(mark, 40), *marks(mark, 2)]]
    check(store, expected)
    # Another query numbers its own batches, and a batch without rows is ignored.
    other = Stream(monkeypatch, store, "q2")
    other.write(0, [[some(3, "d")]])
    other.write(1, [[some(0, "e")]])
    check(store, [*expected, *marks("d", 3)])
    assert bulk_append.read(open_folder(str(store))).batches["q1"] == 2
    assert is_clean(store)


@steps(30)
def test_a_killed_stream_appends_each_batch_once(
    monkeypatch: pytest.MonkeyPatch, stride: int, tmp_path: Path
) -> None:
    """A message of a broker that comes before the repeated batch is not mistaken for it."""
    base, store = tmp_path / "base", tmp_path / "store"
    Stream(monkeypatch, base).write(0, [[some(80, "a")]])
    stream = Stream(monkeypatch, store)
    done = []

    def run() -> None:
        copy(base, store)
        stream.write(1, [[some(60, "b")]])

    def after(is_through: bool) -> None:
        done.append(len(bodies(store)))
        copy(store, tmp_path / "other")
        for folder, of_broker in ((tmp_path / "other", []), (store, ["p"])):
            for body in of_broker:
                with MessageStore.open(str(folder), import_options_of(folder).store) as broker:
                    # Of the same size, so that the head of the log is the same as well.
                    broker.put(IncomingMessage("T", body.encode().ljust(500, b"."), 0))
            repeated = Stream(monkeypatch, folder)
            repeated.write(1, [[some(60, "b")]])
            repeated.write(2, [[some(3, "c")]])
            new = [*of_broker, *marks("b", 60)] if done[-1] == 80 else [*marks("b", 60), *of_broker]
            check(folder, [*marks("a", 80), *new, *marks("c", 3)])

    assert killed(monkeypatch, run, after, stride) > 20
    assert set(done) == {80, 140}


def test_an_undecidable_batch_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = tmp_path / "store"
    stream = Stream(monkeypatch, store)
    stream.write(0, [[some(200, "a")]])
    path = store / paths.BULK_APPENDS
    state = json.loads(path.read_text())
    begun = {"log_end": 9, "first_offset": 9, "checksum": 1, "stream": "q1", "batch_id": 1}
    path.write_text(json.dumps({**state, "begun": begun}))
    golden.log_files(store)[0].unlink()  # as if it had expired
    (store / paths.QUEUE_SUMMARY).unlink()
    with pytest.raises(StoreUnavailable, match="batch 1 of stream q1 is in it"):
        stream.write(1, [[some(1, "b")]])
    path.write_text("{")
    with pytest.raises(Exception, match=r"appends.json"):
        stream.write(1, [[some(1, "b")]])


def test_a_failing_disk_leaves_the_store_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    write(store, [[some(20, "a")]])

    def fail(self: Disk, *_: object) -> None:
        raise WriteFailed("x", "no")

    with monkeypatch.context() as patch:
        own_thread.replace(patch, Disk, "sync_file", fail)
        with pytest.raises(WriteFailed):
            write(store, [[some(20, "b")]])
    check(store, marks("a", 20))
