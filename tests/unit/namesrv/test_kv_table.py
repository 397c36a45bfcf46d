"""Shared settings: Java's file is read, no setting is lost, and the size is limited."""

import asyncio
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from reput.errors import InvalidHeader, InvalidOption, LimitExceeded, ReputError, WriteFailed
from reput.format.codes import ResponseCode
from reput.namesrv import limits
from reput.namesrv.kv_saver import KvSaver
from reput.namesrv.kv_table import KvChange, KvTable

OF_JAVA = '{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4"},"empty":{}}}'
"""The output of ``KVConfigSerializeWrapper.toJson`` of 4.9.7."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


class Kv:
    """A table and its writer."""

    def __init__(self, table: KvTable) -> None:
        self.table = table
        self.saver = KvSaver(table)

    def begin(self, *words: str | None) -> "asyncio.Future[None]":
        """Begin a change: namespace, key, value, or None instead of a value."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: ReputError | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.saver.change(KvChange(*words), settle)  # type: ignore[arg-type]
        return done

    async def change(self, *words: str | None) -> None:
        async with asyncio.timeout(30):
            await self.begin(*words)


async def test_a_put_value_is_on_disk(path: Path) -> None:
    kv = Kv(KvTable(str(path)))
    await kv.change("n", "b", "1")
    await kv.change("n", "a", "ü\U0001f600")
    text = await asyncio.to_thread(path.read_text, "ascii")
    assert json.loads(text) == {"configTable": {"n": {"a": "ü\U0001f600", "b": "1"}}}
    read_again = KvTable(str(path))
    assert read_again.namespace("n") == {"a": "ü\U0001f600", "b": "1"}
    assert read_again.key_count == 3  # with the namespace


def test_the_file_of_a_java_name_server(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(OF_JAVA)
    table = KvTable(str(path))
    assert table.get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4"
    assert table.namespace("empty") == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"configTable":{"n":1}}', '{"configTable":{"n":{"k":1}}}', "\xff"],
)
def test_an_unreadable_file_prevents_the_start_and_is_kept(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text, "latin-1")
    with pytest.raises(InvalidOption, match=r"kvConfigPath.*kvConfig\.json.*configTable"):
        KvTable(str(path))
    assert path.read_text("latin-1") == text


