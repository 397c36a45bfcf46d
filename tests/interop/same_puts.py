"""The same puts for a Java store and for ours, and the expected contents of a store after them.

``StoreModel`` records each put with its answer, and derives each queue, key and time.
The contents of a store, Java's or ours, are compared with it field by field, as ``JavaMessage``.
"""

import dataclasses
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path

from interop.java_store import (
    Config,
    JavaMessage,
    JavaPut,
    JavaStore,
    JavaView,
    Put,
    TimeQuery,
)
from reput import config
from reput.clock import Clock
from reput.format import (
    batch as batches,
    body as bodies,
    message as record,
    message_id,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.batch import InnerMessage
from reput.format.message import Host, StoredMessage
from reput.store.config import StoreConfig
from reput.store.message_store import MessageStore
from reput.store.reader import Boundary
from reput.store.writing.incoming import IncomingMessage, PutResult

SIZES: Config = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 700,  # Java gives two files the same name if it fills them within a millisecond
    "maxMessageSize": 32768,
}
LIGHT: Config = {"enableLmq": True, "enableMultiDispatch": True}
"""Settings for light queues; 4.5 does not have them."""

V4, V6 = "192.0.2.7:1", "[fd00:0:0:0:0:0:0:1]:65535"
HOSTS = [(born, store) for born in (V4, V6) for store in (V4, V6)]


# --- puts -------------------------------------------------------------------


def plain(number: int, topic: str = "Orders") -> Put:
    """Return an ordinary message: three queues, with or without tags, with zero to two keys."""
    properties = {
        "KEYS": ["", f"k{number}", f"k{number} shared", f" k{number}  shared "][number % 4],
        "TAGS": ["TagA", "TagB", ""][number % 3],
        "UNIQ_KEY": f"7F00000100002A139B{number:014X}" if number % 5 else "",
        "own": f"value {number}",
    }
    properties = {name: value for name, value in properties.items() if value}
    return Put(topic, number % 3, b"body %d" % number, properties, flag=number, reconsume_times=2)


def settings_of(version: str) -> Config:
    """Return settings that both the Java store of a version and ours accept."""
    return SIZES if version.startswith("4.5") else {**SIZES, **LIGHT}


def everything(version: str, count: int = 400) -> list[Put]:
    """Return puts of every kind that a version supports, enough to roll all files."""
    puts = [plain(number) for number in range(count)] + odd() + delayed()
    if version.startswith("4.5"):
        # 4.5 has no IPv6, and its size limit is for whole records.
        hosts_v4 = [put for put in puts if V6 not in (put.born_host, put.store_host)]
        return [put for put in hosts_v4 if len(put.body) <= 30_000]
    return puts + to_light_queues()


def odd() -> list[Put]:
    """Return a few puts of each kind, except redirected ones."""
    return [
        Put("Bare", 0, b""),
        Put("Bare", 0, b"x"),
        Put("Bare", 7, b"x" * 30_000, {"KEYS": "long"}),
        Put("Bare", 7, b"y" * 32_768, {"KEYS": "longest"}),
        Put("Крамниця-商店", 1, "тіло".encode(), {"KEYS": "ключ 键", "TAGS": "мітка-😀"}),
        *(
            Put("Packed", 0, bodies.compress(b"ab" * 500, bits), {"KEYS": "packed"}, sys_flag=bits)
            for bits in (
                flags.COMPRESSED,
                flags.COMPRESSED | flags.COMPRESSION_ZLIB,
                flags.COMPRESSED | flags.COMPRESSION_LZ4,
                flags.COMPRESSED | flags.COMPRESSION_ZSTD,
            )
        ),
        *(
            Put("Hosts", 0, b"%d" % i, {"KEYS": "hosts"}, born_host=born, store_host=store)
            for i, (born, store) in enumerate(HOSTS)
        ),
        *(
            Put(
                "Half",
                0,
                b"%d" % kind,
                {"KEYS": f"half{kind}", "TAGS": "t", "TRAN_MSG": "true", "PGROUP": "g"},
                sys_flag=kind,
                prepared_transaction_offset=4711,
            )
            for kind in (
                flags.TRANSACTION_PREPARED,
                flags.TRANSACTION_COMMIT,
                flags.TRANSACTION_ROLLBACK,
                flags.TRANSACTION_NONE,
            )
        ),
        in_batch("Batches", 0, [plain(10_000 + i) for i in range(5)]),
        in_batch("Batches", 0, [plain(10_005)], born_host=V6),
    ]


