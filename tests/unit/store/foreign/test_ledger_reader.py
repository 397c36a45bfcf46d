"""Stores with DLedger that official brokers wrote: every message, and a verdict for each fault."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import foreign_stores
from cases import each
from reput.cli import main as cli
from reput.errors import StoreUnavailable
from reput.format import dledger_entry as entries
from reput.store.foreign import verification
from reput.store.foreign.ledger_reader import LedgerReader
from reput.store.foreign.opening import open_reader
from reput.store.reader import StoreReader
from reput.store.verify import Severity

VERSION = "5.5.0"
HEADER_BYTES = 48
FIRST = "dledger-n0/data/00000000000000000000"
Damage = Callable[[Path], None]


@pytest.mark.parametrize(("version", "name"), foreign_stores.IN_LEDGER)
def test_every_message_is_where_java_says(version: str, name: str, tmp_path: Path) -> None:
    reader = open_reader(str(foreign_stores.unpack(version, name, tmp_path)))
    for queue, entry in foreign_stores.manifest(version, name)["queues"].items():
        topic, _, queue_id = queue.rpartition("/")
        for expected in entry["messages"]:
            place = topic, int(queue_id), expected["queue_offset"]
            message = reader.message_in_queue(*place)
            assert message.physical_offset == expected["physical_offset"], place
            assert message.store_size == expected["store_size"]
            assert message.prepared_transaction_offset == expected["prepared_transaction_offset"]
            assert hashlib.sha256(message.plain_body()).hexdigest() == expected["body_sha256"]
    report = verification.verify(reader, progress=lambda *_: None)
    assert report.severity <= Severity.NOTE
    assert not report.holes
    plain_paths = [file.path for file in report.files if file.path.startswith("commitlog/")]
    assert len(plain_paths) == (6 if name == "mixed" else 0), "entries are in their own files"


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_entries_without_a_quorum_are_shown(version: str, tmp_path: Path) -> None:
    reader = open_reader(str(foreign_stores.unpack(version, "uncommitted", tmp_path)))
    assert isinstance(reader, LedgerReader)
    state = reader.ledger_state
    assert state.last_index is not None
    assert state.committed_index is not None
    uncommitted = [*reader.uncommitted()]
    assert len(uncommitted) == state.last_index - state.committed_index
    bodies = [message.plain_body() for message in uncommitted if message.topic == "Orders"]
    assert bodies == [b"without a quorum %d" % number for number in range(3)]


def positions(root: Path) -> list[int]:
    """Return the positions of the headers in the first file, without the reader."""
    data, headers, place = (root / FIRST).read_bytes(), [], 0
    while struct.unpack_from(">i", data, place)[0] == 1:
        headers.append(place)
        place += struct.unpack_from(">i", data, place + 4)[0]
    return headers


def write(root: Path, path: str, position: int, data: bytes) -> None:
    with (root / path).open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip_magic(root: Path) -> None:
    write(root, FIRST, positions(root)[10], struct.pack(">i", 7))


def move_entry(root: Path) -> None:
    write(root, FIRST, positions(root)[10] + 24, struct.pack(">q", 5))


def flip_body(root: Path) -> None:
    start = positions(root)[10]
    data = (root / FIRST).read_bytes()
    write(root, FIRST, data.index(b"....", start), b"A")


def skip_index(root: Path) -> None:
    write(root, FIRST, positions(root)[10] + 8, struct.pack(">q", 99))


def cut_index(root: Path) -> None:
    file = root / "dledger-n0/index/00000000000000000000"
    with file.open("r+b") as index:
        index.truncate(5 * 32)


def change_index(root: Path) -> None:
    write(root, "dledger-n0/index/00000000000000000000", 6 * 32 + 4, struct.pack(">q", 1))


def break_checkpoint(root: Path) -> None:
    (root / "dledger-n0/checkpoint").write_text("endIndex=x")


def add_foreign_file(root: Path) -> None:
    (root / "dledger-n0/data/notes.txt").write_text("a note")


def half_of_an_entry(root: Path) -> None:
    """As a crash leaves it: the last entry has a header, and no more."""
    (root / "abort").touch()
    last = max((root / "dledger-n0/data").iterdir())
    data = last.read_bytes()
    end = len(data.rstrip(b"\0"))
    start = data.rindex(struct.pack(">i", 1), 0, end - 200)
    while struct.unpack_from(">q", data, start + 24)[0] != int(last.name) + start:
        start = data.rindex(struct.pack(">i", 1), 0, start)
    write(root, f"dledger-n0/data/{last.name}", start + 60, bytes(end - start - 60))


FAULTS: list[tuple[Damage, Severity, str]] = [
    (flip_magic, Severity.DAMAGE, "a DLedger entry has magic 7; allowed is 1"),
    (move_entry, Severity.DAMAGE, "a DLedger entry has position 5; allowed is its own"),
    (flip_body, Severity.DAMAGE, "BODYCRC"),
    (skip_index, Severity.DAMAGE, "entry 99 of term 0 follows entry 9 of term 0; allowed is 10"),
    (cut_index, Severity.WARNING, "the index ends before entry 5"),
    (change_index, Severity.WARNING, "unit 6 of the index is not that of its entry"),
    (break_checkpoint, Severity.WARNING, "no numbers endIndex and committedIndex"),
    (add_foreign_file, Severity.WARNING, "no store file"),
    (half_of_an_entry, Severity.WARNING, "the record of a DLedger entry is half-written"),
]


@pytest.mark.parametrize(("damage", "severity", "text"), FAULTS)
def test_faults_are_named(tmp_path: Path, damage: Damage, severity: Severity, text: str) -> None:
    root = foreign_stores.unpack(VERSION, "single", tmp_path)
    damage(root)
    report = verification.verify(open_reader(str(root)), progress=lambda *_: None)
    findings = [finding for finding in report.findings if text in finding.text]
    assert [finding.severity for finding in findings][:1] == [severity], report.findings
    assert all(finding.path.startswith("dledger-n0") for finding in findings)


def test_messages_after_damage_are_found(tmp_path: Path) -> None:
    root = foreign_stores.unpack(VERSION, "single", tmp_path)
    whole = sum(1 for _ in open_reader(str(root)).messages())
    flip_magic(root)
    reader = open_reader(str(root))
    assert sum(1 for _ in reader.messages()) == whole - 1
    (hole,) = (hole for batch in reader.walk() for hole in batch.damage)
    start, following = positions_before_damage(root)
    assert (hole.physical_offset, hole.end) == (start, following)


def positions_before_damage(root: Path) -> tuple[int, int]:
    """Return the position of the damaged header, and of the next one by its neighbour's size."""
    start = (
        positions(root)[-1]
        + struct.unpack_from(">i", (root / FIRST).read_bytes(), positions(root)[-1] + 4)[0]
    )
    return start, start + struct.unpack_from(">i", (root / FIRST).read_bytes(), start + 4)[0]


