"""RocketMQ's own store opens our stores: no message is missing or extra, and no error is logged."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from interop import same_puts
from interop.java_store import Config, JavaStore, Put
from interop.same_puts import StoreModel, assert_java_has, assert_ours_has, everything, settings_of
from reput.clock import ManualClock, SystemClock
from reput.format import message as record
from reput.store.files import paths
from reput.store.message_store import MessageStore
from store_fixture import assert_sound

pytestmark = pytest.mark.interop

HOUR_MS = 3_600_000


def extras(version: str) -> tuple[Config, Config]:
    """Return settings for our store only, and for both: Java must verify each record's checksum."""
    if version != "5.5.0":
        return {}, {}
    return {"indexTags": True}, {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}


def put_all(
    store: MessageStore, puts: Iterable[Put], clock: ManualClock, model: StoreModel
) -> None:
    for number, put in enumerate(puts):
        clock.advance(0 if number % 4 == 3 else 7)
        model.add(put, same_puts.put(store, put))


def an_hour_ago() -> ManualClock:
    return ManualClock(SystemClock().now_ms() - HOUR_MS)


# --- complete stores --------------------------------------------------------


@pytest.mark.sampled(14)
@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "abandoned"])
def test_java_finds_every_message(java_store: JavaStore, is_clean: bool, tmp_path: Path) -> None:
    version = java_store.version
    of_ours, of_both = extras(version)
    settings = {**settings_of(version), **of_both}
    clock, model = an_hour_ago(), StoreModel()
    store = same_puts.open_ours(tmp_path, {**settings, **of_ours}, clock)
    put_all(store, everything(version), clock, model)
    assert_ours_has(model, store)
    ends = (store.min_physical_offset, store.max_physical_offset)
    if is_clean:
        store.close()
    else:
        store.abandon()
    assert (tmp_path / paths.ABORT).exists() == (not is_clean)
    assert len(list((tmp_path / paths.COMMIT_LOG).iterdir())) > 1
    assert len(list((tmp_path / paths.INDEX).iterdir())) > 1

    view = same_puts.open_with_java(java_store, tmp_path, settings, model)
    assert_java_has(model, view, has_tags=version == "5.5.0")
    assert (view.min_physical_offset, view.max_physical_offset) == ends
    for asked, answer in view.times.items():
        if version == "5.5.0":
            assert (answer.lower, answer.upper) == model.by_time(asked), asked
        elif is_exact_in_4(model, asked[:2], asked[2]):
            assert (answer.queue_offset,) * 2 == model.by_time(asked), asked


def is_exact_in_4(model: StoreModel, queue: tuple[str, int], time: int) -> bool:
    """Return whether 4.x's rule gives the exact message for a time.

    The rule is the nearest message in the file that was last written then. It is exact if the queue
    is one file and just one message has that time.
    """
    times = [message.store_timestamp for message in model.queues[queue].values()]
    return len(times) <= 50 and times.count(time) == 1


# --- queues that do not begin at 0 --------------------------------------------


@pytest.mark.rotating
def test_java_reads_a_store_after_expiry(java_store: JavaStore, tmp_path: Path) -> None:
    settings = settings_of(java_store.version)
    clock, model = an_hour_ago(), StoreModel()
    with same_puts.open_ours(tmp_path, settings, clock) as store:
        put_all(store, everything(java_store.version), clock, model)
        store.queues.write_out()
        store.log.delete_first(clock.now_ms(), 0)
        for queue in store.queues:
            queue.delete_before(store.min_physical_offset)
        store.index.delete_before(store.min_physical_offset)
        model.drop_before(store.min_physical_offset)
        assert_ours_has(model, store)
        assert store.min_offset("Orders", 0) % 50, "its first file begins with deleted units"
    assert_java_has(model, same_puts.open_with_java(java_store, tmp_path, settings, model))


