"""A dispatch that follows a live store: its result equals the store's own queues and index."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import own_thread
import seeds
from reput.errors import InvalidOption, StoreUnavailable
from reput.format import properties
from reput.spark.jobs.dispatch import run_dispatch
from reput.spark.jobs.dispatch.extract import StoreChanged
from reput.spark.jobs.dispatch.follow import Followed, follow as follow_on, run_follow
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.message_store import MessageStore
from reput.store.writing.incoming import IncomingMessage
from spark.dispatch_setting import Here, Killed, assert_same, build, small
from spark.in_process import InProcess


class Traffic:
    """Puts messages of random size and key count into a store."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self.count = 0

    def put(self, count: int) -> None:
        choose = self._random
        for _ in range(count):
            self.count += 1
            number = self.count
            keys = " ".join(f"key-{choose.randrange(30)}" for _ in range(choose.randrange(3)))
            named = {"UNIQ_KEY": f"7F00{number:028X}", "KEYS": keys, "TAGS": f"Tag{number % 3}"}
            text = properties.encode({name: value for name, value in named.items() if value})
            topic, body = f"Topic{choose.choice('ABC')}", bytes(choose.randrange(200))
            queue_id = choose.randrange(2)
            self._store.put(IncomingMessage(topic, body, queue_id, text, 1_700_000_000_000))
            self._store.step()


def follow(root: Path, target: Path | str, runner: Any = None, **more: Any) -> Followed:
    options = {"poll_seconds": 0, "until": lambda done: done.is_caught_up, "range_bytes": 3000}
    return run_follow(
        runner or Here(), str(root), str(target), config=small(root), **{**options, **more}
    )


