"""RocketMQ's own brokers, consumers and queries read stores that Spark's writer made."""

from pathlib import Path

import pytest

import own_thread
from interop.conftest import StartOfficial
from interop.java_cluster import JavaClient
from interop.java_store import JavaStore
from reput.format import message as record
from reput.spark.importing.commit import Commit
from reput.store.files.disk import Disk
from reput.store.reader import StoreReader
from spark.importing import SIZES, batch, write

pytestmark = [pytest.mark.interop, pytest.mark.rotating]

QUEUES = 3


def rows(mark: str, count: int) -> list[dict[str, object]]:
    return [
        {
            "topic": f"Imported{n % 2}",
            "body": f"{mark}-{n}".encode() * 20,
            "queue_id": n % QUEUES,
            "keys": [f"{mark}{n}", "all"],
            "tags": "TagA",
            "uniq_key": f"{mark.upper()}{n:030d}",
            "properties": [("n", str(n))],
        }
        for n in range(count)
    ]


def imported(store: Path) -> list[dict[str, object]]:
    """Make a store with two imports and return all rows, in order."""
    first, second = rows("a", 400), rows("b", 300)
    write(store, [[batch(first[:100])], [batch(first[100:])]])
    write(store, [[batch(second)]])
    return first + second


def test_java_opens_an_import_and_finds_every_message(
    java_store: JavaStore, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    sent = imported(store)
    end = StoreReader.open(str(store)).end_offset
    keys = [("Imported0", "a0"), ("Imported1", "b299")]
    view = java_store.open(store, SIZES, keys=keys)
    assert view.is_loaded
    assert view.max_physical_offset == end
    assert not any(queue.holes for queue in view.queues.values())
    bodies: dict[tuple[str, int], list[bytes]] = {}
    for (topic, queue_id), queue in sorted(view.queues.items()):
        assert list(queue.messages) == list(range(queue.max_queue_offset))
        assert all(place == message.queue_offset for place, message in queue.messages.items())
        if topic.startswith("Imported"):  # Java also has empty queues of system topics
            bodies[topic, queue_id] = [message.body for message in queue.messages.values()]
    expected: dict[tuple[str, int], list[bytes]] = {}
    for row in sent:
        key = str(row["topic"]), int(str(row["queue_id"]))
        expected.setdefault(key, []).append(bytes(row["body"]))  # type: ignore[call-overload]
    assert bodies == expected
    by_key = {
        message.physical_offset: message.body
        for q in view.queues.values()
        for message in q.messages.values()
    }
    hits = {key: [by_key[offset] for offset in offsets] for key, offsets in view.keys.items()}
    assert hits == {keys[0]: [b"a-0" * 20], keys[1]: [b"b-299" * 20]}
    # An import continues after the end of a store that Java has closed.
    write(store, [[batch(rows("c", 50))]])
    again = java_store.open(store, SIZES)
    assert again.queues["Imported0", 0].max_queue_offset == len(bodies["Imported0", 0]) + 9
    recovered = java_store.open(store, SIZES, crash=True)
    assert recovered.max_physical_offset == again.max_physical_offset


def test_consumers_of_the_official_broker_read_an_import(
    start_official: StartOfficial, java_client: JavaClient, tmp_path: Path
) -> None:
    if java_client.version != "4.9.7":
        pytest.skip("no such case: one client is enough")
    root = tmp_path / "cluster"
    sent = imported(root / "store")
    cluster = start_official("4.9.7", SIZES, root)
    with java_client.pull_consumer(cluster.namesrv, "ImportReaders") as consumer:
        for topic in ("Imported0", "Imported1"):
            got = sorted(
                (message.msg_id, message.queue_id)
                for received in consumer.read_all(topic).values()
                for message in received
            )
            assert got == sorted(
                (row["uniq_key"], row["queue_id"]) for row in sent if row["topic"] == topic
            )


@pytest.mark.parametrize("count", [5, 300, 900], ids=["in a file", "over two", "over many"])
def test_java_sees_no_message_of_an_unfinished_import(
    java_store: JavaStore, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    write(store, [[batch(rows("a", 100))]])
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
        patch.setattr(Commit, "_exchange", die)
        with pytest.raises(Killed):
            write(store, [[batch(rows("b", count))]])
    view = java_store.open(store, SIZES)
    assert view.is_loaded
    assert view.max_physical_offset == end
    assert sum(len(queue.messages) for queue in view.queues.values()) == 100
    write(store, [[batch(rows("b", count))]])
    view = java_store.open(store, SIZES)
    assert view.max_physical_offset == StoreReader.open(str(store)).end_offset
    assert sum(len(queue.messages) for queue in view.queues.values()) == 100 + count


class Killed(BaseException):
    """Simulated crash of the process."""