def second_member(root: Path) -> None:
    other = root / "dledger-n1/data"
    other.mkdir(parents=True)
    (other / "00000000000000000000").write_bytes(b"")


def overlap(root: Path) -> None:
    (root / "commitlog").mkdir(exist_ok=True)
    (root / "commitlog/00000000000000000000").write_bytes(bytes(100))


def no_files(root: Path) -> None:
    for file in (root / "dledger-n0/data").iterdir():
        file.unlink()


@each(
    ("change", "text"),
    [
        (second_member, "several DLedger members, dledger-n0, dledger-n1; move away all but one"),
        (overlap, "ends after physical offset 0, where dledger-n0/data/0{20} begins; allowed are"),
        (no_files, "storePathDLedgerCommitLog is set, link or copy its files there"),
    ],
)
def test_folders_that_contradict_themselves_are_refused(
    tmp_path_factory: pytest.TempPathFactory, change: Damage, text: str
) -> None:
    root = foreign_stores.unpack(VERSION, "single", tmp_path_factory.mktemp("store"))
    change(root)
    with pytest.raises(StoreUnavailable, match=text):
        open_reader(str(root))


def test_others_name_the_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = foreign_stores.unpack(VERSION, "uncommitted", tmp_path)
    with pytest.raises(StoreUnavailable, match="reput pipeline convert --from dledger"):
        StoreReader.open(str(root))
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"storePathRootDir={root}\nmappedFileSizeCommitLog=65536\nmaxMessageSize=40000\n"
    )
    assert cli.run(["broker", "-c", str(conf), "--check"]) == 2
    text = capsys.readouterr().out
    assert f"reput pipeline convert --from dledger --store {root}" in text
    assert "with the last entry of the highest term" in text
    assert cli.run(["broker", "-c", str(conf)]) == 2
    assert "reput pipeline convert --from dledger" in capsys.readouterr().err
    assert not (root / "commitlog").exists(), "a refused start leaves no trace"


def test_a_scan_stops_before_what_is_no_entry() -> None:
    assert entries.HEADER.size == HEADER_BYTES
    chain = entries.scan(bytes(200), 0, 65536, 200, 10)
    assert not len(chain.positions)
    assert chain.fault == "zeros, where the header of a DLedger entry should be"
    blank = entries.BLANK.pack(-1, 65536 - 1000) + bytes(100)
    assert entries.scan(blank, 1000, 65536, 65536, 10).is_blank


def test_leftovers_of_an_earlier_term_are_after_the_end(tmp_path: Path) -> None:
    """As on a member that has cut entries, since its leader had others."""
    root = foreign_stores.unpack(VERSION, "uncommitted", tmp_path)
    last = positions(root)[-1]
    data = bytearray((root / FIRST).read_bytes()[last:].rstrip(b"\0"))
    data += bytes(struct.unpack_from(">i", data, 4)[0] - len(data))
    end = last + len(data)
    index, term = struct.unpack_from(">qq", data, 8)
    struct.pack_into(">qqq", data, 8, index + 1, term - 1, end)
    struct.pack_into(">q", data, HEADER_BYTES + 28, end + HEADER_BYTES)
    write(root, FIRST, end, bytes(data))
    reader = open_reader(str(root))
    assert reader.end_offset == end
    assert reader.tail.torn is not None
    assert (reader.tail.torn.physical_offset, reader.tail.torn.length) == (end, len(data))
