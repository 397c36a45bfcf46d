"""Index files: inferred sizes, lookups by key and time, damage."""

from collections.abc import Iterable
from pathlib import Path

import pytest

import golden
import seeds
import store_builder
from reput.errors import CorruptRecord, ReputError
from reput.format import index_entry
from reput.format.message import StoredMessage
from reput.store.files.files import Folder, open_folder
from reput.store.index.index_view import IndexFileView, IndexView
from reput.store.reader import END_OF_TIME_MS, StoreReader
from store_builder import IndexFile, MemoryFolder, message

STORE = pytest.mark.parametrize(("version", "name"), golden.STORES)
NAME = "20231114221320000"
HOUR_MS = 3_600_000


def view_of(data: bytes | bytearray) -> IndexFileView:
    folder = MemoryFolder({f"index/{NAME}": data})
    return IndexView(folder).files[0]


def filled(slots: int, entries: int, puts: Iterable[tuple[str, int]]) -> IndexFile:
    """Return an index file with the given (key, physical offset) pairs, a second apart."""
    file = IndexFile(slots, entries)
    for i, (key, physical_offset) in enumerate(puts):
        store_ms = store_builder.START_MS + 1000 * i
        file.put(key, physical_offset, store_ms, counts_puts=False)
    return file


def find_offsets(view: IndexFileView, key: str) -> list[int]:
    return list(view.chain(index_entry.key_hash(key)))


def reader_of(
    messages: Iterable[StoredMessage], *, slots: int = 7, entries: int = 10
) -> tuple[StoreReader, list[StoredMessage]]:
    """Return a reader of a store in memory that has only log and index."""
    placed = store_builder.place(messages, 4096)
    files = {
        f"commitlog/{start:020d}": data
        for start, data in store_builder.log_files(placed, 4096).items()
    }
    for file in store_builder.index_files(placed, slots, entries):
        assert f"index/{file.name}" not in files
        files[f"index/{file.name}"] = file.pack()
    return StoreReader(MemoryFolder(files)), placed


# --- Java's own files -----------------------------------------------------


def java_headers(version: str, name: str) -> list[tuple[str, index_entry.Header]]:
    return [
        (
            entry["name"],
            index_entry.Header(
                entry["beginTimestamp"],
                entry["endTimestamp"],
                entry["beginPhyOffset"],
                entry["endPhyOffset"],
                entry["hashSlotCount"],
                entry["indexCount"],
            ),
        )
        for entry in golden.manifest(version, name).get("index", [])
    ]


@STORE
def test_headers(version: str, name: str) -> None:
    files = IndexView(open_folder(str(golden.unpack(version, name)))).files
    if "index" in golden.manifest(version, name):
        assert [(file.name, file.header) for file in files] == java_headers(version, name)
    assert files


@STORE
def test_the_number_of_slots_is_the_configured_one(version: str, name: str) -> None:
    config = golden.manifest(version, name)["config"]
    for file in IndexView(open_folder(str(golden.unpack(version, name)))).files:
        assert file.slot_count == int(config["maxHashSlotNum"])
        assert file.size == 40 + 4 * file.slot_count + 20 * int(config["maxIndexNum"])


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_the_builder_writes_the_files_of_java(version: str) -> None:
    store = golden.unpack(version, "clean")
    config = golden.manifest(version, "clean")["config"]
    built = store_builder.index_files(
        StoreReader.open(str(store)).messages(),
        int(config["maxHashSlotNum"]),
        int(config["maxIndexNum"]),
        tag_keys=version == "5.5.0",
        counts_puts=version == "4.5.2",
    )
    stored = sorted((store / "index").iterdir())
    assert [file.pack() for file in built] == [path.read_bytes() for path in stored]


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_entries_are_those_of_the_messages(version: str) -> None:
    reader = StoreReader.open(str(golden.unpack(version, "clean")))
    expected = [
        (store_builder.index_hash(key), indexed.physical_offset)
        for indexed in reader.messages()
        for key in store_builder.index_keys(indexed, tag_keys=version == "5.5.0")
    ]
    stored = [
        (int(entry["key_hash"]), int(entry["physical_offset"]))
        for file in reader.index.files
        for entry in file.entries()
    ]
    assert stored == expected


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_every_key_leads_to_its_messages(version: str) -> None:
    reader = StoreReader.open(str(golden.unpack(version, "clean")))
    keys: dict[str, set[int]] = {}
    for stored in reader.messages():
        for key in store_builder.index_keys(stored, tag_keys=version == "5.5.0"):
            keys.setdefault(key, set()).add(stored.physical_offset)
    assert len(keys) > 900
    for key, physical_offsets in keys.items():
        candidates = reader.index.candidates(key, 0, END_OF_TIME_MS)
        assert physical_offsets <= set(candidates)
        assert candidates == sorted(set(candidates))


