"""The same messages, stored by RocketMQ and by us at the same times: the same bytes.

Java writes first; its answers contain the store times. Our store then uses these times, so that the
comparison includes everything: store times, and values derived from them in the index and in the
units of delayed messages.

Two intentional differences have separate tests below:

    4.9 ends the property strings that it makes itself (of delayed and light messages) without the
    last separator, like all strings that it makes. We end them with one, as 4.5 and 5.x do, so that
    a program may append to such a string without damage (known-bugs.md#property-separators).

    4.9 copies the properties of a batch into each of its messages. We do not, as 5.3.4 and later:
    the unique key is among them, and all messages would get the same (rmq#9416).
"""

import dataclasses
from pathlib import Path
from random import Random

import pytest

from interop import same_puts
from interop.java_store import Config, JavaStore, Put
from interop.same_puts import in_batch, plain, settings_of
from reput.clock import ManualClock
from reput.format import checkpoint_page, index_entry, message as record
from reput.format.message import StoredMessage
from reput.store.files import paths
from reput.store.reader import StoreReader

pytestmark = pytest.mark.interop


# --- the same bytes -----------------------------------------------------------


@pytest.mark.sampled(14)
@pytest.mark.parametrize("has_checksums", [False, True], ids=["plain", "checksums"])
def test_all_files_are_equal(java_store: JavaStore, has_checksums: bool, tmp_path: Path) -> None:
    version = java_store.version
    if version.startswith("4.5"):
        pytest.skip(
            "no such case: answers of 4.5 lack store times of batches, and it counts slots twice"
        )
    if has_checksums and not version.startswith("5"):
        pytest.skip("no such case: __CRC32# came with 5.x")
    settings = settings_of(version)
    if has_checksums:
        settings = {**settings, "enabledAppendPropCRC": True}
    puts = [put for put in mixed(version) if not is_remade_by_4_9(put, version)]
    write_both(java_store, puts, settings, tmp_path)
    assert_same_files(tmp_path)


def mixed(version: str) -> list[Put]:
    """Return puts of every kind, in random order, with batches and long bodies between them."""
    random = Random(20)
    more = (
        [
            in_batch("Batches", 1, [plain(random.randrange(1000)) for _ in range(size)])
            for size in (1, 2, 30, 60)
            for _ in range(6)
        ]
        + [
            in_batch("Batches", 2, same_puts.delayed()),
        ]
        + [
            Put("Bare", 3, random.randbytes(random.randrange(20_000)), {"KEYS": f"long{number}"})
            for number in range(20)
        ]
    )
    puts = same_puts.everything(version) + more
    if version.startswith("5"):
        puts.append(Put("%RETRY%" + "g" * 240, 0, b"long topic", {"KEYS": "long"}))
    random.shuffle(puts)
    return puts


def is_remade_by_4_9(put: Put, version: str) -> bool:
    """Return whether 4.9's store makes another property string for a message."""
    return version.startswith("4.9") and not {"DELAY", "INNER_MULTI_DISPATCH"}.isdisjoint(
        put.properties
    )


def write_both(java: JavaStore, puts: list[Put], settings: Config, folder: Path) -> None:
    """Write the stores ``folder/java`` and ``folder/ours``.

    Property strings are stored as a client sends them: both get the form of that version's client,
    with the last separator or without.
    """
    is_5, ends_with_separator = java.version.startswith("5"), not java.version.startswith("4.9")
    # In 5.x the broker would redirect delayed messages, but there is none here.
    of_java = [same_puts.waiting(put) for put in puts] if is_5 else puts
    written = java.write(folder / "java", of_java, settings)
    assert same_puts.complaints(written.log) == []
    times = [answer.store_timestamp for answer in written.puts if answer.store_timestamp]
    clock = ManualClock(times[0])
    of_ours = {"indexTags": True, "maxTopicLength": 255} if is_5 else {}
    with same_puts.open_ours(folder / "ours", {**settings, **of_ours}, clock) as store:
        for put, time, answer in zip(puts, times, written.puts, strict=True):
            clock.set(time)
            result = same_puts.put(store, put, last_separator=ends_with_separator)
            assert (result.status.name, result.size) == (answer.status, answer.size), put
            assert result.offset_id == answer.message_id
            assert result.queue_offset == answer.queue_offset


