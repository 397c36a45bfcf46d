"""The JSON tables: fastjson's dialect, the backup, and errors instead of empty tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import golden
import seeds
from cases import each
from reput.errors import CorruptRecord
from reput.format import fastjson
from reput.store.files import paths
from reput.store.files.files import Entry, Folder, open_folder
from reput.store.tables import config_tables
from reput.store.tables.config_tables import ConsumerOffset, TopicConfig

STORE = pytest.mark.parametrize(("version", "name"), golden.STORES)

# fastjson of 4.9.8: tabs, numbers as map keys without quotes, and the first pair on the line
# of the brace.
CONSUMER_OFFSETS = """{
\t"offsetTable":{
\t\t"TopicA@group":{0:12,1:7
\t\t},
\t\t"%RETRY%g@g":{0:0
\t\t}
\t}
}"""
TOPICS = """{
\t"dataVersion":{
\t\t"counter":2,
\t\t"timestamp":1700000000000
\t},
\t"topicConfigTable":{
\t\t"TopicB":{
\t\t\t"order":true,
\t\t\t"perm":4,
\t\t\t"readQueueNums":8,
\t\t\t"topicFilterType":"MULTI_TAG",
\t\t\t"topicName":"TopicB",
\t\t\t"topicSysFlag":2,
\t\t\t"writeQueueNums":4
\t\t},
\t\t"TopicA":{
\t\t\t"attributes":{"+message.type":"FIFO","+cleanup.policy":"DELETE"},
\t\t\t"liteTopicExpiration":-1,
\t\t\t"perm":6,
\t\t\t"readQueueNums":1,
\t\t\t"writeQueueNums":1
\t\t}
\t}
}"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path


@pytest.fixture
def folder(store: Path) -> Folder:
    return open_folder(str(store))


# --- files of Java ---------------------------------------------------------


def _tables_of(version: str, name: str) -> tuple[Folder, dict[str, Any]]:
    return open_folder(str(golden.unpack(version, name))), golden.manifest(version, name)


@STORE
def test_topics(version: str, name: str) -> None:
    folder, manifest = _tables_of(version, name)
    expected = {
        topic: TopicConfig(
            name=topic,
            read_queue_count=value["readQueueNums"],
            write_queue_count=value["writeQueueNums"],
            perm=value["perm"],
            order=value["order"],
            filter_type=value["topicFilterType"],
            sys_flag=value["topicSysFlag"],
            attributes=tuple(sorted(value.get("attributes", {}).items())),
        )
        for topic, value in manifest["topics"].items()
    }
    assert config_tables.topics(folder) == expected
    assert list(config_tables.topics(folder)) == sorted(expected)


@STORE
def test_consumer_offsets(version: str, name: str) -> None:
    folder, manifest = _tables_of(version, name)
    expected = [
        ConsumerOffset(*key.split("@", 1), int(queue_id), value)  # 5.5: topic@group@broadcast
        for key, queues in (manifest["consumerOffsets"] or {}).items()
        for queue_id, value in queues.items()
    ]
    offsets = config_tables.consumer_offsets(folder)
    assert sorted(offsets, key=repr) == sorted(expected, key=repr)
    assert offsets == sorted(offsets, key=lambda entry: (entry.topic, entry.group, entry.queue_id))


@STORE
def test_delay_offsets(version: str, name: str) -> None:
    folder, manifest = _tables_of(version, name)
    expected = {int(level): value for level, value in (manifest["delayOffsets"] or {}).items()}
    offsets = config_tables.delay_offsets(folder)
    assert offsets == expected
    assert list(offsets) == sorted(expected)


@STORE
def test_subscription_groups(version: str, name: str) -> None:
    """Java adds the settings that its version has and the file lacks."""
    folder, manifest = _tables_of(version, name)
    groups = config_tables.subscription_groups(folder)
    assert list(groups) == sorted(manifest["subscriptionGroups"])
    for group, stored in groups.items():
        expected = manifest["subscriptionGroups"][group]
        assert {key: expected[key] for key in stored if key != "groupRetryPolicy"} == {
            key: value for key, value in stored.items() if key != "groupRetryPolicy"
        }
        assert stored["groupName"] == group


@STORE
def test_every_table_and_backup_of_a_broker_parses(version: str, name: str) -> None:
    config = golden.unpack(version, name) / "config"
    texts = [
        path.read_text()
        for path in config.iterdir()
        if path.suffix in (".json", ".bak") and path.stat().st_size
    ]
    assert len(texts) > 3
    for text in texts:
        assert isinstance(fastjson.parse(text), dict)