# --- the number of slots, which no file says ------------------------------


@pytest.mark.slow
def test_slots_are_inferred_for_any_pair_of_numbers() -> None:
    """Small files, whose header fits several proportions, and keys of a record at 0 too."""
    source = seeds.random("slots")
    for round_ in range(1500):
        slots = source.choice((1, 2, 3, 5, 7, 10, 16, 64, 100, 101, 499))
        entries = source.choice((2, 3, 4, 5, 8, 21, 64, 100, 333))
        count = source.randint(1, entries - 1)
        physical_offset = source.choice((0, 0, 1, 5_000_000_000))
        puts = []
        while len(puts) < count:
            keys = source.choice((1, 1, 2, 4, 9))
            puts += [(f"T#{source.randrange(count)}", physical_offset) for _ in range(keys)]
            physical_offset += source.choice((100, 256, 1 << 16, 1 << 32))
        view = view_of(filled(slots, entries, puts[:count]).pack())
        assert view.slot_count == slots, (round_, slots, entries, count)
        hashes = [store_builder.index_hash(key) for key, _ in puts[:count]]
        for key, _ in puts[:count:10]:
            hash_ = store_builder.index_hash(key)
            expected = [
                entry_offset
                for other, (_, entry_offset) in zip(hashes, puts, strict=False)
                if other == hash_
            ]
            assert find_offsets(view, key) == expected[::-1]


@pytest.mark.parametrize(("slots", "entries"), [(5_000_000, 20_000_000), (20_000, 80_000)])
def test_files_of_usual_proportions_are_read_at_a_few_places(
    tmp_path: Path, slots: int, entries: int
) -> None:
    """The default file has 420,000,040 bytes; it is sparse, and stays so."""
    file = filled(1, 3, [("T#a", 0), ("T#b", 300)])
    path = tmp_path / "index" / NAME
    path.parent.mkdir()
    slot = {}
    with path.open("wb") as out:
        out.truncate(40 + 4 * slots + 20 * entries)
        out.write(file.pack()[:40])
        for number, (key_hash, physical_offset, seconds, _) in enumerate(file.entry_values):
            if number:
                out.seek(40 + 4 * (key_hash % slots))
                out.write(number.to_bytes(4, "big"))
                out.seek(40 + 4 * slots + 20 * number)
                out.write(index_entry.ENTRY.pack(key_hash, physical_offset, seconds, 0))
                slot[number] = key_hash % slots
    assert len(set(slot.values())) == 2
    assert entries < 20_000_000 or path.stat().st_size == 420_000_040
    (view,) = IndexView(open_folder(str(tmp_path))).files
    assert view.slot_count == slots
    assert (find_offsets(view, "T#a"), find_offsets(view, "T#b"), find_offsets(view, "T#c")) == (
        [0],
        [300],
        [],
    )


@pytest.mark.parametrize(("slots", "entries"), [(50_000, 10), (30_000, 70_000), (1, 50_000)])
def test_files_of_other_proportions(slots: int, entries: int) -> None:
    puts = [(f"T#{i}", i * 100) for i in range(9)]
    view = view_of(filled(slots, entries, puts).pack())
    assert view.slot_count == slots
    assert all(
        find_offsets(view, key)[-1:] == [physical_offset]
        or physical_offset in find_offsets(view, key)
        for key, physical_offset in puts
    )


def test_a_file_without_entries_has_none() -> None:
    """The header of a new file may have the times of the file before it."""
    before = filled(5, 4, [("T#a", 0), ("T#b", 100), ("T#c", 200)])
    for file in (IndexFile(5, 4), IndexFile(5, 4, before)):
        view = view_of(file.pack())
        assert view.slot_count == 0
        assert find_offsets(view, "T#a") == []
        assert len(view.entries()) == 0
        assert not view.overlaps(0, END_OF_TIME_MS)
    assert find_offsets(view_of(b""), "T#a") == []
    assert not view_of(b"").overlaps(0, END_OF_TIME_MS)


def test_the_count_in_a_header_starts_at_one_or_zero() -> None:
    """On disk it is 0 until the first put, and 1 after a broker has loaded and closed the file."""
    data = bytearray(IndexFile(5, 4).pack())
    data[36:40] = (1).to_bytes(4, "big")
    assert view_of(data).header.entry_count == 0
    assert find_offsets(view_of(data), "T#a") == []


