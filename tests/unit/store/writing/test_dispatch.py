"""Dispatch of records with false fields: no checksum covers a record's head and topic.

``verify`` reports damage for such a store.
"""

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

import golden
from reput import config as configuration
from reput.format import message as record, properties as props
from reput.store.config import StoreConfig
from reput.store.files import paths
from reput.store.message_store import MessageStore
from reput.store.queues.filter_bits import FilterBits
from reput.store.verify import FindingKind
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage, PutStatus
from store_fixture import Stores

LOG = f"{paths.COMMIT_LOG}/{paths.offset_name(0)}"


def crashed_store(stores: Stores, *messages: IncomingMessage) -> tuple[Path, list[int]]:
    """Write a store that has only its log; return its root and its records' offsets."""
    store = stores.open()
    results = store.put_many(messages)
    assert all(result.status.is_stored for result in results)
    store.abandon()
    root = stores.root()
    shutil.rmtree(root / paths.CONSUME_QUEUE, ignore_errors=True)
    shutil.rmtree(root / paths.INDEX, ignore_errors=True)
    return root, [result.physical_offset for result in results]


def overwrite(root: Path, position: int, data: bytes) -> None:
    with (root / LOG).open("r+b") as file:
        file.seek(position)
        file.write(data)


def ordinary(n: int, topic: str = "Topic") -> IncomingMessage:
    return IncomingMessage(topic, b"body %d" % n, 0, props.encode({"KEYS": f"k{n}"}))


@pytest.mark.parametrize("lie", [1 << 60, (1 << 63) - 1, 10_000])
def test_an_impossible_queue_offset_does_not_fill_the_disk(stores: Stores, lie: int) -> None:
    stores.allow(*FindingKind)
    root, places = crashed_store(stores, *map(ordinary, range(6)))
    overwrite(root, places[3] + record.POSITION_QUEUE_OFFSET, struct.pack(">q", lie))

    store = stores.open()

    # The queue loses the fourth: two units point to the fifth, one of them at the fourth's place.
    assert store.max_offset("Topic", 0) == 6
    records = store.get("Topic", 0, 0).records
    assert [record.decode(data).body for data in records] == [
        b"body %d" % n for n in (0, 1, 2, 4, 5)
    ]
    assert len(store.query("Topic", "k3").records) == 1, "it is found by its key"


@pytest.mark.parametrize("topic", ["../ab", "a/b/c", ".\0.."])
def test_an_invalid_topic_name_creates_no_folder(stores: Stores, topic: str) -> None:
    stores.allow(*FindingKind)
    root, places = crashed_store(stores, ordinary(0, "abcde"[: len(topic)]), ordinary(1))
    data = (root / LOG).read_bytes()
    position = data.index(b"abcde"[: len(topic)], places[0])
    overwrite(root, position, topic.encode())

    store = stores.open()

    assert store.max_offset("Topic", 0) == 1
    store.close()
    made = {path.relative_to(root / paths.CONSUME_QUEUE) for path in root.rglob("consumequeue/*/*")}
    assert {str(folder) for folder in made} == {"Topic/0"}
    assert {path.name for path in root.parent.iterdir()} == {root.name}


def test_an_impossible_offset_in_a_light_queue(stores: Stores) -> None:
    """As a client may have forged it where light queues were disabled."""
    stores.allow(*FindingKind)
    store = stores.open()
    for number, queue_offset in enumerate(("0", "9" * 18)):
        properties = {
            props.INNER_MULTI_DISPATCH: "%LMQ%a",
            props.INNER_MULTI_QUEUE_OFFSET: queue_offset,
        }
        sent = IncomingMessage("Topic", b"%d" % number, 0, props.encode(properties))
        assert store.put(sent).status.is_stored
    root = Path(store.root)
    store.close()
    shutil.rmtree(root / paths.CONSUME_QUEUE)
    store = stores.open(enable_multi_dispatch=True)
    while store.step():
        pass
    assert store.max_offset("%LMQ%a", 0) == 1
    assert store.max_offset("Topic", 0) == 2


