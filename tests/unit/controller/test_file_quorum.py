"""The file of a single controller: revisions, fencing numbers, crashes, damage."""

import asyncio
import random
import zlib
from pathlib import Path

import pytest

from lossy_disk import Loss, LossyDisk
from reput.controller.file_quorum import FILE_NAME, FileQuorum
from reput.controller.quorum import Conflict, Deposed, StoredValue
from reput.errors import CorruptRecord, StoreUnavailable, WriteFailed
from reput.store.files.disk import Disk


class _CountedDisk(Disk):
    """A disk that counts its writes, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.fails = False

    def replace(self, path: str, data: bytes) -> None:
        self.count += 1
        if self.fails:
            raise WriteFailed(path, "cannot write: Input/output error")
        super().replace(path, data)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "state")


async def test_a_value_is_kept(folder: str) -> None:
    store = FileQuorum(folder, Disk())
    fence = await store.lead()
    first = await store.compare_and_set("a", b'{"x":1}', revision=0, fence=fence)
    second = await store.compare_and_set("a", b'{"x":2}', revision=first, fence=fence)
    assert second > first
    await store.compare_and_set("b", b"[]", revision=0, fence=fence)
    await store.close()
    again = FileQuorum(folder, Disk())
    values = await again.read()
    assert values["a"] == StoredValue(b'{"x":2}', second)
    assert await again.lead() > fence
    await again.compare_and_set("a", None, revision=second, fence=fence + 1)
    assert set(await again.read()) == {"b"}
    later = await again.compare_and_set("a", b"{}", revision=0, fence=fence + 1)
    assert later > second
    await again.close()


async def test_another_revision_or_fence_is_refused(folder: str) -> None:
    store = FileQuorum(folder, Disk())
    fence = await store.lead()
    revision = await store.compare_and_set("a", b"1", revision=0, fence=fence)
    for wrong in (0, revision + 1):
        with pytest.raises(Conflict, match=f"a has revision {revision}, not {wrong}"):
            await store.compare_and_set("a", b"2", revision=wrong, fence=fence)
    with pytest.raises(Deposed):
        await store.compare_and_set("a", b"2", revision=revision, fence=fence - 1)
    assert await store.read() == {"a": StoredValue(b"1", revision)}
    await store.close()


async def test_changes_that_come_together_are_written_together(folder: str) -> None:
    disk = _CountedDisk()
    store = FileQuorum(folder, disk)
    fence = await store.lead()
    disk.count = 0
    changes = [
        asyncio.create_task(store.compare_and_set(str(key), b"1", revision=0, fence=fence))
        for key in range(20)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Conflict, match="is being changed"):
        await store.compare_and_set("3", b"2", revision=0, fence=fence)
    await asyncio.gather(*changes)
    assert len(await store.read()) == 20
    assert disk.count <= 2
    await store.close()


async def test_a_change_that_cannot_be_written_has_no_effect(folder: str) -> None:
    disk = _CountedDisk()
    store = FileQuorum(folder, disk)
    fence = await store.lead()
    revision = await store.compare_and_set("a", b"1", revision=0, fence=fence)
    disk.fails = True
    with pytest.raises(WriteFailed):
        await store.compare_and_set("a", b"2", revision=revision, fence=fence)
    assert "Input/output error" in store.failure
    assert (await store.read())["a"].value == b"1"
    disk.fails = False
    await store.compare_and_set("a", b"3", revision=revision, fence=fence)
    assert store.failure == ""
    await store.close()


async def test_a_power_cut_forgets_nothing_that_was_answered(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    chance = random.Random(7)
    for loss in Loss:
        disk = LossyDisk(root)
        store = FileQuorum(str(root / loss.name), disk)
        fence = await store.lead()
        revision = 0
        for value in range(5):
            revision = await store.compare_and_set(
                "a", str(value).encode(), revision=revision, fence=fence
            )
        disk.lose_power(chance, loss, before=store.abandon)
        again = FileQuorum(str(root / loss.name), disk)
        assert await again.read() == {"a": StoredValue(b"4", revision)}
        assert await again.lead() > fence
        await again.close()


async def test_a_second_controller_is_refused(folder: str) -> None:
    store = FileQuorum(folder, Disk())
    with pytest.raises(StoreUnavailable, match="is in use: another controller"):
        FileQuorum(folder, Disk())
    await store.close()
    await FileQuorum(folder, Disk()).close()


async def test_damage_and_later_versions_are_refused(folder: str) -> None:
    store = FileQuorum(folder, Disk())
    fence = await store.lead()
    await store.compare_and_set("a", b'{"x":1}', revision=0, fence=fence)
    await store.close()
    path = Path(folder) / FILE_NAME
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-10] ^= 1
    rest = b'{"entries":3}\n'
    cases = {
        bytes(flipped): "the checksum is wrong",
        whole[:-3]: "the checksum is wrong",
        b"": "no state of a controller",
        whole.replace(b"controller 1 ", b"controller 2 "): "version b'2' of the state",
        b"reput-controller 1 %d\n" % zlib.crc32(rest) + rest: "Expected `object`",
    }
    for data, reason in cases.items():
        path.write_bytes(data)
        with pytest.raises(CorruptRecord, match=reason):
            FileQuorum(folder, Disk())
    path.write_bytes(whole)
    await FileQuorum(folder, Disk()).close()


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(WriteFailed, match="create the folder"):
        FileQuorum(str(tmp_path / "state"), Disk())