def test_only_names_of_17_digits_are_index_files() -> None:
    data = filled(3, 5, [("T#a", 0)]).pack()
    folder = MemoryFolder(
        {
            f"index/{NAME}": data,
            "index/.DS_Store": b"x",
            f"index/{NAME}.tmp": b"x",
            "index/20231114221320001/stray": b"x",
        }
    )
    assert [file.name for file in IndexView(folder).files] == [NAME]


# --- time -----------------------------------------------------------------


def brute_force(
    messages: list[StoredMessage], topic: str, key: str, begin_ms: int, end_ms: int
) -> list[StoredMessage]:
    return [
        candidate
        for candidate in messages
        if candidate.topic == topic
        and (key == candidate.unique_key or key in candidate.keys)
        and begin_ms <= candidate.store_timestamp <= end_ms
    ]


def timed(gaps_ms: Iterable[int]) -> list[StoredMessage]:
    """Return messages with one key in common, ``gaps_ms`` apart."""
    time_ms = store_builder.START_MS
    messages = []
    for i, gap in enumerate(gaps_ms):
        time_ms += gap
        messages.append(message("T", b"x", keys=f"k{i} all", store_timestamp=time_ms))
    return messages


def test_every_file_that_overlaps_the_time_is_searched() -> None:
    """A file overlaps if it begins before the window's end and ends after its begin (rmq#9233)."""
    reader, placed = reader_of(timed([5000] * 30), entries=9)
    assert len(reader.index.files) > 5
    times = [stored.store_timestamp for stored in placed]
    for begin in times[::3]:
        for end in times[1::4]:
            expected = brute_force(placed, "T", "all", begin, end)
            assert reader.messages_by_key("T", "all", begin, end).messages == expected
    whole = reader.messages_by_key("T", "all")
    assert whole == (placed, [])
    outside = reader.messages_by_key("T", "all", times[-1] + 1)
    assert outside == ([], [])
    assert reader.messages_by_key("T", "all", 0, times[0] - 1) == ([], [])


@pytest.mark.parametrize("gap", [1, 7, 333, 999, 1000, 1001, 1999])
def test_times_of_entries_are_whole_seconds_and_queries_are_not(gap: int) -> None:
    """Java misses a message when the query begins at its exact time (rmq#5174)."""
    reader, placed = reader_of(timed([gap] * 25), entries=9)
    for stored in placed:
        time_ms = stored.store_timestamp
        assert stored in reader.messages_by_key("T", "all", time_ms, time_ms).messages
        for begin, end in (
            (time_ms, END_OF_TIME_MS),
            (0, time_ms),
            (time_ms - 1, time_ms + 1),
            (time_ms + 1, time_ms - 1),
        ):
            expected = brute_force(placed, "T", "all", begin, end)
            assert reader.messages_by_key("T", "all", begin, end).messages == expected


def test_the_first_entry_of_a_rolled_file() -> None:
    """Its time counts from the end of the file before: after 8 idle hours it is 8 hours late."""
    gaps = [1000] * 7 + [8 * HOUR_MS] + [1000] * 3
    reader, placed = reader_of(timed(gaps), entries=8, slots=3)
    first, second, *_ = reader.index.files
    seconds = int(second.entries()[0]["seconds"])
    owner = int(second.entries()[0]["physical_offset"])
    (late,) = (stored for stored in placed if stored.physical_offset == owner)
    decoded = second.header.begin_timestamp + 1000 * seconds
    before = next(stored for stored in reversed(placed) if stored.physical_offset < owner)
    gap_in_roll = late.store_timestamp - before.store_timestamp
    assert decoded > late.store_timestamp + gap_in_roll // 2 or gap_in_roll < 2 * HOUR_MS
    for stored in placed:
        time_ms = stored.store_timestamp
        for begin, end in (
            (time_ms, time_ms),
            (time_ms - 500, time_ms + 500),
            (time_ms - HOUR_MS, time_ms + HOUR_MS),
        ):
            expected = brute_force(placed, "T", "all", begin, end)
            assert reader.messages_by_key("T", "all", begin, end).messages == expected
    assert first.header.end_timestamp <= second.header.begin_timestamp


def test_with_the_roll_in_the_idle_time() -> None:
    """The message after the pause is the first of a file, and its time finds it."""
    for full in range(2, 12):
        gaps = [1000] * full + [8 * HOUR_MS] + [1000] * 3
        messages = [
            message("T", keys="all", store_timestamp=stored.store_timestamp)
            for stored in timed(gaps)
        ]
        reader, placed = reader_of(messages, entries=full + 1)
        rolled = reader.index.files[1]
        late = placed[full]
        assert rolled.header.begin_physical_offset == late.physical_offset
        assert int(rolled.entries()[0]["seconds"]) == 8 * HOUR_MS // 1000
        time_ms = late.store_timestamp
        assert reader.messages_by_key("T", "all", time_ms - 1, time_ms + 1) == ([late], [])