def delayed() -> list[Put]:
    """Return delayed messages: with low levels, the last level, and a level above it."""
    return [
        Put("Orders", 1, b"later", {"KEYS": f"delay{level}", "TAGS": "TagA", "DELAY": str(level)})
        for level in (1, 3, 18, 99)
    ]


def to_light_queues() -> list[Put]:
    """Return messages that also go to light queues."""
    named = ["%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%b"]
    return [
        Put("Orders", 2, b"light", {"KEYS": "light", props.INNER_MULTI_DISPATCH: queues})
        for queues in named
    ]


def in_batch(topic: str, queue_id: int, puts: Iterable[Put], born_host: str = V4) -> Put:
    """Return one batch of messages; of each put, body, flag and properties are used."""
    inner = [InnerMessage(put.flag, put.body, property_bytes(put.properties)) for put in puts]
    return Put(topic, queue_id, batches.encode(inner), is_batch=True, born_host=born_host)


def waiting(put: Put) -> Put:
    """Return the stored form of a delayed message: made by 4.x's store, or by a broker of 5.x."""
    level = min(int(put.properties.get("DELAY", 0)), 18)
    if not level:
        return put
    properties = {
        **put.properties,
        "DELAY": str(level),
        "REAL_TOPIC": put.topic,
        "REAL_QID": str(put.queue_id),
    }
    return dataclasses.replace(
        put, topic=names.SCHEDULE_TOPIC, queue_id=level - 1, properties=properties
    )


# --- into our store ---------------------------------------------------------


def open_ours(folder: Path, settings: Config, clock: Clock | None = None) -> MessageStore:
    """Open a folder with our store, with Java's settings."""
    loaded = config.load(StoreConfig, settings, explicit={"store_path_root_dir": str(folder)})
    assert not loaded.unknown
    return MessageStore.open(config=loaded.value, clock=clock)