def test_a_folder_in_place_of_the_file(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(InvalidOption, match="Is a directory"):
        KvTable(str(path))


def test_a_missing_file_with_a_backup_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.with_name("kvConfig.json.bak").write_text(OF_JAVA)
    with caplog.at_level(logging.WARNING):
        assert KvTable(str(path)).namespace("ORDER_TOPIC_CONFIG") is None
    assert "kvConfig.json.bak" in caplog.text


async def test_a_value_that_cannot_be_written_is_not_set(path: Path) -> None:
    kv = Kv(KvTable(str(path)))
    await kv.change("n", "k", "v")
    draft = path.with_name(f"kvConfig.json.{os.getpid()}.tmp")
    draft.mkdir()
    with pytest.raises(WriteFailed, match=r"kvConfig\.json"):
        await kv.change("n", "k", "w")
    assert "kvConfig.json" in kv.saver.failure
    with pytest.raises(WriteFailed, match=r"kvConfig\.json"):
        await kv.change("n", "k", None)
    assert kv.table.get("n", "k") == "v"
    await kv.change("n", "k", "v")  # The value it already has.
    draft.rmdir()
    await kv.change("n", "k", "w")
    assert kv.saver.failure == ""
    assert KvTable(str(path)).get("n", "k") == "w"


# --- outside of the event loop ------------------------------------------------


class SlowTable(KvTable):
    """A table whose writes wait for permission, and are counted."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.may_write = threading.Event()
        self.count = 0

    def write(self, pairs: dict[str, dict[str, str]]) -> None:
        assert self.may_write.wait(30)
        self.count += 1
        super().write(pairs)


async def test_changes_during_a_write_are_written_together(path: Path) -> None:
    table = SlowTable(str(path))
    kv = Kv(table)
    first = kv.begin("n", "first", "1")
    await asyncio.sleep(0)  # The first write is in progress.
    others = [kv.begin("n", f"k{i}", "1") for i in range(500)]
    again = kv.begin("n", "first", "1")
    assert table.get("n", "first") is None, "a value that is not on disk cannot be read"
    assert not first.done()
    table.may_write.set()
    async with asyncio.timeout(30):
        await asyncio.gather(first, *others, again)
    assert table.count == 2
    assert len(KvTable(str(path)).namespace("n") or {}) == 501


async def test_an_error_in_a_callback_does_not_prevent_other_replies(path: Path) -> None:
    kv = Kv(KvTable(str(path)))

    def fail(error: ReputError | None) -> None:
        raise ValueError("a bug")

    kv.saver.change(KvChange("n", "first", "1"), fail)
    async with asyncio.timeout(30):
        await kv.begin("n", "second", "2")
        await kv.change("n", "third", "3")
    assert len(KvTable(str(path)).namespace("n") or {}) == 3


async def test_too_many_pending_changes_are_refused(path: Path) -> None:
    table = SlowTable(str(path))
    kv = Kv(table)
    waiting = [kv.begin("n", "k", str(i)) for i in range(limits.KV_CHANGES_WAITING.maximum)]
    with pytest.raises(LimitExceeded, match="limit kv_changes_waiting") as caught:
        kv.begin("n", "k", "more")
    assert caught.value.response_code == ResponseCode.SYSTEM_BUSY
    table.may_write.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)


async def test_a_failed_save_fails_only_its_own_changes(path: Path) -> None:
    class Failing(SlowTable):
        def write(self, pairs: dict[str, dict[str, str]]) -> None:
            self.may_write.wait(30)
            self.count += 1
            if self.count == 1:
                raise WriteFailed(self.path, "no room")
            KvTable.write(self, pairs)

    table = Failing(str(path))
    kv = Kv(table)
    lost = kv.begin("n", "lost", "1")
    await asyncio.sleep(0)
    kept = kv.begin("n", "kept", "1")
    table.may_write.set()
    async with asyncio.timeout(30):
        with pytest.raises(WriteFailed):
            await lost
        await kept
    assert KvTable(str(path)).namespace("n") == {"kept": "1"} == table.namespace("n")


# --- limits -------------------------------------------------------------------


def test_the_file_is_bounded(path: Path) -> None:
    table = KvTable(str(path), limits.KV_TABLE_BYTES.at(10_000))
    changes = (KvChange("n", f"k{i}", "\x01ü" * 10) for i in range(10_000))
    with pytest.raises(LimitExceeded, match=r"limit kv_table_bytes; reputKvBytesMax changes it"):
        list(map(table.stage, changes))
    table.write(table.staged())
    assert path.stat().st_size <= 11_000
    size = table.size
    with pytest.raises(LimitExceeded):
        table.stage(KvChange("n", "k0", "v" * 10_000))
    assert table.size == size
    table.stage(KvChange("n", "k0", "short"))
    for i in range(1, table.key_count - 1):
        table.stage(KvChange("n", f"k{i}", None))
    table.stage(KvChange("n", "k1", "v" * 5_000))


def test_names_can_be_written(path: Path) -> None:
    table = KvTable(str(path))
    for change in (KvChange("\ud800", "k", "v"), KvChange("n", "k", "\ud800")):
        with pytest.raises(InvalidHeader, match="contains invalid characters"):
            table.stage(change)


def test_an_oversized_file_is_still_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"configTable": {"n": {"k": "v" * 1_000, "l": "v"}}}))
    table = KvTable(str(path), limits.KV_TABLE_BYTES.at(100))
    assert table.get("n", "l") == "v"
    with pytest.raises(LimitExceeded):
        table.stage(KvChange("n", "more", "v"))
    table.stage(KvChange("n", "k", None))
    table.stage(KvChange("n", "more", "v"))