# --- the dialect ----------------------------------------------------------


def test_bare_numeric_keys(store: Path, folder: Folder) -> None:
    (store / paths.CONSUMER_OFFSETS).write_text(CONSUMER_OFFSETS)
    assert config_tables.consumer_offsets(folder) == [
        ConsumerOffset("%RETRY%g", "g", 0, 0),
        ConsumerOffset("TopicA", "group", 0, 12),
        ConsumerOffset("TopicA", "group", 1, 7),
    ]


@each(
    ("text", "value"),
    [
        ('{"0":1}', {"0": 1}),
        ("{0:1}", {"0": 1}),
        ("{ 0 : 1 , -5 : 2 }", {"0": 1, "-5": 2}),
        ("{\n\t0:1,\n\t1:2\n}", {"0": 1, "1": 2}),
        ('{"a":{0:{1:[2,{3:4}]}}}', {"a": {"0": {"1": [2, {"3": 4}]}}}),
        ('{"{0:1,2:3}":"{4:5"}', {"{0:1,2:3}": "{4:5"}),
        ('{"a\\"{1:2":1,3:4}', {'a"{1:2': 1, "3": 4}),
        ('{"back\\\\":1,3:4}', {"back\\": 1, "3": 4}),
        ("[1,2]", [1, 2]),
        ('{"a":[1,2,3]}', {"a": [1, 2, 3]}),
        ('{"日本":{7:1}}', {"日本": {"7": 1}}),
    ],
)
def test_only_keys_are_quoted_and_text_is_unchanged(text: str, value: Any) -> None:
    assert fastjson.parse(text) == value


def test_unknown_members_and_missing_ones(store: Path, folder: Folder) -> None:
    (store / paths.TOPICS).write_text(TOPICS)
    assert config_tables.topics(folder) == {
        "TopicA": TopicConfig(
            "TopicA",
            1,
            1,
            6,
            attributes=(("+cleanup.policy", "DELETE"), ("+message.type", "FIFO")),
        ),
        "TopicB": TopicConfig("TopicB", 8, 4, 4, True, "MULTI_TAG", 2),
    }


# --- missing, empty, damaged: the backup, or an error ---------------------

TABLES: list[tuple[str, Callable[[Folder], Any], str]] = [
    (paths.TOPICS, config_tables.topics, TOPICS),
    (paths.CONSUMER_OFFSETS, config_tables.consumer_offsets, CONSUMER_OFFSETS),
    (paths.DELAY_OFFSETS, config_tables.delay_offsets, '{"offsetTable":{3:4,1:9}}'),
    (
        paths.SUBSCRIPTION_GROUPS,
        config_tables.subscription_groups,
        '{"subscriptionGroupTable":{"g":{"groupName":"g"}}}',
    ),
]
TABLE = pytest.mark.parametrize(("path", "read", "text"), TABLES)


@TABLE
def test_no_table_and_no_backup_is_an_empty_table(
    folder: Folder, path: str, read: Callable[[Folder], Any], text: str
) -> None:
    assert not read(folder)


@TABLE
@pytest.mark.parametrize("content", [None, b"", b" \n", b"{", b"\xff\xfe", b"[]", b"null", b'"x"'])
def test_the_backup_is_used_for_a_bad_table(
    store: Path,
    folder: Folder,
    path: str,
    read: Callable[[Folder], Any],
    text: str,
    content: bytes | None,
) -> None:
    (store / path).write_text(text)
    expected = read(folder)
    (store / path).rename(store / f"{path}.bak")
    if content is not None:
        (store / path).write_bytes(content)
    assert expected
    assert read(folder) == expected


@TABLE
def test_a_good_table_wins_over_its_backup(
    store: Path, folder: Folder, path: str, read: Callable[[Folder], Any], text: str
) -> None:
    (store / f"{path}.bak").write_text(text)
    (store / path).write_text("{}")
    assert not read(folder)


@TABLE
@pytest.mark.parametrize("backup", [None, b"", b"{,}", b"\xff"])
@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b"12", b"[" * 100_000, b"{1:" * 9999])
@pytest.mark.sampled(4)
def test_garbage_is_an_error_and_not_an_empty_table(
    store: Path,
    folder: Folder,
    path: str,
    read: Callable[[Folder], Any],
    text: str,
    content: bytes,
    backup: bytes | None,
) -> None:
    (store / path).write_bytes(content)
    if backup is not None:
        (store / f"{path}.bak").write_bytes(backup)
    with pytest.raises(CorruptRecord, match=path) as caught:
        read(folder)
    assert caught.value.file == path