# --- hashes ---------------------------------------------------------------


def test_keys_and_topics_with_the_same_hash() -> None:
    """``Aa`` and ``BB`` have the same hash, and so have all texts that differ only in these."""
    assert store_builder.java_hash("Aa") == store_builder.java_hash("BB")
    messages = [
        message(topic, b"x", keys=key)
        for topic in ("TAa", "TBB", "T")
        for key in ("Aa", "BB", "AaAa", "AaBB", "BBBB", "Aa BB", "C")
    ]
    reader, placed = reader_of(messages, entries=100)
    for topic in ("TAa", "TBB", "T", "TC"):
        for key in ("Aa", "BB", "AaAa", "AaBB", "BBAa", "BBBB", "C", "D", "Aa BB"):
            expected = brute_force(placed, topic, key, 0, END_OF_TIME_MS)
            assert reader.messages_by_key(topic, key) == (expected, [])
    candidates = reader.index.candidates("TAa#Aa", 0, END_OF_TIME_MS)
    assert len(candidates) > len(brute_force(placed, "TAa", "Aa", 0, END_OF_TIME_MS))


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_foreign_messages_are_filtered_in_golden_stores(version: str) -> None:
    """Java returns foreign messages for these keys; here only messages with the key match."""
    manifest = golden.manifest(version, "clean")
    stored = {java["commitLogOffset"]: java for java in golden.messages(version, "clean")}
    reader = StoreReader.open(str(golden.unpack(version, "clean")))
    collisions = [
        query
        for query in manifest["queries"]
        if len(query["indexOffsets"]) < query["max"]
        and any(
            stored[physical_offset]["topic"] != query["topic"]
            or query["key"]
            not in [
                stored[physical_offset]["uniqKey"],
                *(stored[physical_offset]["keys"] or "").split(),
            ]
            for physical_offset in query["messageOffsets"]
        )
    ]
    assert len(collisions) >= 4
    for query in collisions:
        hits = reader.messages_by_key(query["topic"], query["key"], query["begin"], query["end"])
        offsets = {java.physical_offset for java in hits.messages}
        for physical_offset in offsets | set(query["messageOffsets"]):
            java = stored[physical_offset]
            keys = [java["uniqKey"], *(java["keys"] or "").split()]
            is_in_time = query["begin"] <= java["storeTimestamp"] <= query["end"]
            is_hit = java["topic"] == query["topic"] and query["key"] in keys and is_in_time
            assert is_hit == (physical_offset in offsets)


def test_hashes_without_an_absolute_and_of_zero() -> None:
    """``polygenelubricants`` hashes to Integer.MIN_VALUE, which counts as 0."""
    assert store_builder.java_hash("polygenelubricants") == -(1 << 31)
    assert store_builder.index_hash("polygenelubricants") == 0
    view = view_of(filled(4, 9, [("polygenelubricants", 100), ("T#a", 200)]).pack())
    assert find_offsets(view, "polygenelubricants") == [100]


# --- damage ---------------------------------------------------------------