@pytest.mark.rotating
def test_java_reads_queues_rebuilt_after_expiry(java_store: JavaStore, tmp_path: Path) -> None:
    settings = settings_of(java_store.version)
    clock, model = an_hour_ago(), StoreModel()
    with same_puts.open_ours(tmp_path, settings, clock) as store:
        put_all(store, everything(java_store.version), clock, model)
    first, second, *_ = sorted((tmp_path / paths.COMMIT_LOG).iterdir())
    first.unlink()
    shutil.rmtree(tmp_path / paths.CONSUME_QUEUE)
    shutil.rmtree(tmp_path / paths.INDEX)

    model.drop_before(int(second.name))
    with same_puts.open_ours(tmp_path, settings, clock) as store:
        assert_ours_has(model, store)
        assert store.min_offset("Orders", 0) % 50, "its first file begins with blanks"
    assert_java_has(model, same_puts.open_with_java(java_store, tmp_path, settings, model))


@pytest.mark.rotating
def test_java_reads_rebuilt_queues_without_their_first_messages(
    java_store: JavaStore, tmp_path: Path
) -> None:
    """Java reads queues rebuilt from a log that begins at 0 and lost its first messages.

    Blank units would lead Java to offset 0, where no record is, and from there to the second log
    file, past the queue's messages in the first one.
    """
    settings = settings_of(java_store.version)
    clock, model = an_hour_ago(), StoreModel()
    # Java searches the log's end from the third last file on, and truncates it at any damage.
    puts = [same_puts.plain(number) for number in range(1800)]
    with same_puts.open_ours(tmp_path, settings, clock) as store:
        put_all(store, puts, clock, model)
    first, second, *others = sorted((tmp_path / paths.COMMIT_LOG).iterdir())
    assert len(others) > 2
    lost = {
        message.physical_offset for queue in model.queues.values() for message in queue.values()
    }
    lost = set(sorted(lost)[: sum(offset < int(second.name) for offset in lost) // 2])
    with first.open("r+b") as file:
        for physical_offset in lost:
            file.seek(physical_offset + record.POSITION_MAGIC)
            file.write(b"none")
    shutil.rmtree(tmp_path / paths.CONSUME_QUEUE)
    shutil.rmtree(tmp_path / paths.INDEX)

    with same_puts.open_ours(tmp_path, settings, clock) as store:
        assert store.recovery.refilled_units > 0
    view = java_store.open(tmp_path, settings)
    for pair, messages in model.queues.items():
        queue = view.queues[pair]
        assert not queue.holes
        assert queue.max_queue_offset == len(messages)
        read = {
            place: same_puts.without_crc(message)
            for place, message in queue.messages.items()
            if message.queue_offset == place
        }
        assert read == {
            n: message for n, message in messages.items() if message.physical_offset not in lost
        }


# --- alternating writers ------------------------------------------------------


@pytest.mark.rotating
def test_both_write_alternately(java_store: JavaStore, tmp_path: Path) -> None:
    version = java_store.version
    if version.startswith("4.5"):
        pytest.skip("no such case: the answers of 4.5 lack the store times of batches")
    # Without it 5.x drops the index after a crash, and rebuilds only its end.
    settings = {**settings_of(version), "messageIndexSafe": True}
    ours = {**settings, **extras(version)[0]}
    has_tags = version == "5.5.0"
    model = StoreModel()
    for round_, (is_closed, is_killed) in enumerate(
        [(True, True), (False, False), (False, True), (True, False)]
    ):
        puts = everything(version, 60 + 40 * round_)
        with same_puts.open_ours(tmp_path, ours) as store:
            assert_ours_has(model, store)
            for put in puts:
                model.add(put, same_puts.put(store, put))
            assert_ours_has(model, store)
            if not is_closed:
                store.abandon()
        written = java_store.write(
            tmp_path, as_java_takes(puts, version), settings, crash=is_killed
        )
        assert same_puts.complaints(written.log) == []
        for put, answer in zip(puts, written.puts, strict=True):
            model.add(put, answer)

    with same_puts.open_ours(tmp_path, ours) as store:
        assert_ours_has(model, store)
    assert_sound(tmp_path)
    view = same_puts.open_with_java(java_store, tmp_path, settings, model)
    assert_java_has(model, view, has_tags=has_tags)


def as_java_takes(puts: Iterable[Put], version: str) -> list[Put]:
    """Return the puts as a broker passes them to the store: 5.x redirects delayed messages."""
    return [same_puts.waiting(put) for put in puts] if version.startswith("5") else [*puts]