def property_bytes(properties: Mapping[str, str], *, last_separator: bool = True) -> bytes:
    """Return properties as a client sends them, which may exceed the limit."""
    pairs = [f"{name}{props.NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()]
    end = props.PROPERTY_SEPARATOR if pairs and last_separator else ""
    return (props.PROPERTY_SEPARATOR.join(pairs) + end).encode()


def put(
    store: MessageStore, item: Put, now_ms: int | None = None, *, last_separator: bool = True
) -> PutResult:
    """Put into our store what ``JavaStore.write`` puts into Java's."""
    message = incoming(item, last_separator=last_separator)
    return store.put_batch(message, now_ms) if item.is_batch else store.put(message, now_ms)


def incoming(put: Put, *, last_separator: bool = True) -> IncomingMessage:
    return IncomingMessage(
        put.topic,
        put.body,
        put.queue_id,
        property_bytes(put.properties, last_separator=last_separator),
        put.born_timestamp,
        host(put.born_host),
        host(put.store_host),
        put.flag,
        put.sys_flag,
        put.reconsume_times,
        put.prepared_transaction_offset,
    )


def host(text: str) -> Host:
    """Convert ``192.0.2.1:10911`` or ``[fd00::1]:10911`` to the host of a record."""
    address, _, port = text.rpartition(":")
    return Host(ipaddress.ip_address(address.strip("[]")).packed, int(port))


# --- expected contents ------------------------------------------------------


class StoreModel:
    """Model of the messages in a store, and their positions."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], dict[int, JavaMessage]] = {}
        """Messages by topic and queue id, then by place in the queue."""
        self.ends: dict[tuple[str, int], int] = {}
        """Place after the last message of each queue."""
        self.keys: dict[tuple[str, str], set[int]] = {}
        """Topic and key -> physical offsets of the messages with that key."""
        self._tags: dict[tuple[str, str], set[int]] = {}
        self._light_ends: dict[str, int] = {}

    def add(self, put: Put, placed: PutResult | JavaPut) -> None:
        """Record a put and its answer."""
        answer = _answer(placed)
        if not put.is_batch:
            self._add(waiting(put), answer, answer.physical_offset, answer.queue_offset)
            return
        inner = batches.decode(put.body)
        offsets = [
            message_id.decode_offset_id(text).physical_offset
            for text in answer.message_id.split(",")
        ]
        ends = [*offsets[1:], answer.physical_offset + answer.size]
        assert len(inner) == len(offsets)
        for i, (part, start, end) in enumerate(zip(inner, offsets, ends, strict=True)):
            single = dataclasses.replace(
                put,
                body=part.body,
                flag=part.flag,
                properties=props.decode(part.property_bytes),
                is_batch=False,
            )
            size = end - start
            self._add(
                single,
                dataclasses.replace(answer, size=size),
                start,
                answer.queue_offset + i,
            )

    def _add(self, put: Put, answer: "_Answer", physical_offset: int, queue_offset: int) -> None:
        properties = dict(put.properties)
        light = [name for name in properties.get(props.INNER_MULTI_DISPATCH, "").split(",") if name]
        if light:
            ends = [self._light_ends.setdefault(name, 0) for name in light]
            properties[props.INNER_MULTI_QUEUE_OFFSET] = ",".join(map(str, ends))
        born, store = host(put.born_host), host(put.store_host)
        message = JavaMessage(
            topic=put.topic,
            queue_id=put.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            size=answer.size,
            message_id=message_id.encode_offset_id(store, physical_offset),
            flag=put.flag,
            sys_flag=put.sys_flag
            | (flags.BORN_HOST_V6 if born.is_v6 else 0)
            | (flags.STORE_HOST_V6 if store.is_v6 else 0),
            born_timestamp=put.born_timestamp,
            born_host=put.born_host,
            store_timestamp=answer.store_timestamp,
            store_host=put.store_host,
            reconsume_times=put.reconsume_times,
            prepared_transaction_offset=put.prepared_transaction_offset,
            properties=properties,
            body=put.body,
        )
        if flags.is_queued(put.sys_flag):
            self._enter((put.topic, put.queue_id), queue_offset, message)
            for name in light:
                self._enter((name, 0), self._light_ends[name], message)
                self._light_ends[name] += 1
        if flags.transaction_type(put.sys_flag) != flags.TRANSACTION_ROLLBACK:
            keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
            for key in filter(None, keys):
                self.keys.setdefault((put.topic, key), set()).add(physical_offset)
            if tags := properties.get("TAGS"):
                self._tags.setdefault((put.topic, f"T#{tags}"), set()).add(physical_offset)

    def _enter(self, queue: tuple[str, int], place: int, message: JavaMessage) -> None:
        assert place == self.ends.get(queue, 0)
        self.queues.setdefault(queue, {})[place] = message
        self.ends[queue] = place + 1

    def drop_before(self, physical_offset: int) -> None:
        """Forget the messages before a physical offset, which the log has deleted."""
        for queue in self.queues.values():
            gone = [n for n, message in queue.items() if message.physical_offset < physical_offset]
            for place in gone:
                del queue[place]
        for table in (self.keys, self._tags):
            for key, offsets in list(table.items()):
                if min(offsets) < physical_offset:
                    del table[key]  # not queried: Java logs an error if one is deleted

    @property
    def tags(self) -> dict[tuple[str, str], set[int]]:
        """Topic and tag key, as 5.4 and later look tags up -> physical offsets of the messages."""
        return dict(self._tags)

    def times(self) -> list[TimeQuery]:
        """Return time queries: at, just before and just after some messages of each queue."""
        asked: list[TimeQuery] = []
        for (topic, queue_id), queue in self.queues.items():
            times = sorted({message.store_timestamp for message in queue.values()})
            for time in {*times[:2], times[len(times) // 2], *times[-2:]}:
                asked += [(topic, queue_id, time + shift) for shift in (-1, 0, 1)]
        return asked

    def by_time(self, asked: TimeQuery) -> tuple[int, int]:
        """Return the places of the first message at or after a time and the last at or before it.

        The end of the queue, if there is no such first message; its begin, if no such last one.
        """
        topic, queue_id, time = asked
        queue = self.queues[topic, queue_id]
        later = [place for place, message in queue.items() if message.store_timestamp >= time]
        earlier = [place for place, message in queue.items() if message.store_timestamp <= time]
        return min(later, default=max(queue) + 1), max(earlier, default=min(queue))


@dataclasses.dataclass(frozen=True)
class _Answer:
    physical_offset: int
    size: int
    queue_offset: int
    store_timestamp: int
    message_id: str


def _answer(placed: PutResult | JavaPut) -> _Answer:
    if isinstance(placed, PutResult):
        assert placed.status.name == "PUT_OK", placed.reason
        name = placed.offset_id
    else:
        assert placed.status == "PUT_OK"
        name = placed.message_id or ""
    assert placed.physical_offset is not None
    assert placed.size is not None
    assert placed.queue_offset is not None
    assert placed.store_timestamp is not None
    return _Answer(
        placed.physical_offset, placed.size, placed.queue_offset, placed.store_timestamp, name
    )


# --- comparison -------------------------------------------------------------


def open_with_java(java: JavaStore, folder: Path, settings: Config, model: StoreModel) -> JavaView:
    """Open a folder with Java and query all expected keys and times."""
    return java.open(folder, settings, keys=[*model.keys, *model.tags], times=model.times())


def assert_java_has(model: StoreModel, view: JavaView, *, has_tags: bool = False) -> None:
    """Assert that Java has all messages with equal fields, all keys, and the ends of all queues."""
    assert view.is_loaded, view.log
    assert complaints(view.log) == []
    # 4.x creates a queue in memory when it is queried.
    queues = {pair: queue for pair, queue in view.queues.items() if queue.max_queue_offset}
    assert {pair: queue.max_queue_offset for pair, queue in queues.items()} == model.ends
    for pair, expected in model.queues.items():
        queue = queues[pair]
        assert not queue.holes
        assert queue.min_queue_offset == min(expected)
        assert {n: without_crc(message) for n, message in queue.messages.items()} == expected
    for (topic, key), offsets in model.keys.items():
        assert sorted(set(view.keys[topic, key])) == newest(offsets), (topic, key)
    for (topic, key), offsets in model.tags.items():
        assert sorted(set(view.keys[topic, key])) == (newest(offsets) if has_tags else [])


def assert_ours_has(model: StoreModel, store: MessageStore) -> None:
    """Assert the same for our store."""
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues}
    assert ends == model.ends
    for (topic, queue_id), expected in model.queues.items():
        messages = messages_of(store, topic, queue_id)
        assert {n: without_crc(as_java(message)) for n, message in messages.items()} == expected
        assert store.min_offset(topic, queue_id) == min(expected)
    for (topic, key), offsets in model.keys.items():
        records = store.query(topic, key, 64).records
        physical_offsets = [record.decode(data).physical_offset for data in records]
        assert physical_offsets == newest(offsets), (topic, key)
    for asked in model.times():
        both = [store.offset_by_time(*asked, boundary) for boundary in Boundary]
        assert tuple(both) == model.by_time(asked), asked


def newest(physical_offsets: Iterable[int]) -> list[int]:
    """Return the newest offsets, at most as many as a query returns."""
    return sorted(physical_offsets)[-64:]


def messages_of(store: MessageStore, topic: str, queue_id: int) -> dict[int, StoredMessage]:
    """Return all messages of a queue of our store, by their place."""
    messages: dict[int, StoredMessage] = {}
    queue_offset = store.min_offset(topic, queue_id)
    while queue_offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, queue_offset, 32)
        assert result.message_count == result.next_offset - queue_offset
        for number, data in enumerate(result.records, queue_offset):
            messages[number] = record.decode(data)
        queue_offset = result.next_offset
    return messages


def as_java(message: StoredMessage) -> JavaMessage:
    return JavaMessage(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        size=message.store_size,
        message_id=message_id.offset_id(message),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=str(message.born_host),
        store_timestamp=message.store_timestamp,
        store_host=str(message.store_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        properties=dict(message.properties),
        body=message.body,
    )


def without_crc(message: JavaMessage) -> JavaMessage:
    properties = {name: value for name, value in message.properties.items() if name != props.CRC32}
    return dataclasses.replace(message, properties=properties)


def complaints(log: Iterable[str]) -> list[str]:
    """Return the lines of Java's log that report errors."""
    return [line for line in log if "[BUG]" in line or "ERROR" in line]