def test_files_that_were_dispatched_can_be_deleted(stores: Stores) -> None:
    """Without waiting for a reader: dispatch at the start holds a file while it reads it alone."""
    store = stores.open()
    for _ in range(9):
        assert store.put(IncomingMessage("Topic", b"x" * 16_000, 0)).status.is_stored
    store.abandon()  # before its queues had files
    store = stores.open()
    assert store.max_offset("Topic", 0) == 9
    expired = store.log.files.files[:-1]
    assert len(expired) == 2
    assert [file.destroy(now_ms=0) for file in expired] == [True, True]
    store.abandon()


class FailsAtBad(FilterBits):
    """Filter bits that fail for messages of the topic ``Bad``."""

    def __init__(self) -> None:
        pass

    def of(self, topic: str, properties: Mapping[str, str]) -> bytes:
        if topic == "Bad":
            raise OverflowError("whatever a record may bring about")
        return b""


def test_a_record_that_dispatch_rejects_is_reported_and_skipped(stores: Stores) -> None:
    stores.allow(*FindingKind)
    settings = {"enable_consume_queue_ext": True, "message_index_enable": False}
    messages = [ordinary(0), ordinary(1, "Bad"), ordinary(2), ordinary(3, "Bad"), ordinary(4)]
    store = stores.open(**settings)
    reported: list[str] = []
    store.dispatcher.on_unusable = lambda place, error: reported.append(f"{place}: {error!r}")
    store.dispatcher.filter_bits = FailsAtBad()
    assert all(store.put(message).status.is_stored for message in messages)
    while store.step():
        pass
    assert store.dispatcher.dispatched_offset == store.max_physical_offset
    assert store.max_offset("Topic", 0) == 3
    assert len(reported) == 2
    assert "OverflowError" in reported[0]
    assert store.put(ordinary(5)).queue_offset == 3
    while store.step():
        pass
    assert store.max_offset("Topic", 0) == 4
    assert not store.refusal


def test_topics_with_batch_queues_get_no_plain_queues(tmp_path: Path) -> None:
    """A 5.x broker does not start with both kinds."""
    root = golden.copy_store("5.5.0", "v5", tmp_path)
    settings = dict(golden.manifest("5.5.0", "v5")["config"])
    for name in ("storePathRootDir", "storePathCommitLog"):
        settings.pop(name, None)
    explicit = {"store_path_root_dir": str(root)}
    config = configuration.load(StoreConfig, settings, environment={}, explicit=explicit).value
    (topic,) = (path.name for path in (root / paths.BATCH_CONSUME_QUEUE).iterdir())
    before = {path.name for path in (root / paths.CONSUME_QUEUE).iterdir()}
    (root / paths.ABORT).touch()  # so that the start dispatches its batches once more
    with MessageStore.open(config=config) as store:
        end = store.max_offset(topic, 0)
        assert store.put(IncomingMessage(topic, b"x")).queue_offset == end
        assert store.max_offset(topic, 0) == end + 1
        assert store.put(IncomingMessage("Other", b"x")).status.is_stored
        stored, _ = store.put_encoded(incoming.encode(IncomingMessage(topic, b"x"), b"../x"), 1)
        assert stored == 0
    assert {path.name for path in (root / paths.CONSUME_QUEUE).iterdir()} == before | {"Other"}


def test_properties_at_their_limit_with_light_queues_and_checksum(stores: Stores) -> None:
    """known-bugs.md#record-checksum: all that the broker adds counts, before anything is stored."""
    store = stores.open(
        enable_multi_dispatch=True, enabled_append_prop_crc=True, max_message_size=40_000
    )
    added = len("INNER_MULTI_QUEUE_OFFSET\x010\x02") + len("__CRC32#\x010123456789\x02")
    own = {props.INNER_MULTI_DISPATCH: "%LMQ%a", "x": "x"}
    room = 32_767 - added - len(props.encode(own)) + 1
    for extra in (1, 0):
        own["x"] = "x" * (room + extra)
        result = store.put(IncomingMessage("Topic", b"body", 0, props.encode(own)))
        while store.step():
            pass
        if extra:
            assert result.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
            assert store.max_offset("Topic", 0) == store.max_offset("%LMQ%a", 0) == 0
    assert result.status is PutStatus.PUT_OK
    for topic in ("Topic", "%LMQ%a"):
        (data,) = store.get(topic, 0, 0).records
        message = record.decode(data)
        assert len(message.property_bytes) == 32_767
        assert message.properties["x"] == own["x"]
        assert message.properties["INNER_MULTI_QUEUE_OFFSET"] == "0"