def test_the_target_equals_the_live_store(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "target"
    stages: set[str] = set()
    session: Any = InProcess()
    with MessageStore.open(config=small(root)) as store:
        traffic = Traffic(store, seed=1)
        for _ in range(4):
            traffic.put(39)
            before = store.max_physical_offset
            traffic.put(1)
            # The last message may be half written for all that a reader can see ...
            done = follow(root, target, Here(traffic.count))
            assert (done.log_end, done.is_caught_up) == (before, True)
            # ... until a queue file points at it.
            store.queues.write_out()
            done = follow(root, target, Here(traffic.count))
            assert (done.log_end, done.records) == (store.max_physical_offset, 1)
        counts = iter([40, 0])

        def more(_: Followed) -> bool:
            count = next(counts)
            traffic.put(count)
            store.queues.write_out()
            return not count

        done = follow_on(
            session, str(root), str(target), config=small(root), poll_seconds=0, until=more,
            range_bytes=3000, progress=lambda stage, *_: stages.add(stage),
        )  # fmt: skip
        assert (done.records, done.units, done.is_caught_up) == (40, 40, True)
        assert stages == {"survey", "write"}
        store.delete_topic("TopicB")
        traffic.put(30)
        assert follow(root, target).records == 29
    assert follow(root, target).records == 1
    assert_same(target, root)
    assert sorted(path.name for path in target.iterdir()) == [
        *("consumequeue", "dispatch.json", "index", "lock"),
    ]
    assert done.as_json()["is_caught_up"]


@pytest.mark.parametrize("call", ["rename", "sync_filesystem", "sync_file", "write", "make_folder"])
@pytest.mark.sampled(3)
def test_a_killed_step_is_repeated(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log grows after each kill, so that the repeated step is not the killed one."""
    root, target = tmp_path / "store", tmp_path / "target"
    plain = getattr(Disk, call)
    choose = seeds.random("killed step", call)
    kills = 0
    with MessageStore.open(config=small(root)) as store:
        traffic = Traffic(store, seed=2)
        for round_number in range(12):
            traffic.put(choose.randrange(30))
            left = choose.randrange(12)

            def limited(self: Disk, *given: Any, **named: Any) -> Any:
                nonlocal left
                if not left:
                    raise Killed
                left -= 1
                return plain(self, *given, **named)

            with monkeypatch.context() as patch:
                own_thread.replace(patch, Disk, call, limited)
                try:
                    follow(root, target, Here(round_number, failing=0.05))
                except Killed:
                    kills += 1
    assert kills > 3
    follow(root, target)
    assert_same(target, root)


def test_batch_and_stream_write_the_same_files(tmp_path: Path) -> None:
    built = build(tmp_path / "store", 300, queue_offsets={("TopicA", 1): 30})
    target = tmp_path / "followed"
    # Steps of 32 ranges: this log needs several.
    done = follow(built.root, target, range_bytes=200)
    assert done.steps > 2
    assert done.units == done.records == 300
    assert_same(target, built.root)
    batch = tmp_path / "batch"
    run_dispatch(Here(), str(built.root), config=small(built.root), target=str(batch))
    assert_same(target, batch)
    assert sorted(path.name for path in (target / "index").iterdir()) == sorted(
        path.name for path in (batch / "index").iterdir()
    )
    # A batch over the target ends the stream: the recorded position is no longer valid.
    run_dispatch(Here(), str(built.root), config=small(built.root), target=str(target))
    with pytest.raises(InvalidOption, match="followed into before"):
        follow(built.root, target)


def test_units_of_a_killed_step_after_the_end_of_the_log_are_removed(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "target"
    with MessageStore.open(config=small(root)) as store:
        Traffic(store, seed=3).put(30)
        follow(root, target)
        kept = tmp_path / "kept"
        shutil.copytree(root, kept)
        (kept / paths.LOCK).unlink()
        state = (target / "dispatch.json").read_bytes()
        Traffic(store, seed=4).put(60)
        follow(root, target)
    # As if the step had been killed before its commit, and the machine had lost the log's end.
    (target / "dispatch.json").write_bytes(state)
    with MessageStore.open(config=small(kept)) as store:
        Traffic(store, seed=5).put(3)
        follow(kept, target)
    follow(kept, target)
    assert_same(target, kept)


def test_another_log_than_the_followed_one_is_refused(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "target"
    for seed in (6, 7):
        shutil.rmtree(root, ignore_errors=True)
        with MessageStore.open(config=small(root)) as store:
            Traffic(store, seed).put(60)
        if seed == 6:
            follow(root, target)
    with pytest.raises(StoreChanged, match="another record"):
        follow(root, target)
    shutil.rmtree(target)
    follow(root, target)
    for file in sorted((root / paths.COMMIT_LOG).iterdir()):
        file.unlink()
    later = root / paths.COMMIT_LOG / paths.offset_name(1 << 20)
    later.write_bytes(bytes(4096))
    with pytest.raises(StoreChanged, match="deleted before they were followed"):
        follow(root, target)


def test_invalid_targets_are_refused(tmp_path: Path) -> None:
    built, target = build(tmp_path / "store"), tmp_path / "target"
    refusals: tuple[tuple[str, Path | str, dict[str, Any]], ...] = (
        ("another folder than the store", built.root, {}),
        ("share; object stores", "s3://bucket/target", {}),
        ("range_bytes", target, {"range_bytes": 0}),
        ("poll_seconds", target, {"poll_seconds": -1}),
    )
    for text, where, given in refusals:
        with pytest.raises(InvalidOption, match=text):
            follow(built.root, where, **given)

    def at_once(_: Followed) -> bool:
        with pytest.raises(StoreUnavailable, match="in use"):
            follow(built.root, target)
        with pytest.raises(StoreUnavailable, match="in use"):
            run_dispatch(Here(), str(built.root), config=small(built.root), target=str(target))
        return True

    follow(built.root, target, until=at_once)
    with pytest.raises(StoreUnavailable, match="maxIndexNum"):
        run_follow(Here(), str(built.root), str(target), config=small(built.root, max_index_num=50))
    (target / "dispatch.json").write_text("{")
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        follow(built.root, target)