def assert_same_files(folder: Path) -> None:
    for family in (paths.COMMIT_LOG, paths.CONSUME_QUEUE):
        java, ours = files(folder / "java" / family), files(folder / "ours" / family)
        assert java.keys() == ours.keys()
        assert [name for name in java if java[name] != ours[name]] == []
        assert len(ours) > 7
    # The names contain the time of creation; the order is the same.
    java, ours = files(folder / "java" / paths.INDEX), files(folder / "ours" / paths.INDEX)
    assert [*map(len, java.values())] == [*map(len, ours.values())]
    assert [a == b for a, b in zip(java.values(), ours.values(), strict=True)] == [True] * len(java)
    assert len(ours) > 1
    java_checkpoint, own_checkpoint = (
        checkpoint_page.unpack((folder / root / paths.CHECKPOINT).read_bytes())
        for root in ("java", "ours")
    )
    # Java's last flush may miss its last messages on a busy machine; ours includes them.
    full_index = list(ours.values())[-2]
    index_timestamp = index_entry.unpack_header(full_index).end_timestamp
    assert java_checkpoint.index_timestamp <= own_checkpoint.index_timestamp == index_timestamp
    last = list(StoreReader.open(str(folder / "ours")).messages())[-1]
    assert java_checkpoint.queue_timestamp <= own_checkpoint.queue_timestamp == last.store_timestamp
    assert java_checkpoint.queue_physical_offset <= own_checkpoint.queue_physical_offset
    assert own_checkpoint.queue_physical_offset == last.physical_offset


def files(folder: Path) -> dict[str, bytes]:
    file_paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in file_paths}


# --- intentional differences --------------------------------------------------


@pytest.mark.rotating
def test_4_9_ends_the_strings_it_makes_without_a_separator(
    java_store: JavaStore, tmp_path: Path
) -> None:
    if not java_store.version.startswith("4.9"):
        pytest.skip("no such case: only in 4.9")
    puts = same_puts.delayed() + same_puts.to_light_queues()
    settings = settings_of(java_store.version)
    written = java_store.write(tmp_path / "java", puts, settings)
    clock = ManualClock()
    with same_puts.open_ours(tmp_path / "ours", settings, clock) as store:
        for put, answer in zip(puts, written.puts, strict=True):
            same_puts.put(store, put, answer.store_timestamp, last_separator=False)
    java, ours = (records(tmp_path / root) for root in ("java", "ours"))
    assert [message.property_bytes[-1:] for message in ours] == [b"\2"] * len(puts)
    assert [without_place(message) for message in ours] == [
        without_place(dataclasses.replace(message, property_bytes=message.property_bytes + b"\2"))
        for message in java
    ]


@pytest.mark.rotating
def test_4_9_copies_the_properties_of_a_batch(java_store: JavaStore, tmp_path: Path) -> None:
    batch = dataclasses.replace(
        in_batch("Batches", 0, [plain(1), plain(2)]), properties={"UNIQ_KEY": "of-the-batch"}
    )
    java_store.write(tmp_path / "java", [batch], settings_of(java_store.version))
    with same_puts.open_ours(tmp_path / "ours", settings_of(java_store.version)) as store:
        same_puts.put(store, batch)
    java, ours = (records(tmp_path / root) for root in ("java", "ours"))
    assert [message.property_bytes for message in ours] == [
        same_puts.property_bytes(plain(number).properties) for number in (1, 2)
    ]
    more = b"UNIQ_KEY\1of-the-batch" if java_store.version.startswith("4.9") else b""
    assert [message.property_bytes for message in java] == [
        message.property_bytes + more for message in ours
    ]


def records(root: Path) -> list[StoredMessage]:
    """Return the records of a store whose log is one file."""
    (data,) = files(root / paths.COMMIT_LOG).values()
    messages = []
    position = 0
    while record.classify(data, position, position)[0] is record.Verdict.MESSAGE:
        messages.append(record.decode(data, position))
        position += messages[-1].store_size
    return messages


def without_place(message: StoredMessage) -> StoredMessage:
    """Return a message without the fields that depend on the lengths of earlier messages."""
    return dataclasses.replace(message, physical_offset=0, store_size=0)