PUTS = [(f"T#{i % 9}", 100 + 50 * (i // 2)) for i in range(30)]


def expected_hits(key: str) -> list[int]:
    return [physical_offset for other, physical_offset in reversed(PUTS) if other == key]


def lookups(data: bytes | bytearray) -> dict[str, list[int] | None]:
    """Return the hits of each key; None is an error."""
    view = view_of(data)
    hits: dict[str, list[int] | None] = {}
    for key in {key for key, _ in PUTS}:
        try:
            hits[key] = find_offsets(view, key) if view.overlaps(0, END_OF_TIME_MS) else []
        except CorruptRecord as error:
            assert error.file == f"index/{NAME}"  # noqa: PT017 - raising is allowed
            hits[key] = None
    return hits


def test_any_byte_changed_gives_hits_or_errors() -> None:
    """A changed byte causes wrong hits or an error, but seldom loses a hit silently.

    Hits are candidates, so wrong ones do no harm. Only changes of bytes without redundancy may lose
    hits silently: header times, a slot or a previous entry that points to another entry of the same
    slot, and an entry's own hash and offset.
    """
    slots, entries = 8, 40
    data = filled(slots, entries, PUTS).pack()
    assert lookups(data) == {key: expected_hits(key) for key, _ in PUTS}
    for position in range(len(data)):
        for mask in (0xFF, 0x80, 0x01, 0x10):
            changed = bytearray(data)
            changed[position] ^= mask
            for key, hits in lookups(changed).items():
                if hits is None or set(expected_hits(key)) <= set(hits):
                    continue
                number, field = divmod(position - 40 - 4 * slots, 20)
                if position >= 40 + 4 * slots and field < 16:
                    assert key == PUTS[number - 1][0]
                    assert len(set(expected_hits(key)) - set(hits)) == 1
                else:
                    assert not 16 <= position < 40, (
                        "begin and end offsets and the count are checked"
                    )


def test_a_chain_that_does_not_lead_to_older_entries_is_an_error() -> None:
    """The chain does not end silently, and the lookup does not loop forever."""
    file = filled(1, 10, [("T#a", 100), ("T#b", 200), ("T#c", 300)])
    for number, previous in ((3, 3), (2, 3), (1, 1), (3, -1), (2, 99), (1, 1 << 30)):
        broken = filled(1, 10, [("T#a", 100), ("T#b", 200), ("T#c", 300)])
        *values, _ = broken.entry_values[number]
        broken.entry_values[number] = (*values, previous)  # type: ignore[assignment]
        with pytest.raises(CorruptRecord, match=r"is not of slot 0|is cut"):
            find_offsets(view_of(broken.pack()), "T#zzz")
    assert find_offsets(view_of(file.pack()), "T#zzz") == []


def test_a_slot_without_an_entry_is_an_error() -> None:
    file = filled(4, 10, [("T#a", 100), ("T#b", 200), ("T#c", 300)])
    empty = file.slot_values.index(0)
    key = next(f"T#{i}" for i in range(99) if store_builder.index_hash(f"T#{i}") % 4 == empty)
    assert find_offsets(view_of(file.pack()), key) == []
    for value in (-1, 1, 3, 9, 10, 1 << 30):
        file.slot_values[empty] = value
        with pytest.raises(CorruptRecord, match=f"index/{NAME}"):
            find_offsets(view_of(file.pack()), key)


def test_a_truncated_file_is_an_error() -> None:
    data = filled(8, 40, PUTS).pack()
    for length in range(1, len(data)):
        hits = lookups(data[:length])
        entries_end = 40 + 4 * 8 + 20 * (len(PUTS) + 1)
        whole_entries = (len(data) - length) % 20 == 0 and length >= entries_end
        for key, offsets in hits.items():
            assert offsets == (expected_hits(key) if whole_entries else None), length


@pytest.mark.parametrize("next_entry", [-1, -(1 << 31), 1 << 30, (1 << 31) - 1, 41])
def test_an_impossible_count_is_an_error(next_entry: int) -> None:
    data = bytearray(filled(8, 40, PUTS).pack())
    data[36:40] = next_entry.to_bytes(4, "big", signed=True)
    assert set(lookups(data).values()) == {None}


def test_random_bytes_are_an_error() -> None:
    source = seeds.random("index bytes")
    for length in (1, 39, 40, 41, 60, 500, 5000):
        for _ in range(20):
            view = view_of(source.randbytes(length))
            try:
                assert find_offsets(view, "T#a") == []
            except ReputError as error:
                assert isinstance(error, CorruptRecord)  # noqa: PT017 - raising is allowed


def test_an_error_names_the_file_and_other_files_do_not_hide_it() -> None:
    good = filled(4, 9, [("T#a", 100)]).pack()
    folder: Folder = MemoryFolder({f"index/{NAME}": good, "index/20231114221320999": b"x" * 30})
    with pytest.raises(CorruptRecord, match="index/20231114221320999: index header is cut"):
        IndexView(folder).candidates("T#a", 0, END_OF_TIME_MS)


# --- beside a running broker ----------------------------------------------


def test_entries_put_after_the_header_was_read_do_not_hide_older_ones() -> None:
    file = IndexFile(2, 50)
    data = bytearray(file.pack())
    folder = MemoryFolder({f"index/{NAME}": data})
    seen: dict[int, IndexFileView] = {}
    expected: list[int] = []
    for i in range(40):
        file.put("T#a", 100 * i, store_builder.START_MS + i, counts_puts=False)
        expected.insert(0, 100 * i)
        data[:] = file.pack()
        (seen[i],) = IndexView(folder).files
        assert seen[i].header.entry_count == i + 1
        for view in seen.values():
            hits = set(find_offsets(view, "T#a"))
            assert set(expected) >= hits >= set(expected[-view.header.entry_count :])