WRONG_KIND = [
    (paths.TOPICS, config_tables.topics, '{"topicConfigTable":%s}'),
    (paths.TOPICS, config_tables.topics, '{"topicConfigTable":{"T":%s}}'),
    (paths.TOPICS, config_tables.topics, '{"topicConfigTable":{"T":{"perm":%s}}}'),
    (paths.TOPICS, config_tables.topics, '{"topicConfigTable":{"T":{"attributes":%s}}}'),
    (paths.CONSUMER_OFFSETS, config_tables.consumer_offsets, '{"offsetTable":%s}'),
    (paths.CONSUMER_OFFSETS, config_tables.consumer_offsets, '{"offsetTable":{"T@g":%s}}'),
    (paths.CONSUMER_OFFSETS, config_tables.consumer_offsets, '{"offsetTable":{"T@g":{0:%s}}}'),
    (paths.DELAY_OFFSETS, config_tables.delay_offsets, '{"offsetTable":%s}'),
    (paths.DELAY_OFFSETS, config_tables.delay_offsets, '{"offsetTable":{1:%s}}'),
    (
        paths.SUBSCRIPTION_GROUPS,
        config_tables.subscription_groups,
        '{"subscriptionGroupTable":{"g":%s}}',
    ),
]


@pytest.mark.parametrize("value", ['["x"]', '"text"', "1e999", "{3:[[]]}"])
@pytest.mark.parametrize(("path", "read", "text"), WRONG_KIND)
def test_json_of_another_type_is_an_error(
    store: Path, folder: Folder, path: str, read: Callable[[Folder], Any], text: str, value: str
) -> None:
    """A value of another type is an error, or is ignored where any value is harmless."""
    (store / path).write_text(text % value)
    try:
        table = read(folder)
    except CorruptRecord as error:
        assert error.file == path  # noqa: PT017 - raising is allowed, not required
    else:
        assert table
        assert value == "{3:[[]]}"


@pytest.mark.parametrize("text", ['{"offsetTable":{"a":1}}', '{"offsetTable":{"":1}}'])
def test_a_delay_level_is_a_number(store: Path, folder: Folder, text: str) -> None:
    (store / paths.DELAY_OFFSETS).write_text(text)
    with pytest.raises(CorruptRecord):
        config_tables.delay_offsets(folder)


def test_a_folder_in_place_of_a_table_is_not_a_table(store: Path, folder: Folder) -> None:
    (store / paths.TOPICS).mkdir()
    assert config_tables.topics(folder) == {}
    (store / f"{paths.TOPICS}.bak").write_text(TOPICS)
    assert set(config_tables.topics(folder)) == {"TopicA", "TopicB"}


class _OneFile:
    """A folder with one file in memory, to test thousands of kinds of damage."""

    location = "memory"
    window_bytes = gap_bytes_max = 1 << 20
    reads_at_once = 1

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data

    def entries(self, path: str) -> list[Entry]:
        return []

    def entry(self, path: str) -> Entry | None:
        return Entry(path, len(self._data), 0, False) if path == self._path else None

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        assert path == self._path
        return self._data

    def lock_holder(self, path: str) -> int | None:
        return None


@TABLE
def test_any_byte_changed_gives_a_table_or_an_error(
    path: str, read: Callable[[Folder], Any], text: str
) -> None:
    data = text.encode()
    for position in range(len(data)):
        for mask in (0x01, 0x04, 0x20, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= mask
            try:
                read(_OneFile(path, bytes(changed)))
            except CorruptRecord as error:
                assert error.file == path  # noqa: PT017 - raising is allowed, not required


@TABLE
def test_a_table_cut_anywhere_is_an_error(
    path: str, read: Callable[[Folder], Any], text: str
) -> None:
    data = text.encode()
    for length in range(1, len(data)):
        with pytest.raises(CorruptRecord, match=path):
            read(_OneFile(path, data[:length]))


def test_random_bytes_are_an_error() -> None:
    source = seeds.random("config tables")
    for length in range(1, 400):
        with pytest.raises(CorruptRecord):
            config_tables.topics(_OneFile(paths.TOPICS, b"{" + source.randbytes(length)))
